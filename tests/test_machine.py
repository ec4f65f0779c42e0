"""What a machine calls itself: placeholders, virtual machines, and strings that firmware left dirty."""

from __future__ import annotations

import pytest

from tests.paper import Files, inventory, machine
from topo_agent.facts import Machine
from topo_agent.graph.build import build
from topo_agent.host import Json
from topo_agent.scan import scan

DMI = "sys/class/dmi/id"


def read(files: Files) -> Machine:
    return inventory(files).machine


def intel(flags: str = "fpu vme de") -> Files:
    block = f"processor : 0\nmodel name\t: Intel(R) Xeon(R) Platinum 8480+\nflags\t\t: {flags}\n\n"
    return {"proc/cpuinfo": block + block.replace("8480+", "of another kind")}


def test_a_machine_of_metal() -> None:
    found = read(
        intel()
        | {
            f"{DMI}/sys_vendor": "Dell Inc.\n",
            f"{DMI}/product_name": "PowerEdge XE9680\n",
            f"{DMI}/board_name": "0ABCDE\n",
            f"{DMI}/bios_version": "2.1.4\n",
            "proc/sys/kernel/osrelease": "5.14.0-427.el9.x86_64\n",
        }
    )
    assert (found.vendor, found.product, found.board, found.bios_version) == (
        "Dell Inc.",
        "PowerEdge XE9680",
        "0ABCDE",
        "2.1.4",
    )
    assert (found.kernel, found.cpu_model) == ("5.14.0-427.el9.x86_64", "Intel(R) Xeon(R) Platinum 8480+")
    assert (found.virtual, found.hypervisor) == (False, None)


def test_nothing_recorded() -> None:
    found = read({})
    assert {found.vendor, found.product, found.kernel, found.cpu_model, found.virtual, found.architecture} == {None}


@pytest.mark.parametrize(
    "text", ["", "\n", " \n", "To Be Filled By O.E.M.\n", "System Product Name\n", "Default string\n", "N/A\n", "\0"]
)
def test_placeholders_are_unknown(text: str) -> None:
    assert read({f"{DMI}/product_name": text, f"{DMI}/sys_vendor": text}).product is None


@pytest.mark.parametrize(
    ("vendor", "flags", "virtual", "hypervisor"),
    [
        ("QEMU", "fpu hypervisor", True, "qemu"),
        ("QEMU", "", True, "qemu"),  # Arm has no such flag
        ("Amazon EC2", "fpu hypervisor", True, None),
        ("Amazon EC2", "fpu", False, None),  # bare metal is sold under the same name
        ("Microsoft Corporation", "fpu", False, None),  # a Surface, or a host of Azure
        ("VMware, Inc.", "fpu hypervisor", True, "vmware"),
        ("Dell Inc.", "fpu", False, None),
        ("HUAWEI", "", None, None),  # nothing tells
    ],
)
def test_virtual_machines(vendor: str, flags: str, *, virtual: bool | None, hypervisor: str | None) -> None:
    found = read({f"{DMI}/sys_vendor": f"{vendor}\n", "proc/cpuinfo": f"processor : 0\nflags : {flags}\n"})
    assert (found.virtual, found.hypervisor) == (virtual, hypervisor)


def test_xen() -> None:
    """Documentation/ABI/stable/sysfs-hypervisor-xen."""
    found = read(intel() | {"sys/hypervisor/type": "xen\n"})
    assert (found.virtual, found.hypervisor) == (True, "xen")


def test_a_flag_is_a_word() -> None:
    assert read(intel("fpu nohypervisor hypervisor_x")).virtual is False


def test_control_characters_do_not_pass() -> None:
    """SMBIOS strings are bytes that a manufacturer typed; a terminal would obey them."""
    found = read({f"{DMI}/sys_vendor": "Ev\x1b[31mil\x07\x9b Inc.\n", f"{DMI}/product_name": "a\u202eb\x85c\n"})
    assert found.vendor == "Ev[31mil Inc."
    assert found.product == "abc"


def test_a_model_name_has_no_control_characters() -> None:
    model = read({"proc/cpuinfo": "model name : Xe\x1b[2Jon\x07\n"}).cpu_model
    assert model is None or model.isprintable()


@pytest.mark.parametrize("path", ["sys/hypervisor/type", "proc/sys/kernel/osrelease"])
def test_names_have_no_control_characters(path: str) -> None:
    found = read({path: "x\x1b[2J\x9b\n"})
    assert all(word is None or word.isprintable() for word in (found.hypervisor, found.kernel))


@pytest.mark.parametrize(
    "files",
    [{"proc/sys/kernel/osrelease": "\n"}, {"sys/hypervisor/type": "\n"}, {"proc/cpuinfo": "model name\t:\nflags :\n"}],
)
def test_an_empty_answer_is_unknown_and_not_empty(files: Files) -> None:
    """contract.md, section 4: never "" for unknown."""
    found = read(files)
    assert "" not in (found.hypervisor, found.kernel, found.cpu_model)


def test_a_long_name_is_cut() -> None:
    assert len(read({f"{DMI}/product_name": "x" * 4000}).product or "") <= 120


@pytest.mark.parametrize("name", ["sys_vendor", "product_name", "board_name", "bios_version"])
def test_a_file_that_fails_costs_itself(name: str) -> None:
    files: Files = {f"{DMI}/{one}": f"{one}\n" for one in ("sys_vendor", "product_name", "board_name", "bios_version")}
    found = scan(machine(files).failing(f"{DMI}/{name}", "EACCES"))
    said = [found.machine.vendor, found.machine.product, found.machine.board, found.machine.bios_version]
    assert said.count(None) == 1
    assert [one.subject for one in found.diagnostics if one.code == "file_unreadable"] == [f"{DMI}/{name}"]


@pytest.mark.parametrize(
    ("answer", "cpus"),
    [
        ({"allowed_cpus": [0, 1, 5]}, {0, 1, 5}),
        ({"allowed_cpus": []}, set()),
        ({}, None),
        ({"allowed_cpus": [-1]}, None),
        ({"allowed_cpus": "0-3"}, None),
        ([], None),
    ],
)
def test_allowed_cpus(answer: Json, cpus: set[int] | None) -> None:
    assert scan(machine({}, documents={"process": answer})).allowed_cpus == cpus


def test_allowed_cpus_are_no_structure() -> None:
    one, other = (
        scan(machine({}, documents={"process": {"allowed_cpus": [number], "architecture": "aarch64"}}))
        for number in (0, 1)
    )
    assert one.machine.architecture == "aarch64"
    assert one == other
    assert build(one) == build(other)
