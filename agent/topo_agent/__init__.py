"""topo-agent: how a server is wired, from sysfs to every form that people and programs already read."""

__version__ = "0.1.0"
