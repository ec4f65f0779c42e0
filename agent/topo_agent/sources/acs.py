"""The `acs` document -> Acs: which ports redirect traffic between their neighbours, and what uses ATS.

docs/schema/acs-document.json describes the document; host/acs.py reads, everything is decided here.
"""

from __future__ import annotations

from topo_agent.diagnostics import Level, Notes, Unknown
from topo_agent.facts import Acs
from topo_agent.host import Host, Json, Unavailable, as_array, as_object
from topo_agent.ids import PciAddress

# PCIe Base Specification, ACS Control register (bits 0 to 6), with the names that lspci gives them (ls-ecaps.c).
_BITS = ("SrcValid", "TransBlk", "ReqRedir", "CmpltRedir", "UpstreamFwd", "EgressCtrl", "DirectTrans")
_REDIRECT = frozenset({"ReqRedir", "CmpltRedir", "UpstreamFwd"})
_ATS_ENABLE = 1 << 15  # ATS Control register

_REASONS = {"NOT_PERMITTED": Unknown.NOT_PERMITTED, "TIMEOUT": Unknown.TIMEOUT}
_ASLEEP = "SUSPENDED"


def read(host: Host, notes: Notes) -> tuple[Acs, ...]:
    """Every function of the document. What was not read is unknown, and told once for each reason."""
    try:
        answer = host.document("acs")
    except Unavailable as missing:
        notes.add(Level.DEGRADED, "acs", "acs_unread", f"configuration space was not read: {missing}")
        return ()
    found: dict[PciAddress, Acs] = {}
    refused: dict[str, list[PciAddress]] = {}
    for one in as_array(as_object(answer).get("functions")):
        said = as_object(one)
        address = _address(said.get("bdf"))
        if address is None:
            notes.add(Level.LOST, "acs", "function_without_place", "a function of the acs document has no PCI address")
            continue
        error = said.get("error")
        if error is not None:
            refused.setdefault(str(error)[:40], []).append(address)
        found[address] = _function(address, said, None if error is None else _reason(host, str(error)))
    for name, which in sorted(refused.items()):
        level, why = (Level.NOTE, "it sleeps") if name == _ASLEEP else (Level.DEGRADED, name)
        more = f" and {len(which) - 1} more" if len(which) > 1 else ""
        notes.add(level, "acs", "acs_unread", f"configuration space of {which[0]}{more} was not read: {why}")
    return tuple(found[address] for address in sorted(found))


def _reason(host: Host, error: str) -> Unknown:
    if error == "ABSENT":
        return Unknown.NOT_SUPPORTED if host.source.complete else Unknown.NOT_RECORDED
    return _REASONS.get(error, Unknown.UNREADABLE)


def _function(address: PciAddress, one: dict[str, Json], reason: Unknown | None) -> Acs:
    if reason is not None:
        return Acs(address, None, unknown=(("acs_redirect", reason), ("ats", reason)))
    acs, ats = _control(one.get("acs")), _control(one.get("ats"))
    enabled = tuple(name for bit, name in enumerate(_BITS) if acs is not None and acs >> bit & 1)
    return Acs(
        function=address,
        acs_redirect=None if acs is None else not _REDIRECT.isdisjoint(enabled),
        enabled=enabled,
        ats=None if ats is None else bool(ats & _ATS_ENABLE),
        unknown=tuple(
            (field, Unknown.UNREADABLE)
            for field, key, control in (("acs_redirect", "acs", acs), ("ats", "ats", ats))
            if key in one and control is None
        ),
    )


def _control(said: Json) -> int | None:
    """`{"capability": 95, "control": 29}` -> 29; None where there is none, and for what is no register."""
    control = said.get("control") if isinstance(said, dict) else None
    if isinstance(control, int) and not isinstance(control, bool) and 0 <= control < 1 << 16:
        return control
    return None


def _address(said: Json) -> PciAddress | None:
    try:
        return PciAddress.parse(said) if isinstance(said, str) else None
    except ValueError:
        return None
