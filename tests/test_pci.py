"""PCI functions of small machines: what the kernel prints, what it leaves out, and where a function hangs."""

from __future__ import annotations

import tracemalloc

import pytest

from tests.paper import DEVICES, Files, bridge, fact, function, inventory, machine, place, topology, two_sockets
from topo_agent.diagnostics import Unknown
from topo_agent.facts import PcieLink
from topo_agent.host.paper import Entry, Failure, Link
from topo_agent.ids import PciAddress
from topo_agent.scan import scan

LINK = {
    "max_link_speed": "32.0 GT/s PCIe\n",
    "max_link_width": "16\n",
    "current_link_speed": "2.5 GT/s PCIe\n",
    "current_link_width": "16\n",
}
GPU = "0000:17:00.0"
AT = f"sys/devices/pci0000:16/{GPU}"


def gpu(**files: str | None) -> Files:
    return function(GPU, under="pci0000:16", class_="0x030200", vendor="0x10de", device="0x2330", files=files)


def test_no_pci_recorded() -> None:
    assert inventory({"sys/devices/system/cpu/cpu0": None}).pci is None


@pytest.mark.parametrize(
    ("printed", "code"),
    [("20000", 0x020000), ("60400", 0x060400), ("10802", 0x010802), ("30200", 0x030200), ("C0330", 0x0C0330)],
)
def test_the_class_in_a_uevent_has_no_zero_in_front(printed: str, code: int) -> None:
    """Traps 59."""
    files = gpu(uevent=f"PCI_CLASS={printed}\nPCI_ID=10DE:20B0\n", **{"class": None, "vendor": None, "device": None})
    found = fact(inventory(files), GPU)
    assert (found.class_code, found.vendor, found.device, found.driver) == (code, 0x10DE, 0x20B0, None)


def test_ids_of_the_subsystem_and_the_driver() -> None:
    event = "DRIVER=mlx5_core\nPCI_CLASS=20000\nPCI_ID=15B3:1021\nPCI_SUBSYS_ID=15B3:0041\n"
    found = fact(inventory(gpu(uevent=event)), GPU)
    assert (found.subvendor, found.subdevice, found.driver) == (0x15B3, 0x0041, "mlx5_core")


@pytest.mark.parametrize(
    "event", [None, "", "\0", "rubbish\n", "PCI_CLASS=(efault)\nPCI_ID=10DE\n", "PCI_CLASS=\nPCI_ID=:\n"]
)
def test_attributes_where_the_uevent_does_not_tell(event: str | None) -> None:
    """Traps 29, 30: old and synthetic trees have `class` and little else."""
    found = fact(inventory(gpu(uevent=event)), GPU)
    assert (found.class_code, found.vendor, found.device) == (0x030200, 0x10DE, 0x2330)


def test_the_driver_by_its_link_where_there_is_no_uevent() -> None:
    files = gpu(uevent=None) | {f"{AT}/driver": Link("../../../bus/pci/drivers/nvidia")}
    assert fact(inventory(files), GPU).driver == "nvidia"


@pytest.mark.parametrize(
    ("event", "attributes"),
    [
        ("PCI_CLASS=1030200\nPCI_ID=10DE:2330\n", {}),
        ("PCI_CLASS=30200\nPCI_ID=110DE:2330\n", {}),
        ("PCI_CLASS=30200\nPCI_ID=10DE:12330\n", {}),
        ("PCI_CLASS=30200\nPCI_ID=10DE:2330\nPCI_SUBSYS_ID=10DE:12330\n", {}),
        (None, {"vendor": "0x110de\n"}),
    ],
)
def test_numbers_that_do_not_fit_their_registers(event: str | None, attributes: dict[str, str]) -> None:
    """PCI Local Bus Specification 3.0, section 6.1: 24 bits of class, 16 of each id. More is no id."""
    found = fact(inventory(gpu(uevent=event, **attributes)), GPU)
    assert (found.class_code or 0) <= 0xFFFFFF
    for number in (found.vendor, found.device, found.subvendor, found.subdevice):
        assert (number or 0) <= 0xFFFF


def test_a_link() -> None:
    found = inventory(gpu(**LINK))
    assert fact(found, GPU).link == PcieLink(max_gts=32.0, max_width=16)
    ((address, state),) = found.links_now
    assert (str(address), state.gts, state.width) == (GPU, 2.5, 16)  # traps 62: idle


@pytest.mark.parametrize(
    "says",
    [
        {
            "max_link_speed": "Unknown\n",
            "max_link_width": "255\n",
            "current_link_speed": "Unknown\n",
            "current_link_width": "0\n",
        },
        {"max_link_speed": "Unknown\n", "max_link_width": "0\n"},
        {"max_link_speed": "16.0 GT/s PCIe\n", "max_link_width": "63\n"},
        {"max_link_speed": "16.0 GT/s PCIe\n", "max_link_width": "255\n"},
    ],
)
def test_no_link(says: dict[str, str]) -> None:
    """Traps 63 (Intel 8086:2021 in NFD rootfs-1), 69 and 70."""
    found = inventory(gpu(**says))
    assert fact(found, GPU).link is None
    assert found.links_now == ()
    assert not found.diagnostics


@pytest.mark.parametrize("text", ["", "(efault)", "x16", "7\n", "0-3"])
def test_a_garbled_link_costs_the_link(text: str) -> None:
    """Traps 25, 65."""
    found = inventory(gpu(**(LINK | {"max_link_width": text})))
    assert fact(found, GPU).link is None
    assert fact(found, GPU).device == 0x2330
    assert {one.subject for one in found.diagnostics} == {f"{AT}/max_link_width"}


def test_a_lost_link_keeps_its_maximum() -> None:
    """Traps 70: the width reads 63 now; what the link could do at best is structure and stays."""
    found = inventory(gpu(**(LINK | {"current_link_speed": "Unknown\n", "current_link_width": "63\n"})))
    assert fact(found, GPU).link == PcieLink(max_gts=32.0, max_width=16)
    assert found.links_now == ()


def asked(files: Files) -> set[str]:
    host = machine(files)
    seen: set[str] = set()
    answer = host.text

    def text(path: str, most: int = 65536) -> str:
        seen.add(path)
        return answer(path, most)

    host.text = text  # type: ignore[method-assign]
    scan(host)
    return {path.rpartition("/")[2] for path in seen if path.startswith(AT)}


def test_a_sleeping_device_is_not_asked_what_its_link_does() -> None:
    """performance.md, rule 9: reading current_link_* may wake it."""
    sleeping = asked(gpu(**LINK) | {f"{AT}/power/runtime_status": "suspended\n"})
    assert not {"current_link_speed", "current_link_width"} & sleeping
    awake = asked(gpu(**LINK) | {f"{AT}/power/runtime_status": "active\n"})
    assert {"current_link_speed", "current_link_width"} <= awake


def test_what_is_dear_stays_shut() -> None:
    """performance.md, rule 1."""
    files = gpu(**LINK) | {
        f"{AT}/{name}": "x" for name in ("config", "vpd", "rom", "resource", "resource0", "resource1_wc")
    }
    assert not {"config", "vpd", "rom", "resource", "resource0", "resource1_wc"} & asked(files)


def virtual() -> Files:
    """Traps 52: the XE9680's NIC 1d:00.0 and two of its 32 VFs, the second on the next device number."""
    under = "pci0000:16/0000:16:01.0"
    pf = function("0000:1d:00.0", under=under, files=LINK | {"sriov_totalvfs": "32\n", "sriov_numvfs": "2\n"})
    vfs: Files = {}
    for address in ("0000:1d:00.2", "0000:1d:01.0"):
        vfs |= function(address, under=under, device="0x101e", files=LINK | {"physfn": Link("../0000:1d:00.0")})
    return two_sockets() | bridge("0000:16:01.0", under="pci0000:16") | pf | vfs


def test_a_vf_belongs_to_the_pf_of_its_link() -> None:
    """Not to the function whose number is its own with a zero at the end: that is no PF, or itself."""
    found = inventory(virtual())
    assert [fact(found, address).physfn for address in ("0000:1d:00.2", "0000:1d:01.0")] == [
        PciAddress(0, 0x1D, 0, 0)
    ] * 2
    assert fact(found, "0000:1d:00.0").physfn is None
    assert (fact(found, "0000:1d:00.0").sriov_total, fact(found, "0000:1d:00.0").sriov_enabled) == (32, 2)


def test_the_link_of_a_vf_is_its_pfs() -> None:
    """Traps 69."""
    assert fact(inventory(virtual()), "0000:1d:01.0").link is None


@pytest.mark.parametrize(
    "target", ["../0000:1d:00.0/", "../../../devices/x/rubbish", "rubbish", "/0000:1d:00.0", "../" * 20]
)
def test_a_strange_physfn_never_ends_the_scan(target: str) -> None:
    path = "sys/devices/pci0000:16/0000:16:01.0/0000:1d:00.2/physfn"
    found = inventory(virtual() | {path: Link(target)})
    assert len(found.pci or ()) == 4
    assert fact(found, "0000:1d:00.2").physfn in (None, PciAddress(0, 0x1D, 0, 0))


VMD = "pci0000:6f/0000:6f:00.5/pci10001:80/10001:80:07.0"


def vmd() -> Files:
    """Traps 33: `With_VRAID` of canonical/checkbox."""
    return (
        two_sockets()
        | function(
            "0000:6f:00.5", under="pci0000:6f", class_="0x010400", vendor="0x8086", device="0x28c0", numa_node="1\n"
        )
        | bridge("10001:80:07.0", under="pci0000:6f/0000:6f:00.5/pci10001:80")
        | function("10001:84:00.0", under=VMD, class_="0x010802", vendor="0x8086", device="0x0b60")
    )


def test_vmd() -> None:
    """pairing.md, section 2: one root, the outer one; the VMD endpoint is the parent of the inner bus."""
    found = topology(vmd())
    assert [one.name for one in found.roots or ()] == ["pci0000:6f"]
    drive = place(found, "10001:84:00.0")
    assert [str(one) for one in found.ancestors(drive.ref)] == [
        "pci:10001:80:07.0",
        "pci:0000:6f:00.5",
        "root:pci0000:6f",
    ]
    assert (drive.kind, drive.numa_node, drive.sources) == ("nvme", 1, (("numa_node", "bridge"),))


def test_a_domain_of_32_bits() -> None:
    """Traps 31: hwloc 2pa-pcidomain32bits, whose links end in a slash."""
    files = function("10000:00:04.0", under="pci10000:00") | {
        f"{DEVICES}/10000:00:04.0": Link("../../../devices/pci10000:00/10000:00:04.0/")
    }
    found = fact(inventory(files), "10000:00:04.0")
    assert found.address.domain == 0x10000
    assert found.path == "sys/devices/pci10000:00/10000:00:04.0"
    assert [one.name for one in topology(files).roots or ()] == ["pci10000:00"]


def test_roots_below_a_vmbus_do_not_merge() -> None:
    """Traps 34: each passed-through device of Azure has a root of its own, and two may be called alike."""
    bus = "LNXSYSTM:00/LNXSYBUS:00/ACPI0004:00/VMBUS:00"
    first, second = f"{bus}/47505500-0001/pci0001:00", f"{bus}/47505500-0002/pci0001:00"
    files = function("0001:00:00.0", under=first) | function("0001:00:02.0", under=second)
    found = topology(two_sockets() | files)
    assert sorted(one.name for one in found.roots or ()) == [first, second]
    assert place(found, "0001:00:00.0").root != place(found, "0001:00:02.0").root


def test_a_root_below_a_platform() -> None:
    """dra.md, section 6: Arm and Jetson."""
    found = topology(function("0000:00:00.0", under="platform/soc/fc000000.pcie/pci0000:00", class_="0x060400"))
    assert [one.name for one in found.roots or ()] == ["platform/soc/fc000000.pcie/pci0000:00"]


def test_plain_directories() -> None:
    """Traps 30: nvidiagpunumanodes and NFD rootfs-1 have directories instead of links: the parent is unknown."""
    files: Files = {
        f"{DEVICES}/{GPU}/class": "0x030200\n",
        f"{DEVICES}/{GPU}/vendor": "0x10de\n",
        f"{DEVICES}/{GPU}/numa_node": "1\n",
    }
    found = topology(two_sockets() | files)
    one = place(found, GPU)
    assert (one.kind, one.root, one.parent, one.numa_node) == ("gpu", None, None, 1)
    assert {field for field, _ in one.unknown} >= {"parent", "pcie_root"}
    assert found.roots == ()


@pytest.mark.parametrize(
    "target",
    [
        f"/sys/devices/pci0000:16/{GPU}",
        "../../../devices/pci0000:16/0000:18:00.0",
        f"../../../../../{GPU}",
        f"../../class/{GPU}",
        "",
    ],
)
def test_links_that_no_kernel_writes(target: str) -> None:
    found = topology(two_sockets() | gpu() | {f"{DEVICES}/{GPU}": Link(target)})
    assert place(found, GPU).root is None


@pytest.mark.parametrize(
    "name", ["rubbish", "0000:17:00", "0000:17:20.0", "0000:17:00.8", "123456789:17:00.0", "٠000:17:00.0"]
)
def test_a_name_that_is_no_address_costs_itself(name: str) -> None:
    found = inventory(two_sockets() | gpu() | {f"{DEVICES}/{name}": Link("../../../devices/x")})
    assert [str(one.address) for one in found.pci or ()] == [GPU]
    assert [(one.level.value, one.code) for one in found.diagnostics] == [("lost", "device_unreadable")]


def test_the_same_function_in_several_domains() -> None:
    """Traps 60: HPE EX255a, four MI300A that are all 02:00.0."""
    files: Files = {}
    for domain in range(4):
        files |= function(f"{domain:04x}:02:00.0", under=f"pci{domain:04x}:00", class_="0x120000", vendor="0x1002")
    assert len(topology(files).of_kind("gpu")) == 4


def test_functions_are_sorted_by_bus() -> None:
    files: Files = {}
    for address in ("10000:00:00.0", "0000:ff:00.0", "0000:0a:00.1", "0000:0a:00.0", "fffe:00:00.0"):
        files |= function(address, under="pci0000:00")
    assert [str(one.address) for one in inventory(files).pci or ()] == [
        "0000:0a:00.0", "0000:0a:00.1", "0000:ff:00.0", "fffe:00:00.0", "10000:00:00.0",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "directory",
    [
        "sys/devices/pci0000:16/pci_bus/0000:16",
        AT,
        "sys/bus/pci/slots",
    ],
)
def test_a_directory_that_fails_costs_what_it_tells(directory: str) -> None:
    files = (
        two_sockets()
        | gpu()
        | function("0000:18:00.0", under="pci0000:16")
        | ({} if directory == AT else {directory: None})
    )
    found = scan(machine(files).failing(directory, "EACCES"))
    assert "0000:18:00.0" in [str(one.address) for one in found.pci or ()]


def test_a_link_that_cannot_be_read_costs_one_device() -> None:
    """host.link raises what readlink says; each other function is still there."""
    host = machine(two_sockets() | gpu() | function("0000:18:00.0", under="pci0000:16"))
    answer = host.link

    def link(path: str) -> str | None:
        if path == f"{DEVICES}/{GPU}":
            raise OSError(5, "Input/output error", path)
        return answer(path)

    host.link = link  # type: ignore[method-assign]
    found = scan(host)
    assert "0000:18:00.0" in [str(one.address) for one in found.pci or ()]
    assert GPU in str(found.diagnostics)


@pytest.mark.parametrize(
    ("address", "named"),
    [
        ("0000:17:00\n", "4"),
        ("0000:17:00", "CPU1 SLOT2"),
        ("0000:17\n", "7"),
    ],
)
def test_slots(address: str, named: str) -> None:
    """drivers/pci/slot.c address_read_file: with a device number, or the bus alone where a slot is a whole bus."""
    files = gpu() | {f"sys/bus/pci/slots/{named}/address": address}
    assert place(topology(files), GPU).slot == named


@pytest.mark.parametrize("address", ["", "rubbish", "0000:99:00"])
def test_slots_of_nothing(address: str) -> None:
    files = gpu() | {"sys/bus/pci/slots/1/address": address}
    assert place(topology(files), GPU).slot is None


def test_iommu_group() -> None:
    files = gpu() | {f"{AT}/iommu_group": Link("../../../kernel/iommu_groups/42")}
    assert fact(inventory(files), GPU).iommu_group == 42


@pytest.mark.parametrize("target", ["../../../kernel/iommu_groups/٤٢", "../../../kernel/iommu_groups/-1", "x"])
def test_no_iommu_group(target: str) -> None:
    """Traps 24."""
    assert fact(inventory(gpu() | {f"{AT}/iommu_group": Link(target)}), GPU).iommu_group is None


def test_local_lists_take_little_memory() -> None:
    """A recording of a hundred functions may say "0-65000" of each."""
    files: Files = two_sockets()
    for bus in range(20):
        files |= function(f"0000:{bus:02x}:00.0", under="pci0000:00", files={"local_cpulist": f"0-{65_000 + bus}\n"})
    tracemalloc.start()
    found = inventory(files)
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert len(found.pci or ()) == 20
    assert held < 20 << 20


def test_a_function_below_a_bridge_that_is_not_there() -> None:
    """Its parent was not recorded: that is not the same as hanging right below its root."""
    files = function("0000:19:00.0", under="pci0000:16/0000:16:01.0/0000:17:00.0/0000:18:00.0") | bridge(
        "0000:16:01.0", under="pci0000:16"
    )
    one = place(topology(files, complete=False), "0000:19:00.0")
    known = one.parent is not None and one.parent.key == "0000:16:01.0"
    assert known or ("parent", Unknown.NOT_RECORDED) in one.unknown


SAID = LINK | {"sriov_totalvfs": "8\n", "sriov_numvfs": "0\n"}


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("max_link_speed", "link"),
        ("max_link_width", "link"),
        ("sriov_totalvfs", "sriov"),
        ("sriov_numvfs", "sriov"),
        ("iommu_group", "iommu_group"),
        ("physfn", "physfn"),
    ],
)
@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (Failure(5), Unknown.UNREADABLE),
        (Failure(13), Unknown.NOT_PERMITTED),
        (None, Unknown.UNREADABLE),
        ("rubbish\n", Unknown.UNREADABLE),
        ("", Unknown.UNREADABLE),
    ],
)
def test_what_is_there_and_fails_leaves_its_reason(name: str, field: str, broken: Entry, reason: Unknown) -> None:
    found = inventory(gpu(**SAID) | {f"{AT}/{name}": broken})
    assert dict(fact(found, GPU).unknown) == {"numa_node": Unknown.FIRMWARE_SILENT, field: reason}
    assert {one.subject for one in found.diagnostics} == {f"{AT}/{name}"}


def test_either_file_of_sriov_fails_it() -> None:
    """The other one still tells."""
    first, second = (fact(inventory(gpu(**SAID) | {f"{AT}/{name}": Failure(5)}), GPU) for name in
                     ("sriov_totalvfs", "sriov_numvfs"))  # fmt: skip
    assert (first.sriov_total, first.sriov_enabled) == (None, 0)
    assert (second.sriov_total, second.sriov_enabled) == (8, None)


def test_what_a_function_does_not_have_has_no_reason() -> None:
    """pci-sysfs.c shows link attributes of PCIe functions only, and sriov_* of physical functions only."""
    one = fact(inventory(gpu()), GPU)
    assert (one.link, one.physfn, one.sriov_total, one.iommu_group) == (None,) * 4
    assert [field for field, _ in one.unknown] == ["numa_node"]


def test_a_vf_whose_physfn_fails_has_no_link_of_its_own() -> None:
    path = "sys/devices/pci0000:16/0000:16:01.0/0000:1d:00.2/physfn"
    found = fact(inventory(virtual() | {path: "rubbish\n"}), "0000:1d:00.2")
    assert (found.physfn, found.link, dict(found.unknown)["physfn"]) == (None, None, Unknown.UNREADABLE)


def test_a_link_that_goes_while_it_is_read() -> None:
    """Unplugged between list and read: readlink says ENOENT, and so does open. That is ordinary."""
    host = machine(gpu() | {f"{AT}/iommu_group": Link("../../../kernel/iommu_groups/42")})
    answer, text = host.link, host.text

    def gone(path: str, most: int = 65536) -> str:
        if path.endswith("iommu_group"):
            raise OSError(2, "No such file or directory", path)
        return text(path, most)

    host.link = lambda path: None if path.endswith("iommu_group") else answer(path)  # type: ignore[method-assign]
    host.text = gone  # type: ignore[method-assign]
    found = scan(host)
    assert dict(fact(found, GPU).unknown)["iommu_group"] is Unknown.NOT_SUPPORTED
    assert not found.diagnostics


@pytest.mark.parametrize("address", ["", "rubbish", Failure(5)])
def test_a_slot_without_address_has_a_note(address: Entry) -> None:
    found = inventory(gpu() | {"sys/bus/pci/slots/1/address": address})
    assert [one.subject for one in found.diagnostics] == ["sys/bus/pci/slots/1/address"]


def test_a_directory_of_slots_that_is_none() -> None:
    """drivers/pci/hotplug/rpadlpar_sysfs.c puts `control` among the slots; it has no address."""
    assert not inventory(gpu() | {"sys/bus/pci/slots/control/add_slot": "0\n"}).diagnostics
