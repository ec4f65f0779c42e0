"""NVMe drives and other disks: drivers/nvme/host/{sysfs,multipath}.c and traps 86."""

from __future__ import annotations

import pytest

from tests.paper import NVME, Files, disk, drive, function, grown, inventory, place, topology
from topo_agent.diagnostics import Unknown
from topo_agent.facts import Disk, Inventory, Nvme
from topo_agent.host.paper import Entry, Failure, Link
from topo_agent.ids import PciAddress

SLOT = "pci0000:16/0000:16:01.0/0000:17:00.0"
BOX = grown("pci0000:16/16:01.0/17:00.0", NVME) | grown("pci0000:16/16:03.0/18:00.0", NVME)
OTHER = "pci0000:16/0000:16:03.0/0000:18:00.0"
HERE = PciAddress(0, 0x17, 0, 0)


def drives(files: Files) -> dict[str, Nvme]:
    return {one.name: one for one in inventory(files).nvme}


def notes(found: Inventory) -> list[str]:
    return [str(one) for one in found.diagnostics if "nvme" in one.subject]


def test_a_drive() -> None:
    found = inventory(BOX | drive("nvme0", f"{SLOT}/nvme") | disk("nvme0n1", f"{SLOT}/nvme/nvme0"))
    (one,) = found.nvme
    assert (one.function, one.transport, one.namespaces) == (HERE, "pcie", ("nvme0n1",))
    assert (one.model, one.serial) == ("SAMSUNG MZWLJ3T8HBLS-00007", "SNVME0")
    assert found.disks == ()


def test_partitions_are_no_disks() -> None:
    files = BOX | drive("nvme0", f"{SLOT}/nvme") | disk("nvme0n1", f"{SLOT}/nvme/nvme0")
    files |= disk("nvme0n1p1", f"{SLOT}/nvme/nvme0/nvme0n1")
    assert drives(files)["nvme0"].namespaces == ("nvme0n1",)


def subsystem(number: int, controllers: tuple[str, ...], heads: tuple[str, ...]) -> Files:
    place = f"virtual/nvme-subsystem/nvme-subsys{number}"
    files: Files = {f"sys/class/nvme-subsystem/nvme-subsys{number}": Link(f"../../devices/{place}")}
    files[f"sys/devices/{place}/subsysnqn"] = "nqn.2014-08.org.nvmexpress:1\n"
    files |= {f"sys/devices/{place}/{one}": Link(f"../../../{SLOT}/nvme/{one}") for one in controllers}
    for head in heads:
        files |= disk(head, place)
    return files


def test_multipath() -> None:
    """Traps 86: checkbox DGX A100, nvme0c0n1 is a path and nvme0n1 the disk, which hangs below the subsystem."""
    files = BOX | drive("nvme0", f"{SLOT}/nvme", {"nvme0c0n1/size": "1\n"}) | subsystem(0, ("nvme0",), ("nvme0n1",))
    one = drives(files)["nvme0"]
    assert (one.namespaces, one.path_names) == (("nvme0n1",), ("nvme0c0n1",))


def test_the_number_of_a_disk_is_that_of_its_subsystem() -> None:
    """multipath.c: nvme<subsystem>c<controller>n<head>. Controllers and subsystems are counted apart."""
    files = BOX | drive("nvme0", f"{SLOT}/nvme", {"nvme1c0n1/size": "1\n"})
    files |= drive("nvme1", f"{OTHER}/nvme", {"nvme0c1n1/size": "1\n"})
    files |= subsystem(1, ("nvme0",), ("nvme1n1",)) | subsystem(0, ("nvme1",), ("nvme0n1",))
    found = drives(files)
    assert (found["nvme0"].function, found["nvme0"].namespaces) == (HERE, ("nvme1n1",))
    assert (found["nvme1"].function, found["nvme1"].namespaces) == (PciAddress(0, 0x18, 0, 0), ("nvme0n1",))


def test_disks_of_hidden_paths() -> None:
    """A recording without class/nvme-subsystem: the name of the path tells the disk, where there is such a disk."""
    files = BOX | drive("nvme0", f"{SLOT}/nvme", {f"nvme3c0n{head}/size": "1\n" for head in (2, 12, 99)})
    files |= disk("nvme3n2", "virtual/nvme-subsystem/nvme-subsys3") | disk("nvme3n12", "virtual/block")
    files |= disk("nvme3n1", "virtual/block")
    assert drives(files)["nvme0"].namespaces == ("nvme3n12", "nvme3n2")


def test_two_controllers_of_one_disk() -> None:
    files = BOX | drive("nvme0", f"{SLOT}/nvme", {"nvme0c0n1/size": "1\n"})
    files |= drive("nvme1", f"{OTHER}/nvme", {"nvme0c1n1/size": "1\n"})
    files |= subsystem(0, ("nvme0", "nvme1"), ("nvme0n1",))
    assert [one.namespaces for one in drives(files).values()] == [("nvme0n1",), ("nvme0n1",)]


def test_across_a_network() -> None:
    remote: Files = {"transport": "tcp\n", "address": "traddr=192.0.2.7,trsvcid=4420\n"}
    one = drives(BOX | drive("nvme2", "virtual/nvme-fabrics/ctl", remote))["nvme2"]
    assert (one.function, one.transport, one.remote) == (None, "tcp", "traddr=192.0.2.7,trsvcid=4420")


def test_a_kernel_without_class_nvme() -> None:
    """Before 4.4 the disk hangs right below the function and stands for its controller."""
    files = BOX | disk("nvme0n1", SLOT) | disk("nvme0n2", SLOT) | disk("nvme1n1", OTHER)
    found = drives(files)
    assert found["nvme0"].namespaces == ("nvme0n1", "nvme0n2")
    assert {name: one.function for name, one in found.items()} == {"nvme0": HERE, "nvme1": PciAddress(0, 0x18, 0, 0)}


def test_a_controller_without_disks() -> None:
    """Issue 4, point 4: half bound."""
    found = inventory(BOX | drive("nvme0", f"{SLOT}/nvme"))
    assert [(one.name, one.namespaces) for one in found.nvme] == [("nvme0", ())]
    assert notes(found) == []


@pytest.mark.parametrize("field", ["model", "serial", "firmware_rev", "transport"])
def test_one_bad_field_is_one_note(field: str) -> None:
    found = inventory(BOX | drive("nvme0", f"{SLOT}/nvme", {field: Failure(5)}) | disk("nvme0n1", f"{SLOT}/nvme/nvme0"))
    assert [(one.name, one.function, one.namespaces) for one in found.nvme] == [("nvme0", HERE, ("nvme0n1",))]
    assert len(notes(found)) == 1


def test_other_disks() -> None:
    """A virtio disk and its partitions; a RAM disk is on no function."""
    virtio = function("0000:00:04.0", under="pci0000:00", class_="0x010000", vendor="0x1af4", device="0x1001")
    place = "pci0000:00/0000:00:04.0/virtio1/block"
    files = virtio | disk("vda", place) | disk("vda1", f"{place}/vda") | disk("vda14", f"{place}/vda")
    files |= disk("ram0", "virtual/block")
    assert inventory(files).disks == (Disk("vda", PciAddress(0, 0, 4, 0)),)


def test_disks_whose_names_begin_alike() -> None:
    """sda and sdaa are two disks."""
    hba = function("0000:00:05.0", under="pci0000:00", class_="0x010700", vendor="0x1000", device="0x00e6")
    files = hba | disk("sda", "pci0000:00/0000:00:05.0") | disk("sda1", "pci0000:00/0000:00:05.0/sda")
    files |= disk("sdaa", "pci0000:00/0000:00:05.0") | disk("sdaa1", "pci0000:00/0000:00:05.0/sdaa")
    assert [one.name for one in inventory(files).disks] == ["sda", "sdaa"]


@pytest.mark.parametrize(("name", "field"), [("model", "model"), ("serial", "uid")])
@pytest.mark.parametrize(
    ("said", "reason"),
    [(Failure(5), Unknown.UNREADABLE), (Failure(13), Unknown.NOT_PERMITTED), ("    \n", Unknown.FIRMWARE_SILENT)],
)
def test_what_a_drive_does_not_tell_has_a_reason(name: str, field: str, said: Entry, reason: Unknown) -> None:
    """drivers/nvme/host/sysfs.c prints model and serial without the blanks behind; a drive may have blanks only."""
    one = place(topology(BOX | drive("nvme0", f"{SLOT}/nvme", {name: said})), "0000:17:00.0")
    assert dict(one.unknown)[field] is reason


@pytest.mark.parametrize("folder", ["nvme", "nvme-subsystem", "block"])
def test_a_class_link_that_is_none_is_one_note(folder: str) -> None:
    found = inventory(BOX | drive("nvme0", f"{SLOT}/nvme") | {f"sys/class/{folder}/nvme7": "rubbish\n"})
    assert [one.name for one in found.nvme] == ["nvme0"]
    assert [(one.level.value, one.subject) for one in found.diagnostics] == [("lost", f"sys/class/{folder}/nvme7")]
