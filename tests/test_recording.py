"""Recordings: what is in one, that it reads back as the same machine, and what a hostile one cannot do."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.machines import MACHINES, needs_machines
from topo_agent.host import BadSource, Host, Json, Source, Unavailable, covered, recording, resolve
from topo_agent.host.live import LiveHost
from topo_agent.host.opening import open_host
from topo_agent.host.paper import Document, Entry, Failure, Link, PaperHost

LIVE = Source(kind="live", complete=True, privileged=False, scope="host")
SLOT = "sys/devices/pci0000:16/0000:16:01.0"

BY_HAND = """\
# topo-agent recording v1
@recording {"complete": true, "privileged": false, "redacted": false, "scope": "host"}
"sys/bus/pci/devices/a \\u00e9" -> "../b c"
sys/bus/pci/devices/0000:16:01.0 -> ../../../devices/pci0000:16/0000:16:01.0
sys/devices/pci0000:16/0000:16:01.0/binary = "0-3\\n\\u0000\\ufffd\\u001b"
sys/devices/pci0000:16/0000:16:01.0/closed/ ! EACCES
sys/devices/pci0000:16/0000:16:01.0/numa_node = "1\\n"
sys/devices/pci0000:16/0000:16:01.0/speed ! EINVAL
sys/kernel/iommu_groups/
@nvml ! not_supported
@process {"allowed_cpus": [0, 1], "architecture": "x86_64"}
# end
"""


class Watched(LiveHost):
    """A live host that keeps the path of every file that was opened."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.opened: list[str] = []

    def text(self, path: str, most: int = 65536) -> str:
        self.opened.append(path)
        return super().text(path, most)


def test_every_line_means_what_it_says() -> None:
    host = recording.parse(BY_HAND)
    assert host.source == Source(kind="recording", complete=True, privileged=False, redacted=False, scope="host")
    assert host.text(f"{SLOT}/numa_node") == "1\n"
    assert host.text("sys/bus/pci/devices/0000:16:01.0/numa_node") == "1\n"
    assert host.text(f"{SLOT}/binary") == "0-3\n\0\ufffd\x1b"
    assert host.link("sys/bus/pci/devices/a \u00e9") == "../b c"
    assert host.names(SLOT) == ["binary", "closed", "numa_node", "speed"]
    assert host.names("sys/kernel/iommu_groups") == []
    with pytest.raises(OSError, match="Invalid argument") as caught:
        host.text(f"{SLOT}/speed")
    assert caught.value.errno == errno.EINVAL
    with pytest.raises(PermissionError):
        host.names(f"{SLOT}/closed")
    assert host.document("process") == {"allowed_cpus": [0, 1], "architecture": "x86_64"}
    for name, reason in (("nvml", "not_supported"), ("netlink", "not_recorded")):
        with pytest.raises(Unavailable) as refused:
            host.document(name)
        assert refused.value.reason == reason


def test_a_recording_of_a_recording_is_the_same_text() -> None:
    assert recording.write(recording.parse(BY_HAND), keep_names=True) == "".join(
        sorted_as_written(BY_HAND.splitlines(keepends=True))
    )


def sorted_as_written(lines: list[str]) -> list[str]:
    """By path and not by line: a quoted path sorts by what it says."""
    return [*lines[:2], lines[3], lines[2], *lines[4:]]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('sys/a = "cut', "JSON"),
        ("sys/a = 7", "neither"),
        ("sys/a", "neither"),
        ("sys/a ! EWHAT", "neither"),
        ("sys/a ->", "target"),
        ("sys/a -> b c", "target"),
        ('/etc/passwd = "x"', "below the root"),
        ('../a = "x"', "below the root"),
        ('sys/../../a = "x"', "below the root"),
        ('sys//a = "x"', "below the root"),
        ('"sys/a', "JSON|Unterminated"),
        ("@nvml {", "JSON"),
        ("@nvml NaN", "JSON"),
        ("@nvml 1e999", "JSON"),
        ("@nvml ! because", "reason"),
        ("@Nvml {}", "no document"),
        ("@nvml " + "[" * 100_000, "deep|JSON"),
        ("@nvml " + "9" * 5000, "digits"),
        ("sys/" + "a" * 2000 + "/", "path"),
        ("sys/" + "a/" * 200, "path"),
        ("sys/twice/\nsys/twice/", "twice"),
    ],
)
def test_a_bad_line_is_named_by_its_number(line: str, why: str) -> None:
    with pytest.raises(BadSource, match=why) as caught:
        recording.parse(f'{recording.FIRST_LINE}\nsys/ok = "1"\n{line}\n', "bug.topo")
    assert str(caught.value).startswith(("bug.topo: line 3: expected ", "bug.topo: line 4: expected "))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_every_truncation_is_noticed() -> None:
    for length in range(len(BY_HAND.encode()) - 1):
        with pytest.raises(BadSource, match="expected"):
            recording.parse(BY_HAND.encode()[:length], "cut.topo")


@pytest.mark.parametrize(
    "data",
    [b"", b"\n", b"hello\n", b"# topo-agent recording v2\n", b"# topo-agent recording v1\n", b"\xff\xfe"],
)
def test_what_is_no_recording_says_so(data: bytes) -> None:
    with pytest.raises(BadSource, match=r"^it: expected ") as caught:
        recording.parse(data, "it")
    assert "\n" not in str(caught.value)


def test_a_file_that_is_a_directory_too_is_refused() -> None:
    with pytest.raises(BadSource, match="a file and a directory"):
        recording.parse(f'{recording.FIRST_LINE}\nsys/a = "1"\nsys/a/b = "2"\n')


def test_one_typed_by_hand_needs_no_frame_and_is_incomplete() -> None:
    host = recording.parse(f'{recording.FIRST_LINE}\n\n# a comment\nsys/a = "1"\r\n')
    assert host.text("sys/a") == "1"
    assert not host.source.complete


def test_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "huge.topo"
    path.write_text(BY_HAND)
    monkeypatch.setattr(recording, "LINES_AT_MOST", 5)
    with pytest.raises(BadSource, match="at most 5 lines"):
        open_host(str(path))
    monkeypatch.setattr(recording, "BYTES_AT_MOST", 100)
    with pytest.raises(BadSource, match="expected"):
        open_host(str(path))


def test_a_hostile_recording_stays_inside() -> None:
    lines = ["sys/out -> /etc", "sys/up -> ../../../..", "sys/a -> b", "sys/b -> a", 'sys/f = "x"', "sys/g -> f/.."]
    host = recording.parse("\n".join([recording.FIRST_LINE, *lines, ""]))
    assert host.names("sys/up") == ["sys"]
    for path, number in (("sys/out/passwd", errno.ENOENT), ("sys/a", errno.ELOOP), ("sys/g", errno.ENOTDIR)):
        with pytest.raises(OSError, match=r"No such|Too many|Not a dir") as caught:
            host.text(path)
        assert caught.value.errno == number
    for path in ("/etc/passwd", "sys/../../etc/passwd"):
        with pytest.raises(ValueError, match="below the root"):
            host.text(path)


def test_variants_leave_the_machine_as_it_was() -> None:
    host = recording.parse(BY_HAND)
    link = "sys/bus/pci/devices/0000:16:01.0"
    assert host.saying(f"{link}/numa_node", "0\n").text(f"{SLOT}/numa_node") == "0\n"
    assert host.saying("sys/new/file", "x").text("sys/new/file") == "x"
    assert host.without(f"{link}/numa_node").names(SLOT) == ["binary", "closed", "speed"]
    assert host.without(SLOT).names("sys/devices/pci0000:16") == []
    assert host.without(link).names("sys/bus/pci/devices") == ["a \u00e9"]
    with pytest.raises(OSError, match="Input/output") as caught:
        host.failing(f"{link}/numa_node", "EIO").text(f"{SLOT}/numa_node")
    assert caught.value.errno == errno.EIO
    with pytest.raises(PermissionError):
        host.failing(SLOT, "EACCES").names(SLOT)
    assert host.text(f"{SLOT}/numa_node") == "1\n"


# What is recorded


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    device = tmp_path / SLOT
    for below in (
        "power",
        "statistics",
        "hwmon/hwmon0",
        "net/eth0/queues/rx-0",
        "nvme/nvme0/nvme0n1",
        "host3/target3:0:0",
    ):
        (device / below).mkdir(parents=True)
        (device / below / "planted").write_text("nobody reads this\n")
    for name in (
        "vendor",
        "planted",
        "config",
        "vpd",
        "rom",
        "resource",
        "resource0",
        "resource2_wc",
        "remove",
        "rescan",
    ):
        (device / name).write_text(f"{name}\n")
    (device / "power/runtime_status").write_text("active\n")
    (device / "subsystem").symlink_to("../../../bus/pci")
    driver = tmp_path / "sys/bus/pci/drivers/nvme"
    driver.mkdir(parents=True)
    (driver / "bind").write_text("")
    (driver / "0000:16:01.0").symlink_to(f"../../../../../{SLOT}")
    devices = tmp_path / "sys/bus/pci/devices"
    devices.mkdir()
    (devices / "0000:16:01.0").symlink_to(f"../../../../{SLOT}")
    (tmp_path / "sys/class/net").mkdir(parents=True)
    (tmp_path / "sys/class/net/eth0").symlink_to(f"../../../{SLOT}/net/eth0")
    (tmp_path / "sys/class/net/lo").symlink_to("../../devices/virtual/net/lo")
    (tmp_path / "sys/devices/virtual/net/lo").mkdir(parents=True)
    (tmp_path / "sys/devices/virtual/net/lo/planted").write_text("also here\n")
    (tmp_path / "sys/kernel/iommu_groups").mkdir(parents=True)
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("x" * 100_000)
    return tmp_path


def test_whole_directories_are_recorded(machine: Path) -> None:
    host = recording.parse(recording.write(LiveHost(str(machine)), keep_names=True))
    for below in ("planted", "net/eth0", "nvme/nvme0/nvme0n1/planted", "power/runtime_status"):
        assert f"{SLOT}/{below}" in host.entries
    assert host.text("sys/class/net/lo/planted") == "also here\n"
    assert host.link(f"{SLOT}/subsystem") == "../../../bus/pci"
    assert host.names("sys/bus/pci/drivers/nvme") == ["0000:16:01.0"]
    assert host.entries["sys/kernel/iommu_groups"] is None
    assert len(host.text("proc/cpuinfo")) == 65536
    assert host.names(SLOT) == ["net", "nvme", "planted", "power", "subsystem", "vendor"]
    assert host.names(f"{SLOT}/power") == ["runtime_status"]


def test_what_costs_or_acts_is_never_opened(machine: Path) -> None:
    host = Watched(str(machine))
    recording.write(host)
    assert f"{SLOT}/planted" in host.opened
    forbidden = {"config", "vpd", "rom", "remove", "rescan", "bind", "statistics", "queues", "hwmon", "host3"}
    for path in host.opened:
        assert not forbidden & set(path.split("/")), path
        assert "resource" not in path
    files = [path for path in host.opened if not (machine / path.removesuffix("/.")).is_dir()]
    assert len(files) == len(set(files))  # and nothing is read twice


def test_an_unreadable_file_keeps_its_error() -> None:
    entries: dict[str, Entry] = {
        "sys/devices/system/node/node0/meminfo": Failure(errno.EIO),
        "sys/devices/system/node/node1": Failure(errno.EACCES, directory=True),
        "sys/devices/system/node/node2": None,
    }
    text = recording.write(PaperHost(entries, source=LIVE))
    assert "sys/devices/system/node/node0/meminfo ! EIO\n" in text
    assert "sys/devices/system/node/node1/ ! EACCES\n" in text
    assert "sys/devices/system/node/node2/\n" in text


def test_links_in_circles_end(tmp_path: Path) -> None:
    net = tmp_path / "sys/class/net"
    net.mkdir(parents=True)
    (net / "a").symlink_to("../../devices/platform/x/net/a")
    device = tmp_path / "sys/devices/platform/x/net/a"
    device.mkdir(parents=True)
    (device / "self").symlink_to(".")
    (device / "up").symlink_to("../../../../../..")
    host = covered.copy(LiveHost(str(tmp_path)))
    assert sorted(path for path in host.entries if path.startswith("sys/devices/platform/x/net/a/")) == [
        "sys/devices/platform/x/net/a/self",
        "sys/devices/platform/x/net/a/up",
    ]


def test_what_is_too_much_makes_it_incomplete(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(covered, "ENTRIES_AT_MOST", 10)
    entries: dict[str, Entry] = {f"sys/devices/system/cpu/cpu{number}/online": "1\n" for number in range(50)}
    host = recording.parse(recording.write(PaperHost(entries, source=LIVE)))
    assert not host.source.complete


def test_this_machine_is_recorded_and_read_again(tmp_path: Path) -> None:
    text = recording.write(LiveHost("/"))
    path = tmp_path / "here.topo"
    path.write_text(text)
    host = open_host(str(path))
    assert host.source.kind == "recording"
    assert host.source.redacted
    assert host.text("sys/devices/system/cpu/online") == LiveHost("/").text("sys/devices/system/cpu/online")
    assert host.document("process") == LiveHost("/").document("process")
    assert recording.write(host) == text


# Machines of others


@needs_machines
@pytest.mark.parametrize("name", MACHINES)
def test_a_recorded_machine_keeps_every_text(name: str, tree: Callable[[str], Path]) -> None:
    root = tree(name)
    text = recording.write(LiveHost(str(root)), keep_names=True)
    host = recording.parse(text)
    for folder, _, files in os.walk(root):
        for file in files:
            path = os.path.relpath(os.path.join(folder, file), root)
            if os.path.islink(root / path):
                assert host.link(path) == os.readlink(root / path)
            elif "cpufreq" not in path and "/virtual/block/" not in path:
                assert host.text(path) == (root / path).read_bytes()[:65536].decode("utf-8", "replace"), path
    assert recording.write(host, keep_names=True) == text
    redacted = recording.write(host)
    assert recording.write(recording.parse(redacted)) == redacted


# Any tree

_NAMES = st.text(st.characters(exclude_characters="/\0", codec="utf-8"), min_size=1, max_size=6).filter(
    lambda name: name not in (".", "..")
)
_PATHS = st.lists(_NAMES | st.sampled_from(["sys", "a", "b"]), min_size=1, max_size=4).map("/".join)
_ENTRIES: st.SearchStrategy[Entry] = (
    st.text(max_size=20)
    | st.binary(max_size=20)
    | st.builds(Link, st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1, max_size=12))
    | st.builds(Failure, st.sampled_from([errno.EIO, errno.EACCES, errno.EINVAL]), st.booleans())
    | st.none()
)
_JSON: st.SearchStrategy[Json] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def grown(entries: dict[str, Entry]) -> dict[str, Entry]:
    """Without the entries that would be below a file."""
    return {
        path: entry
        for path, entry in entries.items()
        if all(entries.get(path[:place]) is None for place, mark in enumerate(path) if mark == "/")
        and not (entry is not None and any(other.startswith(f"{path}/") for other in entries))
    }


def answers(host: Host, path: str) -> tuple[object, ...]:
    """What a host says of a path, errors included, with every question there is."""
    found: list[object] = []
    for ask in (host.text, host.names, host.link):
        try:
            found.append(ask(path))
        except OSError as error:
            found.append(error.errno)
    return tuple(found)


@given(st.dictionaries(_PATHS, _ENTRIES, min_size=1, max_size=12).map(grown), st.dictionaries(st.just("nvml"), _JSON))
def test_a_recording_of_any_tree_reads_back_as_that_tree(entries: dict[str, Entry], said: dict[str, Document]) -> None:
    assume(entries or said)
    host = PaperHost(entries, said, source=LIVE)
    again = recording.parse("".join(f"{line}\n" for line in recording.lines(host)))
    texts = {path: it.decode("utf-8", "replace") if isinstance(it, bytes) else it for path, it in host.entries.items()}
    assert again.entries == texts
    assert again.documents == said
    for path in host.entries:
        assert answers(again, path) == answers(host, path)


_TARGETS = st.tuples(
    st.sampled_from(["", "./", "../", ".././../", "..//"]),
    st.lists(st.sampled_from(["a", "b", "sys"]), min_size=1, max_size=4).map("/".join),
).map("".join)
_SMALL: st.SearchStrategy[Entry] = st.binary(max_size=4) | st.builds(Link, _TARGETS.filter(bool)) | st.none()
_PLACES = st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=3).map("/".join)


def inside(path: str, target: str) -> bool:
    return not target.startswith("/") and resolve(path.rpartition("/")[0], target) is not None


@settings(max_examples=60)
@given(
    st.dictionaries(_PLACES, _SMALL, max_size=8).map(lambda found: grown({**found, "sys/online": b"0\n"})),
    st.lists(_PLACES, max_size=6),
)
def test_paper_answers_as_the_directory_does(
    tmp_path_factory: pytest.TempPathFactory, entries: dict[str, Entry], asked: list[str]
) -> None:
    # Where a relative link leaves the root, LiveHost lets the kernel say whether something is outside.
    assume(all(not isinstance(it, Link) or inside(path, it.target) for path, it in entries.items()))
    paper = PaperHost(entries, source=LIVE)
    root = tmp_path_factory.mktemp("tree")
    for path, entry in sorted(paper.entries.items()):
        if entry is None:
            (root / path).mkdir(exist_ok=True)
        elif isinstance(entry, Link):
            (root / path).symlink_to(entry.target)
        elif isinstance(entry, bytes):
            (root / path).write_bytes(entry)
    live = LiveHost(str(root))
    for path in (*paper.entries, *asked):
        assert answers(paper, path) == answers(live, path), path
