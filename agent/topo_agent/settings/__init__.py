"""The daemon's settings: one file, TOPO_AGENT_ variables and flags, with the same names -> Settings."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

from topo_agent.settings import values
from topo_agent.settings.values import Kind

FILE = "/etc/topo-agent/topo-agent.toml"
"""Read where it exists and no other is named."""

DEFAULT = "default"
PREFIX = "TOPO_AGENT_"


class BadSettings(Exception):
    """One line: where it was said, the setting, and what was expected. `usage`: a flag or a variable said it."""

    def __init__(self, said: str, *, usage: bool = False) -> None:
        super().__init__(said)
        self.usage = usage


class Setting(NamedTuple):
    """What is to be known of one setting."""

    field: str
    kind: Kind
    help: str
    example: str

    @property
    def name(self) -> str:
        """Its key in the file: `stale-after`."""
        return self.field.replace("_", "-")

    @property
    def flag(self) -> str:
        return f"--{self.name}"

    @property
    def variable(self) -> str:
        return PREFIX + self.field.upper()


def _setting(kind: Kind, default: str, about: str, example: str) -> Any:
    return dataclasses.field(default=kind.read(default), metadata={"about": (kind, about, example)})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the daemon goes by. A field's name, with dashes, is that of the key, the variable and the flag."""

    listen: tuple[str, ...] = _setting(
        values.ADDRESSES, "127.0.0.1:19738", "Where HTTP is offered; empty for nowhere.",
        "127.0.0.1:19738,unix:/run/topo-agent/http",
    )  # fmt: skip
    rescan: float = _setting(  # seconds
        values.duration(1, 7 * 86400), "5m", "How often everything is read again when nothing has changed.", "1h"
    )
    stale_after: float = _setting(  # seconds
        values.duration(0, 7 * 86400), "10m", "How long the last good facts stand for those that cannot be read.", "30m"
    )
    timeout: int = _setting(values.whole("S", 1, 86400), "60", "Seconds a driver may take.", "20")
    state_dir: str = _setting(
        values.FOLDER, "/run/topo-agent", "Where topology.json and the history are kept; empty for nowhere.",
        "/var/lib/topo-agent",
    )  # fmt: skip
    state_mode: int = _setting(values.MODE, "0644", "The mode of the files there, octal.", "0640")
    state_group: str = _setting(values.GROUP, "", "The group of the files there; empty for the program's own.", "slurm")
    textfile: str = _setting(
        values.path("the absolute path of a file that ends in .prom", ".prom"),  # node_exporter reads no other
        "", "A file for the textfile collector of node_exporter; empty for none.",
        "/var/lib/prometheus/node-exporter/topo-agent.prom",
    )  # fmt: skip
    history: int = _setting(values.whole("N", 0, 10000), "100", "How many changes are kept.", "1000")
    overlay: str = _setting(
        values.FILE, "", "A file (YAML) with what firmware hides; empty for none.", "/etc/topo-agent/overlay.yaml"
    )
    metrics_pairs: bool = _setting(
        values.SWITCH, "false", "Offer a metric for each pair of devices: many series on a large machine.", "true"
    )
    log_format: Literal["text", "json"] = _setting(
        values.one_of("text", "json"), "text", "How a line of the log is written.", "json"
    )
    tls_certificate: str = _setting(
        values.path(), "", "The server's certificate (PEM) for HTTPS; empty for HTTP.", "/etc/topo-agent/tls.crt"
    )
    tls_key: str = _setting(values.path(), "", "The key (PEM) of that certificate.", "/etc/topo-agent/tls.key")
    tls_client_ca: str = _setting(
        values.path(), "", "Who signs the certificates (PEM) that clients then need; empty for no such need.",
        "/etc/topo-agent/clients.crt",
    )  # fmt: skip
    labels: Literal["off", "node", "nfd", "nfd-file"] = _setting(
        values.one_of("off", "node", "nfd", "nfd-file"), "off",
        "Where the labels of this node are published: the Node, a NodeFeature, or a file for nfd-worker.", "node",
    )  # fmt: skip
    nfd_namespace: str = _setting(
        values.NAMESPACE, "node-feature-discovery", "The namespace of the NodeFeature.", "gpu-operator"
    )
    nfd_file: str = _setting(
        values.path(), "", "The file for nfd-worker; empty for topo-agent in its usual folder.",
        "/features.d/topo-agent",
    )  # fmt: skip
    node: str = _setting(
        values.NODE, "", "The name of this node in its cluster; empty for the host name in lower case.", "gpu-a-17"
    )
    kubeconfig: str = _setting(
        values.FILE, "", "How to reach the cluster; empty for $KUBECONFIG, the pod's own account or ~/.kube/config.",
        "/etc/kubernetes/topo-agent.conf",
    )  # fmt: skip
    context: str = _setting(
        values.FREE, "", "The context of the kubeconfig; empty for its current one.", "admin@site-a"
    )
    mapping: str = _setting(
        values.FILE, "", "A file (CSV) that says which node is in which rack, block and leaf; empty for none.",
        "/etc/topo-agent/mapping/nodes.csv",
    )  # fmt: skip
    label_keys: tuple[tuple[str, str], ...] = _setting(
        values.LABEL_KEYS, "", "Further labels, each with the name of ours whose value it gets, too.",
        "topology.kubernetes.io/rack=rack",
    )  # fmt: skip
    gpu_clique: bool = _setting(
        values.SWITCH, "false", "Publish nvidia.com/gpu.clique by the rule of NVIDIA's GPU feature discovery, unless "
        "somebody else does.", "true",
    )  # fmt: skip
    slice_mode: Literal["off", "inventory", "allocatable"] = _setting(
        values.one_of("off", "inventory", "allocatable"), "off",
        "Publish a ResourceSlice of this node: tainted devices that only inform, or devices to be allocated.",
        "inventory",
    )  # fmt: skip
    slice_numa: Literal["scalar", "list"] = _setting(
        values.one_of("scalar", "list"), "scalar",
        "How numaNode is published there; list needs the feature gate DRAListTypeAttributes.", "list",
    )  # fmt: skip
    slice_vfs: bool = _setting(values.SWITCH, "false", "Publish virtual functions there, too.", "true")
    events: bool = _setting(values.SWITCH, "false", "Make an Event of each finding that is an error.", "true")
    node_condition: bool = _setting(
        values.SWITCH, "false", "Keep a condition TopologyDegraded of the Node: is any finding an error?", "true"
    )
    dranet_socket: str = _setting(
        values.SOCKET, "", "A Unix socket where dranet's webhook is answered; empty for none.", "/run/topo-agent/dranet"
    )
    domain: str = _setting(
        values.DOMAIN, "topo-agent.io", "The domain of labels and of the driver.", "topology.example.com"
    )


SETTINGS = tuple(Setting(field.name, *field.metadata["about"]) for field in dataclasses.fields(Settings))
"""All of them, in the order of the fields."""


class Loaded(NamedTuple):
    """Settings, and for the name of each where its value was said: "default", a file, a variable or a flag."""

    settings: Settings
    origins: Mapping[str, str]


class _Given(NamedTuple):
    setting: Setting
    text: str
    origin: str
    place: str  # how an error begins


def load(flags: Mapping[str, str], environment: Mapping[str, str], file: str | None) -> Loaded:
    """The settings of this moment: flags (by the name of the setting) before variables before the file.

    `file` has to exist; without one it is FILE, if that exists. BadSettings for a value that does not fit, also
    where a nearer one makes it void.
    """
    read: dict[str, Any] = {}
    origins = dict.fromkeys((one.name for one in SETTINGS), DEFAULT)
    for one in (*_of_file(file), *_of_environment(environment), *_of_flags(flags)):
        try:
            read[one.setting.field] = one.setting.kind.read(one.text)
        except ValueError:
            raise _bad(one.place, one.setting, one.text, usage=one.origin.startswith((PREFIX, "--"))) from None
        origins[one.setting.name] = one.origin
    settings = Settings(**read)
    _fit_together(settings, origins)
    return Loaded(settings, origins)


def _bad(place: str, setting: Setting, said: object, *, usage: bool) -> BadSettings:
    from topo_agent.settings import reading

    return BadSettings(f"{place}: expected {setting.kind.expected}, and this is {reading.shown(said)}", usage=usage)


def _of_file(file: str | None) -> Iterator[_Given]:
    from topo_agent.host import files
    from topo_agent.settings import reading

    try:
        path, document = reading.document(file, FILE)
    except files.Unreadable as error:
        raise BadSettings(str(error)) from None
    by_name = {one.name: one for one in SETTINGS}
    for key, value in document.items():
        if key not in by_name:
            raise BadSettings(f"{path}: no setting is called {reading.shown(key)}{reading.near(key, by_name)}")
        try:
            text = by_name[key].kind.from_file(value)
        except ValueError:
            raise _bad(f"{path}: {key}", by_name[key], value, usage=False) from None
        yield _Given(by_name[key], text, path, f"{path}: {key}")


def _of_environment(environment: Mapping[str, str]) -> Iterator[_Given]:
    """An empty variable empties what may be empty; elsewhere it counts for none, as with every option."""
    for one in SETTINGS:
        text = environment.get(one.variable)
        if text or (text is not None and one.kind.empty):
            yield _Given(one, text, one.variable, one.variable)


def _of_flags(flags: Mapping[str, str]) -> Iterator[_Given]:
    for one in SETTINGS:
        if one.name in flags:
            yield _Given(one, flags[one.name], one.flag, one.flag)


def _fit_together(settings: Settings, origins: Mapping[str, str]) -> None:
    """A certificate and its key belong together, and a CA for clients means nothing without them."""
    needs = (
        ("tls-certificate", settings.tls_certificate, "tls-key", settings.tls_key),
        ("tls-key", settings.tls_key, "tls-certificate", settings.tls_certificate),
        ("tls-client-ca", settings.tls_client_ca, "tls-certificate", settings.tls_certificate),
    )
    for name, has, other, has_other in needs:
        if has and not has_other:
            usage = origins[name].startswith((PREFIX, "--"))
            raise BadSettings(f"{origins[name]}: {name}: expected {other} to be set, too", usage=usage)
