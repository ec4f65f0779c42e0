"""`python -m topo_agent` is `topo-agent`."""

from topo_agent.cli import main

if __name__ == "__main__":
    main()
