"""The tree: fits its width, counts right, and mentions every device of interest once."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.machines import MACHINES, needs_machines
from tests.paper import DEVICES, Files, bridge, function, place, topology, two_sockets
from tests.test_pci import LINK, virtual, vmd
from topo_agent.graph.build import build
from topo_agent.graph.topology import Topology
from topo_agent.host.live import LiveHost
from topo_agent.host.paper import Link
from topo_agent.ids import Ref
from topo_agent.scan import scan
from topo_agent.views.document import document
from topo_agent.views.tree import tree as draw

DMI = "sys/class/dmi/id"
WORDS = {"gpu": "GPU", "nic": "NIC", "nvme": "NVMe", "nvswitch": "NVSwitch"}


def machine_of(root: Path) -> Topology:
    return build(scan(LiveHost(str(root))))


def columns(line: str) -> int:
    """How many columns of a terminal a line takes (Unicode Standard Annex 11)."""
    return sum(
        0 if unicodedata.combining(one) else 2 if unicodedata.east_asian_width(one) in "WF" else 1 for one in line
    )


def too_wide(text: str, width: int) -> list[str]:
    return [line for line in text.split("\n") if columns(line) > width]


def short(address: str) -> str:
    return address.removeprefix("0000:")


def mentions(text: str, address: str, word: str) -> int:
    """The lines that are about a device, and not of something that belongs to it."""
    return len(re.findall(rf"(?m)(?:^|[ │├└─·]){re.escape(short(address))} {word}[0-9]*\b", text))


@needs_machines
@pytest.mark.parametrize("everything", [False, True])
@pytest.mark.parametrize("name", MACHINES)
def test_fits_100_columns(name: str, *, everything: bool, tree: Callable[[str], Path]) -> None:
    assert too_wide(draw(machine_of(tree(name)), everything=everything), 100) == []


@needs_machines
@pytest.mark.parametrize("name", MACHINES)
def test_the_tree_itself_fits_a_narrow_terminal(name: str, tree: Callable[[str], Path]) -> None:
    text = draw(machine_of(tree(name)), everything=True, width=40)
    assert too_wide(text.split("\n\n")[1], 40) == []


def test_the_headline_fits_a_narrow_terminal() -> None:
    files = virtual() | {f"{DMI}/sys_vendor": "QEMU", f"{DMI}/product_name": "Standard PC (i440FX + PIIX, 1996)"}
    assert too_wide(draw(topology(files), width=40), 40) == []


def test_the_foot_fits_a_narrow_terminal() -> None:
    """Eight kinds of diagnostics, of which six are shown."""
    files = two_sockets() | {f"{DEVICES}/no address {number}": None for number in range(8)}
    text = draw(topology(files), width=40)
    assert too_wide(text.split("\n\n")[-1], 40) == []


@needs_machines
@pytest.mark.parametrize("name", MACHINES)
def test_surroundings_fit(name: str, tree: Callable[[str], Path]) -> None:
    found = machine_of(tree(name))
    for ref in [*found.nodes][::7]:
        assert too_wide(draw(found, start=ref), 100) == []


@needs_machines
@pytest.mark.parametrize("everything", [False, True])
@pytest.mark.parametrize("name", MACHINES)
def test_every_device_of_interest_once(name: str, *, everything: bool, tree: Callable[[str], Path]) -> None:
    found = machine_of(tree(name))
    text = draw(found, everything=everything)
    physical = [one for one in found.of_kind("gpu", "nic", "nvme", "nvswitch") if one.physfn is None]
    counted = {str(one.address): mentions(text, str(one.address), WORDS[one.kind]) for one in physical}
    assert {address: count for address, count in counted.items() if count != 1} == {}


@needs_machines
@pytest.mark.parametrize("name", MACHINES)
def test_all_shows_every_function_once(name: str, tree: Callable[[str], Path]) -> None:
    found = machine_of(tree(name))
    lines = draw(found, everything=True, width=1000).split("\n")
    first = Counter(re.sub(r"^[ │├└─]*", "", line).split(" ")[0] for line in lines)
    addresses = [short(str(one.address)) for one in found.devices or ()]
    assert {one: first[one] for one in addresses if first[one] != 1} == {}


@needs_machines
@pytest.mark.parametrize("name", MACHINES)
def test_counts_are_those_of_the_document(name: str, tree: Callable[[str], Path]) -> None:
    found = machine_of(tree(name))
    said: Any = document(found)
    counts = draw(found, width=1000).split("\n")[1]

    def number(pattern: str) -> int | None:
        matched = re.search(rf"(?:^|· )([0-9]+) {pattern}", counts)
        return int(matched[1]) if matched else None

    devices = said.get("devices")
    if devices is not None:
        devices = [one for one in devices if "address" in one]  # software devices are no functions
    assert number(r"packages?\b") == (len(said["packages"]) if "packages" in said else None)
    assert number(r"NUMA nodes?\b") == (len(said["numa"]) if "numa" in said else None)
    assert number(r"PCI functions?\b") == (len(devices) if devices is not None else None)
    for kind, word in {"gpu": "GPUs?", "nic": "NICs?", "nvme": "NVMe", "nvswitch": "NVSwitch(?:es)?"}.items():
        of = [one for one in devices or () if one["kind"] == kind]
        physical = [one for one in of if "physfn" not in one]
        assert number(rf"{word}(?= |$)") == (len(physical) or None)
        virtual_ = re.search(rf"{word} \+ ([0-9]+) VF", counts)
        assert (int(virtual_[1]) if virtual_ else 0) == len(of) - len(physical)


def test_a_vf_is_counted_at_its_pf() -> None:
    text = draw(topology(virtual()))
    assert "1 NIC + 2 VFs" in text.split("\n")[1]
    (line,) = (line for line in text.split("\n") if re.search(r"1d:00\.0 NIC[0-9]* ", line))
    assert "+2 VFs" in line
    assert "1d:01.0" not in text
    assert "1d:01.0" in draw(topology(virtual()), everything=True)


def test_a_vf_whose_pf_is_not_there_is_still_shown() -> None:
    """Its PF may be hidden or have failed: a NIC must not vanish from the tree."""
    files = virtual()
    del files[f"{DEVICES}/0000:1d:00.0"]
    assert "1d:00.2" in draw(topology(files))


def test_vmd() -> None:
    text = draw(topology(vmd()))
    assert mentions(text, "10001:84:00.0", "NVMe") == 1
    assert "6f:00.5" in text


def ports(count: int) -> Files:
    """A root with one NIC below a port, and empty ports beside it."""
    files = (
        two_sockets()
        | bridge("0000:16:01.0", under="pci0000:16")
        | function("0000:17:00.0", under="pci0000:16/0000:16:01.0")
    )
    for number in range(count):
        files |= bridge(f"0000:16:{number + 2:02x}.0", under="pci0000:16")
    return files


def test_empty_ports_are_counted() -> None:
    """Issue 3, point 5. Also where the root is folded into the only thing below it."""
    assert "3 empty ports" in draw(topology(ports(3)))


@needs_machines
@pytest.mark.parametrize("name", MACHINES)
def test_all_empty_ports_are_counted(name: str, tree: Callable[[str], Path]) -> None:
    """Of roots that are shown at all."""
    found = machine_of(tree(name))
    text = draw(found, width=10_000)
    shown = {one.ref for one in found.roots or () if f"{one.name}" in text}
    empty = [
        one for one in found.of_kind("bridge") if not found.children(one.ref) and shown & set(found.ancestors(one.ref))
    ]
    assert sum(int(number) for number in re.findall(r"([0-9]+) empty port", text)) == len(empty)


def test_unknown_is_said() -> None:
    text = draw(topology(two_sockets() | function("0000:17:00.0", under="pci0000:16")))
    assert "NUMA node unknown (firmware says -1)" in text


def test_a_function_elsewhere_than_its_root_says_so() -> None:
    files = two_sockets() | bridge("0000:16:00.0", under="pci0000:16", numa_node="0\n")
    files |= function("0000:17:00.0", under="pci0000:16/0000:16:00.0", numa_node="1\n")
    (line,) = (line for line in draw(topology(files)).split("\n") if "17:00.0" in line)
    assert "NUMA 1" in line


def test_nothing() -> None:
    assert draw(topology({})).split("\n")[0] == "A machine that does not say its name"


LONG = "tree._headline is not cut, and tree._draw counts signs and not columns"


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("x" * 400, id="long"),
        pytest.param("浪潮" * 60, id="wide"),
        pytest.param("é" * 300, id="accents"),
        pytest.param("\u0301" * 50, id="marks"),
        pytest.param("🖥" * 80, id="emoji"),
        pytest.param("PowerEdge XE9680 " * 12, id="words"),
    ],
)
def test_a_long_name_fits(name: str) -> None:
    """Inspur writes its name in Chinese: two columns for each sign."""
    files = two_sockets() | {
        f"{DMI}/sys_vendor": name,
        f"{DMI}/product_name": name,
        "proc/cpuinfo": f"model name : {name}\n",
    }
    assert too_wide(draw(topology(files)), 100) == []


def test_the_counts_of_a_large_machine_fit() -> None:
    """Two packages, SNC4, and every kind of device with VFs: a real server, and the widest headline."""
    files = two_sockets()
    kinds = {
        "gpu": ("0x030200", "0x10de"),
        "nic": ("0x020000", "0x15b3"),
        "nvme": ("0x010802", "0x144d"),
        "nvswitch": ("0x068000", "0x10de"),
    }
    for base, (class_, vendor) in zip(range(0x10, 0x90, 0x20), kinds.values(), strict=True):
        for bus in range(base, base + 12):
            files |= function(f"0000:{bus:02x}:00.0", under=f"pci0000:{bus:02x}", class_=class_, vendor=vendor)
            for number in range(1, 8):
                address = f"0000:{bus:02x}:00.{number}"
                files |= function(address, under=f"pci0000:{bus:02x}", class_=class_, vendor=vendor)
                files |= {f"sys/devices/pci0000:{bus:02x}/{address}/physfn": Link(f"../0000:{bus:02x}:00.0")}
    assert too_wide(draw(topology(files)), 100) == []


def test_a_deep_tree_fits() -> None:
    files, path = two_sockets(), "pci0000:00"
    for bus in range(45):
        files |= bridge(f"0000:{bus:02x}:00.0", under=path)
        path += f"/0000:{bus:02x}:00.0"
    files |= function("0000:ff:00.0", under=path)
    for everything in (False, True):
        text = draw(topology(files), everything=everything)
        assert too_wide(text, 100) == []
        assert "ff:00.0" in text


DIRTY = "\x1b[2Jx\x07\x9b"


OBEYED = "tree prints escapes of cpuinfo, hypervisor, paths and names as they are"


@pytest.mark.parametrize(
    "files",
    [
        pytest.param({f"{DMI}/sys_vendor": DIRTY, f"{DMI}/product_name": DIRTY}, id="dmi"),
        pytest.param({"proc/cpuinfo": f"model name : {DIRTY}\nflags : hypervisor\n"}, id="cpuinfo"),
        pytest.param({"sys/hypervisor/type": f"{DIRTY}\n"}, id="hypervisor"),
        pytest.param({f"{DEVICES}/{DIRTY}": Link("../../../devices/x")}, id="name"),
        pytest.param(function("0000:17:00.0", under=f"{DIRTY}/pci0000:16"), id="path"),
        pytest.param(
            function(
                "0000:17:00.0",
                under="pci0000:16",
                files={"numa_node": f"{DIRTY}\n", "class": DIRTY, "uevent": f"PCI_CLASS={DIRTY}\n"},
            ),
            id="attributes",
        ),
        pytest.param({f"sys/bus/pci/slots/{DIRTY}/address": DIRTY}, id="slot"),
        pytest.param({"sys/devices/system/cpu/online": DIRTY}, id="online"),
    ],
)
@pytest.mark.parametrize("everything", [False, True])
def test_no_control_characters(files: Files, *, everything: bool) -> None:
    """A recording comes from somebody else, and a terminal obeys what it prints."""
    text = draw(topology(two_sockets() | files), everything=everything)
    assert [line for line in text.split("\n") if not line.isprintable()] == []


@pytest.mark.parametrize(
    "files",
    [
        {f"{DMI}/sys_vendor": "\ud800"},
        {"proc/cpuinfo": "model name : \ud800\n"},
        function("0000:17:00.0", under="\ud800/pci0000:16"),
    ],
)
def test_a_tree_can_be_printed(files: Files) -> None:
    """Half of a surrogate pair has no bytes."""
    assert draw(topology(two_sockets() | files)).encode()


@needs_machines
@pytest.mark.parametrize("name", ["dell-xe9680-snc2", "dgx-a100"])
def test_colour_changes_nothing_but_colour(name: str, tree: Callable[[str], Path]) -> None:
    found = machine_of(tree(name))
    coloured = draw(found, color=True)
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == draw(found)


def test_what_went_wrong_is_at_the_foot() -> None:
    files = two_sockets() | function("0000:17:00.0", under="pci0000:16", files=LINK | {"max_link_width": "7\n"})
    text = draw(topology(files))
    assert "max_link_width" in text.split("\n\n")[-1]


def test_quiet_says_nothing_of_what_went_wrong() -> None:
    """`-q` asks for no diagnostics: not for their number either."""
    files = two_sockets() | function("0000:17:00.0", under="pci0000:16", files=LINK | {"max_link_width": "7\n"})
    assert "diagnostics" not in draw(topology(files), diagnostics=0)


def test_surroundings_of_one_device() -> None:
    text = draw(topology(vmd()), start=Ref("pci", "10001:80:07.0"))
    assert [word in text for word in ("pci0000:6f", "6f:00.5", "10001:80:07.0", "10001:84:00.0")] == [True] * 4
    assert "package" not in text
    assert place(topology(vmd()), "10001:80:07.0").role is not None
