"""What PCI functions say of ACS and ATS in their configuration space, as a plain document: `check --probe acs`.

docs/schema/acs-document.json describes it. Nothing is decided here: a function that was not read is {"error": NAME}.
The only reader of `config`, and only of the words it needs: each is a transaction on the bus. Two lists are followed,
that of capabilities (PCI Local Bus Specification 3.0, 6.7) and that of extended ones (PCIe Base Specification, 7.6.3).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator

from topo_agent.diagnostics import ABSENT, REFUSED, errno_name
from topo_agent.host import Host, Json, Unavailable
from topo_agent.ids import PciAddress

_FUNCTIONS = "sys/bus/pci/devices"
_BRIDGE = 0x0604
_ENDPOINTS = frozenset({0x02, 0x03, 0x0B, 0x12})  # networks, displays, co-processors, accelerators: NICs and GPUs

_HAS_LIST = 1 << 20  # Status bit 4, above the 16 bits of Command
_FIRST, _EXTENDED, _END = 0x40, 0x100, 0x1000
_EXPRESS = 0x10
_REGISTERS = {0x000D: "acs", 0x000F: "ats"}  # extended capabilities; both have two registers of 16 bits at offset 4
_GONE = 0xFFFFFFFF  # what the bus answers where nobody does


class _Refused(Exception):
    """This function was not read; its argument is the name of the error."""


def ask(host: Host, opened: Callable[[str], int], tell: Callable[[str], None], seconds: float) -> Json:
    """`{"functions": [{"bdf": "0000:17:00.0", "type": 6, "acs": {"capability": 95, "control": 29}}, …]}` by address.

    Every bridge, and what may be a GPU or a NIC, but no virtual function. `opened` gives the descriptor of a file of
    `host`; `tell` hears how far it came. After so many `seconds` no further function is read: a sick device answers
    each word only when the bus gives up. Unavailable where the functions cannot be listed.
    """
    until = time.monotonic() + seconds
    try:
        names = host.names(_FUNCTIONS)
    except OSError as error:
        raise Unavailable("not_permitted" if error.errno in REFUSED else "unreadable", errno_name(error)) from None
    found: list[tuple[PciAddress, Json]] = []
    for place, name in enumerate(names):
        tell(f"reading configuration space … function {place + 1} of {len(names)}")
        try:
            address = PciAddress.parse(name)
        except ValueError:
            continue
        path = f"{_FUNCTIONS}/{name}"
        if _matters(host, path):
            late = time.monotonic() >= until
            said: dict[str, Json] = {"error": "TIMEOUT"} if late else _function(host, opened, path)
            found.append((address, {"bdf": str(address), **said}))
    return {"functions": [one for _, one in sorted(found, key=lambda pair: pair[0])]}


def _matters(host: Host, path: str) -> bool:
    try:
        code = int(host.text(f"{path}/class", 16), 16)
        return (code >> 8 == _BRIDGE or code >> 16 in _ENDPOINTS) and host.link(f"{path}/physfn") is None
    except (OSError, ValueError):
        return False


def _function(host: Host, opened: Callable[[str], int], path: str) -> dict[str, Json]:
    if _asleep(host, path):  # the kernel would wake it: drivers/pci/pci-sysfs.c pci_read_config
        return {"error": "SUSPENDED"}
    try:
        file = opened(f"{path}/config")
    except OSError as error:
        return {"error": _error(error)}
    try:
        return _said(file)
    except _Refused as refused:
        return {"error": str(refused)}
    except OSError as error:
        return {"error": _error(error)}
    finally:
        os.close(file)


def _error(error: OSError) -> str:
    return "NOT_PERMITTED" if error.errno in REFUSED else "ABSENT" if error.errno in ABSENT else errno_name(error)


def _asleep(host: Host, path: str) -> bool:
    try:
        return host.text(f"{path}/power/runtime_status", 16).strip() in ("suspended", "suspending")
    except OSError:
        return False


def _said(file: int) -> dict[str, Json]:
    """Type of the port and registers; nothing at all for a function of conventional PCI, which has no such space."""
    if _word(file, 0) == _GONE:
        raise _Refused("GONE")
    express = next((word for offset, word in _capabilities(file) if word & 0xFF == _EXPRESS), None)
    if express is None:
        return {}
    said: dict[str, Json] = {"type": express >> 20 & 0xF}  # PCI Express Capabilities register, bits 7:4
    for offset, word in _extended(file):
        name = _REGISTERS.get(word & 0xFFFF)
        if name is not None and name not in said:
            registers = _word(file, offset + 4)
            said[name] = {"capability": registers & 0xFFFF, "control": registers >> 16}
    return said


def _capabilities(file: int) -> Iterator[tuple[int, int]]:
    """(offset, first word) of every capability; none where the function says that it has no list."""
    offset = _word(file, 0x34) & 0xFC if _word(file, 0x04) & _HAS_LIST else 0
    seen = set[int]()
    while offset >= _FIRST:
        word = _listed(file, offset, seen)
        yield offset, word
        offset = word >> 8 & 0xFC


def _extended(file: int) -> Iterator[tuple[int, int]]:
    """The same for extended ones. A list whose first word is 0 is empty."""
    offset, seen = _EXTENDED, set[int]()
    while offset >= _EXTENDED:
        word = _listed(file, offset, seen)
        if word == 0:
            return
        yield offset, word
        offset = word >> 20 & 0xFFC


def _listed(file: int, offset: int, seen: set[int]) -> int:
    """The head of a capability. No word is read twice: a list that leads back to itself is none."""
    if offset in seen:
        raise _Refused("GARBLED")
    seen.add(offset)
    word = _word(file, offset)
    if word == _GONE:
        raise _Refused("GONE")
    return word


def _word(file: int, offset: int) -> int:
    """Four bytes, little endian. A file that ends before them says why by its length.

    The kernel shows all 256 or 4096 bytes in the length, and without CAP_SYS_ADMIN gives the first 64 only; a copy is
    as long as what was copied. 256 bytes are all there is where the platform reaches no extended space (no MMCONFIG).
    """
    data = os.pread(file, 4, offset) if offset < _END else b""
    if len(data) == 4:
        return int.from_bytes(data, "little")
    raise _Refused("NOT_PERMITTED" if os.fstat(file).st_size > offset else "ABSENT")
