"""A machine that is written to a directory is the same machine for hwloc's lstopo."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import pytest

from tests import fixtures, lstopo
from tests.machines import MACHINES, needs_machines
from topo_agent.graph.topology import Topology
from topo_agent.host import TEXT_LIMIT, BadSource, Host, Source, recording
from topo_agent.host.header import functions, header, headers
from topo_agent.host.live import LiveHost
from topo_agent.host.opening import open_host
from topo_agent.host.paper import Entry, Failure, Link, PaperHost
from topo_agent.host.unpack import is_name, stays_inside, unpack
from topo_agent.ids import CpuSet, PciAddress, Ref, cpulist

# In CI it must be there: without it the tests below fail on the missing program.
needs_lstopo = pytest.mark.skipif(
    not lstopo.PROGRAM and not os.environ.get("CI"), reason="no lstopo here; Debian has it in the package hwloc"
)

DEVICES = "sys/bus/pci/devices"

# Where lstopo and the program answer differently about a fixture: what we say, what lstopo says, and why. An entry that
# does not come true is an error, too.
Dispute = tuple[str | None, str | None, str]
DISPUTED: dict[str, dict[str, Dispute]] = {
    "contradicting-files": {
        "numa 2": (
            "unknown",
            "2,6,10,14,18,22,26,30,34,38",
            "nodes 2 and 3 both list CPU 2: hwloc believes the node that it reads first, we believe neither",
        ),
        "numa 3": (
            "unknown",
            None,
            "nodes 2 and 3 both list CPU 2: hwloc drops the second node with its memory, we keep it",
        ),
    },
    "qemu-x86": {
        "near 0000:30:00.0": (
            "0-3",
            "0-7",
            "numa_node is 2, which has no CPUs: hwloc puts it under the machine, we near the CPUs nearest to node 2",
        ),
    },
}

# hwloc 2.9 as Debian builds it drops every domain of more than 16 bits.
DROPPED = {
    "vmd-32bit-domains": {
        "10000:00:04.0",
        "10001:80:07.0",
        "10001:84:00.0",
        "10002:00:03.0",
        "10002:00:05.0",
        "10002:01:00.0",
        "10002:02:00.0",
    }
}


def on_paper(entries: Mapping[str, Entry]) -> PaperHost:
    return PaperHost(entries, source=Source(kind="recording", complete=True))


class Without:
    """Another host without the files of some names."""

    def __init__(self, host: Host, *hidden: str) -> None:
        self._host = host
        self._hidden = hidden
        self.source = host.source
        self.link = host.link
        self.document = host.document

    def text(self, path: str, most: int = TEXT_LIMIT) -> str:
        if path.rpartition("/")[2] in self._hidden:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return self._host.text(path, most)

    def names(self, path: str) -> list[str]:
        return [name for name in self._host.names(path) if name not in self._hidden]


@cache
def recorded(tree: Path) -> lstopo.Seen:
    """What lstopo says of a tree, and the PCI functions that are in it: without `config` lstopo knows no bridges."""
    seen = lstopo.look(tree)
    seen.bridges, seen.functions, seen.near = set(), {}, {}
    devices = tree / DEVICES
    for link in devices.iterdir() if devices.exists() else ():
        address = PciAddress.parse(link.name)
        if address.domain <= 0xFFFF:
            seen.functions[address] = above(link.resolve())
            if (link / "class").read_text().startswith("0x0604"):
                seen.bridges.add(address)
    return seen


def above(directory: Path) -> PciAddress | None:
    name = directory.parent.name
    return None if name.startswith("pci") else PciAddress.parse(name)


def discovered(found: Topology) -> lstopo.Seen:
    """What the program says of a machine, of all that lstopo knows too."""
    devices = [one for one in found.devices or () if one.address.domain <= 0xFFFF]
    first: dict[Ref | None, PciAddress] = {}
    for device in devices:
        if device.parent is None:
            first[device.root] = min(device.address, first.get(device.root, device.address))
    return lstopo.Seen(
        packages={package.cpus for package in found.packages or ()},
        cores={cpu.threads for cpu in found.cpus or () if cpu.online and cpu.threads},
        pus={*found.online_cpus},
        numa={memory.id: memory.cpus or memory.near_cpus for memory in found.memories or ()},
        bridges={device.address for device in devices if device.kind == "bridge"},
        functions={one.address: PciAddress.parse(one.parent.key) if one.parent else None for one in devices},
        near={
            one.address: one.cpus
            for one in devices
            if one.address == first.get(one.root) and ("numa_node", "firmware") in one.sources
        },
    )


def answers(seen: lstopo.Seen, *, cpus: bool) -> dict[str, str]:
    """Each thing that lstopo may agree on, and what is said of it."""
    found = {f"bridge {address}": "" for address in seen.bridges}
    found |= {f"function {address}": f"below {parent}" for address, parent in seen.functions.items()}
    found |= {f"near {address}": listed(near) for address, near in seen.near.items()}
    if cpus:
        found |= {f"package {listed(threads)}": "" for threads in seen.packages}
        found |= {f"core {listed(threads)}": "" for threads in seen.cores}
        found |= {f"pu {pu}": "" for pu in seen.pus}
        found |= {f"numa {node}": listed(near) for node, near in seen.numa.items()}
    return found


def listed(cpus: CpuSet | None) -> str:
    return "unknown" if cpus is None else cpulist(cpus)


def agree(name: str, asked: lstopo.Seen, directory: Path, *, cpus: bool, disputed: Mapping[str, Dispute]) -> None:
    """lstopo says all of it of the directory, and nothing else; it is not asked where other roots are."""
    seen = lstopo.look(directory)
    seen.near = {address: near for address, near in seen.near.items() if address in asked.near}
    ours, theirs = answers(asked, cpus=cpus), answers(seen, cpus=cpus)
    every = {one: (ours.get(one), theirs.get(one)) for one in ours.keys() | theirs.keys()}
    wrong = {one: both for one, both in every.items() if both[0] != both[1]}
    print(f"{name}: agreed/asked {len(every) - len(wrong)}/{len(every)}")
    assert ours
    assert wrong == {one: (we, they) for one, (we, they, _) in disputed.items()}


def unpacked(name: str, host: Host, tree: Path, directory: Path) -> None:
    assert unpack(host, str(directory)) == []
    # Without topology lstopo counts the CPUs of the machine that it runs on.
    cpus = any(tree.glob("sys/devices/system/cpu/cpu*/topology"))
    agree(name, recorded(tree), directory, cpus=cpus, disputed={})


@needs_lstopo
@pytest.mark.parametrize("name", fixtures.NAMES)
def test_a_fixture(name: str, common: Path) -> None:
    found = fixtures.topology(name)
    dropped = {str(one.address) for one in found.devices or () if one.address.domain > 0xFFFF}
    assert dropped == DROPPED.get(name, set())
    agree(name, discovered(found), fixtures.tree(name, common), cpus=True, disputed=DISPUTED.get(name, {}))


@needs_lstopo
@needs_machines
@pytest.mark.parametrize("name", MACHINES)
def test_a_tree(name: str, tree: Callable[[str], Path], tmp_path: Path) -> None:
    unpacked(name, LiveHost(str(tree(name))), tree(name), tmp_path / "machine")


@needs_lstopo
@needs_machines
@pytest.mark.parametrize("name", MACHINES)
def test_a_recording(name: str, tree: Callable[[str], Path], tmp_path: Path) -> None:
    paper = tmp_path / "host.topo"
    paper.write_text(recording.write(LiveHost(str(tree(name)))), encoding="utf-8")
    unpacked(name, open_host(str(paper)), tree(name), tmp_path / "machine")


@needs_lstopo
@needs_machines
@pytest.mark.parametrize("name", ["aws-gb200", "dell-xe9680-snc2"])
def test_buses_that_no_file_tells(name: str, tree: Callable[[str], Path], tmp_path: Path) -> None:
    host = Without(LiveHost(str(tree(name))), "secondary_bus_number", "subordinate_bus_number")
    unpacked(name, host, tree(name), tmp_path / "machine")


def test_a_header_of_type_0() -> None:
    """Typed from figure 6-1 of the PCI Local Bus Specification 3.0: an A100, 10de:20b0."""
    said = {"class": 0x030200, "vendor": 0x10DE, "device": 0x20B0, "revision": 0xA1}
    subsystem = {"subsystem_vendor": 0x10DE, "subsystem_device": 0x144E}
    rows = [
        "de 10 b0 20  00 00 00 00  a1 00 02 03  00 00 00 00",  # ids; command, status; class; header type
        "00 00 00 00  00 00 00 00  00 00 00 00  00 00 00 00",  # base addresses
        "00 00 00 00  00 00 00 00  00 00 00 00  de 10 4e 14",  # …, CardBus CIS, subsystem
        "00 00 00 00  00 00 00 00  00 00 00 00  00 00 00 00",
    ]
    assert header({**said, **subsystem}, (0, 0, 0), several=False) == bytes.fromhex("".join(rows))


@pytest.mark.parametrize(("code", "layout"), [(0x060400, "81"), (0x060401, "81"), (0x060940, "81"), (0x060700, "82")])
def test_a_header_of_a_bridge(code: int, layout: str) -> None:
    """Typed from figure 3-1 of the PCI-to-PCI Bridge Architecture Specification 1.2: port 16:01.0, buses 17 to 2b."""
    said = {"class": code, "vendor": 0x8086, "device": 0x352A, "revision": 4}
    subsystem = {"subsystem_vendor": 0x1028, "subsystem_device": 0x0000}  # has no place in these 64 bytes
    rows = [
        f"86 80 2a 35  00 00 00 00  04 {code & 0xFF:02x} {code >> 8 & 0xFF:02x} 06  00 00 {layout} 00",
        "00 00 00 00  00 00 00 00  16 17 2b 00  00 00 00 00",  # base addresses; the three buses
        "00 00 00 00  00 00 00 00  00 00 00 00  00 00 00 00",
        "00 00 00 00  00 00 00 00  00 00 00 00  00 00 00 00",
    ]
    assert header({**said, **subsystem}, (0x16, 0x17, 0x2B), several=True) == bytes.fromhex("".join(rows))


def pci(functions_of: Mapping[str, Mapping[str, Entry]]) -> PaperHost:
    """`{"pci0000:00/0000:00:1f.0": {"class": …}}`, each with its link in sys/bus/pci/devices."""
    entries: dict[str, Entry] = {}
    for path, files in functions_of.items():
        entries.update({f"sys/devices/{path}/{name}": entry for name, entry in files.items()})
        entries[f"{DEVICES}/{path.rpartition('/')[2]}"] = Link(f"../../../devices/{path}")
    return on_paper(entries)


def bytes_of(functions_of: Mapping[str, Mapping[str, Entry]]) -> dict[str, bytes | None]:
    host = pci(functions_of)
    return {path.rpartition("/")[2]: made for path, made in headers(host, functions(host))}


BRIDGE = {"uevent": "PCI_CLASS=60400\nPCI_ID=8086:352A\nPCI_SUBSYS_ID=8086:0000\n"}
DISK = {"class": "0x010802\n", "vendor": "0x1c5c\n", "device": "0x1959\n"}


def test_identity_from_uevent_where_no_file_tells() -> None:
    made = bytes_of({"pci0000:00/0000:00:1f.0": {"class": "garbled", "uevent": "PCI_CLASS=30200\nPCI_ID=10DE:20B0\n"}})
    assert (made["0000:00:1f.0"] or b"")[:12] == bytes.fromhex("de10b020 00000000 00000203")


def test_no_header_without_a_class(tmp_path: Path) -> None:
    where = "sys/devices/pci0000:00/0000:00:1f.0"
    assert unpack(pci({"pci0000:00/0000:00:1f.0": {"vendor": "0x10de\n"}}), str(tmp_path / "x")) == [f"{where}/config"]
    assert not (tmp_path / "x" / where / "config").exists()


def test_ids_that_nothing_tells() -> None:
    made = bytes_of({"pci0000:00/0000:00:1f.0": {"class": "0x010802\n"}})
    assert (made["0000:00:1f.0"] or b"")[:4] == b"\xff\xff\xff\xff"  # as hardware says: nobody is there


def test_buses_of_bridges() -> None:
    port, switch = "pci0000:00/0000:00:01.0", "pci0000:00/0000:00:01.0/0000:01:00.0"
    made = bytes_of(
        {
            port: BRIDGE,
            switch: BRIDGE,
            f"{switch}/0000:02:01.0": BRIDGE,
            f"{switch}/0000:02:01.0/0000:04:00.0": DISK,
            f"{switch}/0000:02:02.0": BRIDGE,  # leads to nothing
            "pci0000:00/0000:00:02.0": {**BRIDGE, "secondary_bus_number": "16\n", "subordinate_bus_number": "31\n"},
            "pci0001:00/0001:00:00.0": BRIDGE,  # leads to nothing, in another domain
        }
    )
    assert {name: (header or b"")[0x18:0x1B].hex(" ") for name, header in made.items()} == {
        "0000:00:01.0": "00 01 04",
        "0000:01:00.0": "01 02 04",
        "0000:02:01.0": "02 04 04",
        "0000:04:00.0": "00 00 00",
        "0000:02:02.0": "02 03 03",
        "0000:00:02.0": "00 10 1f",
        "0001:00:00.0": "00 01 01",
    }


def test_a_domain_below_a_function_has_its_own_buses() -> None:
    made = bytes_of(
        {
            "pci0000:6f/0000:6f:00.5": BRIDGE,
            "pci0000:6f/0000:6f:00.5/pci10001:80/10001:80:07.0": BRIDGE,
            "pci0000:6f/0000:6f:00.5/pci10001:80/10001:80:07.0/10001:84:00.0": DISK,
        }
    )
    assert (made["0000:6f:00.5"] or b"")[0x18:0x1B] == b"\x6f\x70\x70"
    assert (made["10001:80:07.0"] or b"")[0x18:0x1B] == b"\x80\x84\x84"


def test_cards_with_several_functions() -> None:
    virtual: dict[str, Entry] = {**DISK, "physfn": Link("../0000:02:00.0")}
    cards: dict[str, Mapping[str, Entry]] = {
        "01:00.0": DISK,
        "01:00.1": DISK,
        "02:00.0": DISK,
        "02:00.1": virtual,
        "03:00.0": DISK,
    }
    made = bytes_of({f"pci0000:00/0000:{where}": files for where, files in cards.items()})
    layouts = {name: (header or b"")[0x0E] for name, header in made.items()}
    assert layouts == {
        "0000:01:00.0": 0x80,
        "0000:01:00.1": 0x80,
        "0000:02:00.0": 0,
        "0000:02:00.1": 0,
        "0000:03:00.0": 0,
    }


def test_what_is_written(tmp_path: Path) -> None:
    entries: dict[str, Entry] = {
        "sys/a/text": "1\n",
        "sys/a/refused": Failure(errno.EINVAL),
        "sys/closed": Failure(errno.EACCES, directory=True),
        "sys/empty": None,
        "sys/link": Link("a/text"),
        "sys/dangling": Link("nowhere"),
        "proc/cpuinfo": "é\ufffd\ud800",
        "etc/passwd": "of no use",
    }
    (tmp_path / "x").mkdir()  # empty, so it will do
    assert unpack(on_paper(entries), str(tmp_path / "x")) == ["sys/a/refused", "sys/closed"]
    written = {str(path.relative_to(tmp_path / "x")) for path in (tmp_path / "x").rglob("*")}
    assert written == {"proc", "proc/cpuinfo", "sys", "sys/a", "sys/a/text", "sys/dangling", "sys/empty", "sys/link"}
    assert (tmp_path / "x/proc/cpuinfo").read_bytes() == "é\ufffd?".encode()
    assert (tmp_path / "x/sys/link").readlink() == Path("a/text")
    assert list(tmp_path.iterdir()) == [tmp_path / "x"]


def test_a_root_directory_keeps_its_empty_directories(tmp_path: Path) -> None:
    (tmp_path / "source/sys/kernel/iommu_groups").mkdir(parents=True)
    os.mkfifo(tmp_path / "source/sys/kernel/pipe")  # no file and no directory
    assert unpack(LiveHost(str(tmp_path / "source")), str(tmp_path / "x")) == ["sys/kernel/pipe"]
    assert (tmp_path / "x/sys/kernel/iommu_groups").is_dir()


def test_files_of_a_device_that_nobody_reads(tmp_path: Path) -> None:
    where, unread = "sys/devices/pci0000:00/0000:00:1f.0", ["resource", "resource0", "resource1_wc", "rom", "vpd"]
    host = pci({"pci0000:00/0000:00:1f.0": {**DISK, "config": "x", **dict.fromkeys(unread, "x")}})
    assert unpack(host, str(tmp_path / "x")) == [f"{where}/{name}" for name in unread]
    assert len((tmp_path / "x" / where / "config").read_bytes()) == 64


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/etc", "a\0b", "\ud800", "x" * 256, "é" * 128])
def test_names_that_no_directory_can_hold(name: str) -> None:
    assert not is_name(name)


@pytest.mark.parametrize("name", ["a", "...", "..a", "0000:00:1f.0", "x" * 255, "\udcff"])
def test_names_that_a_directory_can_hold(name: str) -> None:
    assert is_name(name)


class Hostile(PaperHost):
    """Says any name, as a broken reader of recordings could."""

    def names(self, path: str) -> list[str]:
        return ["..", "../escaped", "/escaped", "a\0", "good"] if path == "sys" else super().names(path)


def test_hostile_names_are_left_out(tmp_path: Path) -> None:
    host = Hostile({"sys/good": "1\n"}, source=Source(kind="recording", complete=True))
    assert unpack(host, str(tmp_path / "x")) == ["sys/..", "sys/../escaped", "sys//escaped", "sys/a\0"]
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["good", "sys", "x"]


@pytest.mark.parametrize("target", ["../../x", "/etc", "/sys/a", "a/../../..", "a/..", "", "a\0", "../" * 40, "\ud800"])
def test_links_that_may_lead_out(target: str, tmp_path: Path) -> None:
    assert not stays_inside("sys", target)
    assert unpack(on_paper({"sys/a": "", "sys/link": Link(target)}), str(tmp_path / "x")) == ["sys/link"]
    assert not (tmp_path / "x/sys/link").is_symlink()


@pytest.mark.parametrize("target", ["..", ".", "a", "./a/", "../sys//a/", "../a", "missing"])
def test_links_that_stay_inside(target: str) -> None:
    assert stays_inside("sys", target)


def test_a_function_whose_link_leads_elsewhere_gets_no_header(tmp_path: Path) -> None:
    links = {"0000:00:00.0": Link("../../../../../etc"), "0000:00:01.0": Link("../../../a")}
    host = on_paper({"sys/a": "1\n", **{f"{DEVICES}/{name}": link for name, link in links.items()}})
    assert unpack(host, str(tmp_path / "x")) == [f"{DEVICES}/0000:00:00.0"]


def test_a_directory_that_holds_something_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    for used in (tmp_path, tmp_path / "mine"):
        with pytest.raises(FileExistsError, match="expected a new or an empty directory"):
            unpack(on_paper({"sys/a": "1\n"}), str(used))
    with pytest.raises(FileNotFoundError, match="expected a directory to write in"):
        unpack(on_paper({"sys/a": "1\n"}), str(tmp_path / "missing/x"))
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_the_live_machine_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadSource, match="record it"):
        unpack(LiveHost("/"), str(tmp_path / "x"))


class Endless(PaperHost):
    def names(self, path: str) -> list[str]:
        return ["again"] if path else ["sys"]

    def text(self, path: str, most: int = TEXT_LIMIT) -> str:  # noqa: ARG002
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)


def test_an_endless_host_ends(tmp_path: Path) -> None:
    host = Endless({}, source=Source(kind="recording", complete=True))
    assert unpack(host, str(tmp_path / "x")) == ["sys" + "/again" * 65]


def test_nothing_half_written_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topo_agent.host.unpack._ENTRIES_AT_MOST", 3)
    with pytest.raises(BadSource, match="at most 3 files"):
        unpack(on_paper({f"sys/{name}": "" for name in "abcdef"}), str(tmp_path / "x"))
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_cut_short_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topo_agent.host.unpack._FILE_BYTES", 4)
    assert unpack(on_paper({"sys/a": "123", "sys/b": "12345"}), str(tmp_path / "x")) == ["sys/b"]
