"""Every listed name is consistent with the pci.ids database, where that knows the id."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from topo_agent.graph import kinds
from topo_agent.views import names

DATABASE = Path("/usr/share/misc/pci.ids")
needs_database = pytest.mark.skipif(
    not DATABASE.exists(), reason=f"no {DATABASE}; Debian has it in the package pci.ids"
)

# How people call a maker, and how the database does.
MAKERS = {"Hygon": "Haiguang", "Microchip": "PMC-Sierra"}
# The words of ours that the database writes otherwise.
WORDS = {"vf": "virtual function", "vmd": "volume management device", "net": "network"}


def database() -> tuple[dict[int, str], dict[tuple[int, int], str]]:
    """(vendors, devices) of pci.ids: `10de  NVIDIA Corporation`, `\\t20b0  GA100 [A100 SXM4 40GB]`."""
    vendors: dict[int, str] = {}
    devices: dict[tuple[int, int], str] = {}
    vendor = -1
    for line in DATABASE.read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith("C "):
            break  # classes from here on
        if found := re.match(r"([0-9a-f]{4})  (.*)", line):
            vendor = int(found[1], 16)
            vendors[vendor] = found[2]
        elif found := re.match(r"\t([0-9a-f]{4})  (.*)", line):
            devices[vendor, int(found[1], 16)] = found[2]
    return vendors, devices


def words(name: str) -> set[str]:
    return set(re.findall(r"[a-z0-9]+", name.lower()))


def missing(ours: str, theirs: str) -> set[str]:
    """The words of our name that theirs does not have, in any spelling."""
    said = theirs.lower()
    return {word for word in words(ours) if word not in said and WORDS.get(word, word) not in said}


@needs_database
def test_vendors() -> None:
    vendors, _ = database()
    known = {number: name for number, name in names._VENDORS.items() if number in vendors}
    assert len(known) > 30
    wrong = {
        f"{number:04x} {name}": vendors[number]
        for number, name in known.items()
        if MAKERS.get(name, name).lower() not in vendors[number].lower()
    }
    assert wrong == {}


MODELS = [(vendor, device, name) for vendor, models in names._MODELS.items() for device, name in models.items()]


@needs_database
def test_models() -> None:
    _, devices = database()
    known = [(vendor, device, name) for vendor, device, name in MODELS if (vendor, device) in devices]
    assert len(known) > 100
    wrong = {
        f"{vendor:04x}:{device:04x} {name}": devices[vendor, device]
        for vendor, device, name in known
        if missing(name, devices[vendor, device])
    }
    assert wrong == {}


@needs_database
@pytest.mark.parametrize(
    ("vendor", "maker"),
    [
        (0x10DE, "NVIDIA"),
        (0x1002, "AMD/ATI"),
        (0x8086, "Intel"),
        (0x1BCF, "NEC"),
        (0x1DA3, "Habana"),
        (0x1ED5, "Moore Threads"),
        (0x19E5, "Huawei"),
        (0x1E36, "Enflame"),
        (0x1D94, "Haiguang"),
    ],
)
def test_makers_of_gpus(vendor: int, maker: str) -> None:
    assert vendor in kinds._GPU_VENDORS | {kinds.NEC}
    assert maker in database()[0][vendor]


def test_every_maker_of_a_model_has_a_name() -> None:
    assert {vendor for vendor, _, _ in MODELS} <= set(names._VENDORS)


@pytest.mark.parametrize(
    ("vendor", "device", "title"),
    [
        (0x10DE, 0x20B0, "NVIDIA A100 SXM4 40GB"),
        (0x1002, 0x74A1, "AMD MI300X"),
        (0x8086, 0x0B25, "Intel 8086:0b25"),
        (0x1BB1, 0x5018, "1bb1:5018"),
        (None, None, "????:????"),
        (0x10DE, None, "NVIDIA 10de:????"),
    ],
)
def test_title(vendor: int | None, device: int | None, title: str) -> None:
    assert names.title(vendor, device) == title


@needs_database
def test_class_names_are_of_the_class() -> None:
    """The classes at the end of pci.ids: `C 01  Mass storage controller`, `\\t08  Non-Volatile memory controller`."""
    classes: dict[int, str] = {}
    base = -1
    for line in DATABASE.read_text(encoding="utf-8", errors="replace").splitlines():
        if found := re.match(r"C ([0-9a-f]{2})  (.*)", line):
            base = int(found[1], 16)
        elif base >= 0 and (found := re.match(r"\t([0-9a-f]{2})  (.*)", line)):
            classes[base << 8 | int(found[1], 16)] = found[2]
    wrong = {
        f"{code:04x} {name}": classes[code]
        for code, name in names._CLASSES.items()
        if code in classes and not {word[:6] for word in words(name)} & {word[:6] for word in words(classes[code])}
    }
    assert set(wrong) <= {"0107 SAS"}, wrong  # Serial Attached SCSI
