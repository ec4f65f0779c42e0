"""Whose machine it is: class/dmi, the kernel's version, and what tells a virtual machine."""

from __future__ import annotations

from topo_agent.diagnostics import Notes, Unknown
from topo_agent.facts import Machine
from topo_agent.host import Host
from topo_agent.sources import parse
from topo_agent.sources.entry import Entry

_CPUINFO_BYTES = 4096  # one processor's block; the whole file asks every CPU for its frequency

_HYPERVISOR_MAKERS = {
    "qemu": "qemu",
    "red hat": "kvm",
    "vmware, inc.": "vmware",
    "innotek gmbh": "virtualbox",
    "xen": "xen",
    "google": "gce",
    "openstack foundation": "kvm",
    "apache software foundation": "kvm",
    "parallels": "parallels",
}
"""DMI sys_vendor -> hypervisor, for makers of nothing but virtual machines.

Amazon, Google's bare metal and Microsoft sell both under one name: those count only with the CPU's flag.
"""


def read(host: Host, notes: Notes, architecture: str | None) -> Machine:
    """The machine's own name for itself; a field that firmware left at its placeholder is unknown."""
    dmi = Entry(host, "sys/class/dmi/id", notes)
    cpuinfo = Entry(host, "proc", notes)
    unknown: dict[str, Unknown] = {}

    def told(field: str, value: str | None) -> str | None:
        if value is None:
            unknown[field] = {**dict(dmi.unknown), **dict(cpuinfo.unknown)}.get(field, dmi.absent)
        return value

    vendor, product, board, bios = (
        told(field, dmi.want(file, _dmi, field))
        for file, field in (
            ("sys_vendor", "vendor"),
            ("product_name", "product"),
            ("board_name", "board"),
            ("bios_version", "bios_version"),
        )
    )
    if product is None:  # boards without DMI name themselves in their device tree
        product = Entry(host, "sys/firmware/devicetree/base", notes).want("model", _dmi)
        if product is not None:
            unknown.pop("product")
    processor = cpuinfo.want("cpuinfo", _first_processor, "cpu_model", _CPUINFO_BYTES) or {}
    hypervisor = Entry(host, "sys/hypervisor", notes).want("type", parse.word)
    if hypervisor is None and vendor is not None:
        hypervisor = _HYPERVISOR_MAKERS.get(vendor.lower())
    virtual = _virtual(hypervisor, processor, Entry(host, "proc/xen", notes).want("capabilities", parse.clean) or "")
    if virtual is None:
        unknown["virtual"] = dict(cpuinfo.unknown).get("cpu_model", dmi.absent)
    kernel = Entry(host, "proc/sys/kernel", notes).want("osrelease", parse.word)
    return Machine(
        vendor=vendor,
        product=product,
        board=board,
        bios_version=bios,
        architecture=told("architecture", architecture),
        kernel=told("kernel", kernel),
        virtual=virtual,
        hypervisor=hypervisor,
        cpu_model=told("cpu_model", parse.word(processor.get("model name") or "")),
        unknown=tuple(sorted(unknown.items())),
    )


def _virtual(hypervisor: str | None, processor: dict[str, str], xen: str) -> bool | None:
    """x86 sets a CPU flag in every virtual machine; other architectures do not tell. Xen's dom0 owns the hardware."""
    if "control_d" in xen:
        return False
    if hypervisor is not None:
        return True
    flags = (processor.get("flags") or "").split()
    return "hypervisor" in flags if flags else None


def _dmi(text: str) -> str | None:
    """`"PowerEdge XE9680\\n"` -> the same; None for what boards say when nobody filled the field in."""
    said = parse.word(text)
    return None if said is None or said.lower() in parse.FILLERS else said


def _first_processor(text: str) -> dict[str, str]:
    """The first block of proc/cpuinfo: `{"model name": "Intel(R) Xeon(R) …", "flags": "fpu vme …"}`."""
    lines = (line.partition(":") for line in text.partition("\n\n")[0].splitlines())
    return {key.strip(): value.strip() for key, colon, value in lines if colon}
