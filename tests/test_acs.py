"""`check --probe acs`: configuration space typed from the specification -> document -> facts -> findings."""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.paper import NIC, NVIDIA, Files, grown, machine, put, spelled, two_sockets
from tests.schemas import FOLDER, strict
from tests.test_cli import run
from topo_agent.diagnostics import Level, Notes, Unknown
from topo_agent.facts import Acs
from topo_agent.host import Json, Unavailable, acs
from topo_agent.host.live import LiveHost
from topo_agent.host.opening import open_host
from topo_agent.host.paper import Document, Link
from topo_agent.host.unpack import unpack
from topo_agent.ids import PciAddress
from topo_agent.sources import acs as source

GPU = "pci0000:15/15:01.0/16:00.0/17:00.0/20:00.0"
CARD = "pci0000:15/15:01.0/16:00.0/17:01.0/21:00.0"

# Bytes as `lspci -xxxx` prints them, typed from PCIe Base Specification 5.0 (sections in brackets).
PORT = """
00: 00 10 30 c0 07 01 10 00 b0 00 04 06 00 00 01 00
30: 00 00 00 00 40 00 00 00 00 00 00 00 0b 01 00 00
40: 01 48 03 c8 08 00 00 00 05 68 8a 01 00 00 00 00
60: 00 00 00 00 00 00 00 00 10 a4 62 01 21 80 00 00
a0: 00 00 00 00 0d 00 00 00 00 10 0a a0 00 00 00 00
100: 03 00 81 14 01 02 03 04 05 06 07 08 00 00 00 00
140: 00 00 00 00 00 00 00 00 01 00 02 1f 00 00 00 00
1f0: 0d 00 01 00 5f 00 1d 00 00 00 00 00 00 00 00 00
"""
"""A downstream port (PCI Express Capabilities 0162: version 2, type 6, slot). Its lists: 40 power, 48 MSI, 68 PCI
Express, a4 subsystem; 100 serial number, 148 AER, 1f0 ACS [7.7.8]: capability 005f, control 001d, which is source
validation, request and completion redirect, upstream forwarding."""

ENDPOINT = """
00: de 10 30 23 06 04 10 00 a1 00 02 03 00 00 00 00
30: 00 00 00 00 60 00 00 00 00 00 00 00 ff 01 00 00
60: 10 00 02 00 e1 8d 2c 01 00 00 00 00 00 00 00 00
100: 0f 00 01 20 20 00 00 80 00 00 00 00 00 00 00 00
200: 01 00 02 00 00 00 00 00 00 00 00 00 00 00 00 00
"""
"""A GPU (type 0) whose list begins with ATS [10.5.1]: capability 0020, control 8000, which is enabled; then AER."""

CONVENTIONAL = """
00: 03 1a 50 11 06 00 10 00 06 00 04 06 00 00 01 00
30: 00 00 00 00 50 00 00 00 00 00 00 00 0b 01 00 00
50: 05 78 80 00 00 00 00 00 00 00 00 00 00 00 00 00
70: 00 00 00 00 00 00 00 00 01 00 03 7e 00 00 00 00
"""
"""A bridge to conventional PCI: MSI and power management, and no PCI Express capability."""


def space(text: str, length: int = 4096) -> bytes:
    data = bytearray(max(length, 4096))
    for line in text.split("\n"):
        place, colon, row = line.partition(": ")
        if colon:
            data[int(place, 16) : int(place, 16) + 16] = bytes.fromhex(row)
    return bytes(data[:length])


def changed(text: str, place: int, row: str) -> bytes:
    data = bytearray(space(text))
    data[place : place + len(bytes.fromhex(row))] = bytes.fromhex(row)
    return bytes(data)


Fill = Callable[..., LiveHost]


@pytest.fixture
def fill(tmp_path: Path) -> Fill:
    """A root directory with a switch, a GPU and a NIC; `fill({"17:00.0": bytes})` gives them their `config`."""

    def filled(configs: dict[str, bytes | None], more: Files | None = None) -> LiveHost:
        files = two_sockets() | put(GPU, NVIDIA) | put(CARD, NIC, verbs="mlx5_0") | (more or {})
        unpack(machine(files), str(tmp_path / "root"))
        for address, config in configs.items():
            file = tmp_path / f"root/sys/bus/pci/devices/0000:{address}/config"
            file.unlink() if config is None else file.write_bytes(config)
        return LiveHost(str(tmp_path / "root"))

    return filled


def told(host: LiveHost, address: str) -> dict[str, Json]:
    """What the document says of one function, without its address."""
    said: Any = host.document("acs")
    assert [*strict(FOLDER / "acs-document.json").iter_errors(said)] == []
    (one,) = (one for one in said["functions"] if one["bdf"] == f"0000:{address}")
    return {key: value for key, value in one.items() if key != "bdf"}


def test_a_port_and_its_registers(fill: Fill) -> None:
    host = fill({"17:00.0": space(PORT), "20:00.0": space(ENDPOINT), "16:00.0": space(CONVENTIONAL)})
    assert told(host, "17:00.0") == {"type": 6, "acs": {"capability": 0x5F, "control": 0x1D}}
    assert told(host, "20:00.0") == {"type": 0, "ats": {"capability": 0x20, "control": 0x8000}}
    assert told(host, "16:00.0") == {}


def test_who_is_asked(fill: Fill) -> None:
    """Bridges, GPUs and NICs; no drive, and no virtual function, of which a card may have hundreds."""
    physfn = {"physfn": Link("../0000:21:00.0")}
    drive = "pci0000:15/15:01.0/16:00.0/17:02.0/22:00.0"
    more = put(drive, {"class_": "0x010802", "vendor": "0x144d", "device": "0xa824"})
    more |= grown(CARD.replace("21:00.0", "21:00.1"), NIC, files=physfn)
    said: Any = fill({}, more).document("acs")
    asked = [one["bdf"].removeprefix("0000:") for one in said["functions"]]
    assert asked == ["15:01.0", "16:00.0", "17:00.0", "17:01.0", "17:02.0", "20:00.0", "21:00.0"]


@pytest.mark.parametrize("length", [0, 64, 256, 0x1F4])
def test_a_copy_that_is_too_short(length: int, fill: Fill) -> None:
    """Unknown, and never "no ACS": hwloc copies 256 bytes, `synth` makes 64."""
    assert told(fill({"17:00.0": space(PORT, length)}), "17:00.0") == {"error": "ABSENT"}


def test_no_file_at_all(fill: Fill) -> None:
    assert told(fill({"17:00.0": None}), "17:00.0") == {"error": "ABSENT"}


def test_conventional_pci_has_no_more_than_256_bytes(fill: Fill) -> None:
    """That is all there is, so it is known that it has no ACS."""
    assert told(fill({"17:00.0": space(CONVENTIONAL, 256)}), "17:00.0") == {}


@pytest.fixture
def unprivileged(monkeypatch: pytest.MonkeyPatch) -> None:
    """drivers/pci/pci-sysfs.c pci_read_config(): without CAP_SYS_ADMIN a read ends after 64 bytes."""
    whole = os.pread
    monkeypatch.setattr(os, "pread", lambda file, length, offset: whole(file, max(min(length, 64 - offset), 0), offset))


@pytest.mark.usefixtures("unprivileged")
def test_64_of_4096_bytes_are_not_permitted(fill: Fill) -> None:
    assert told(fill({"17:00.0": space(PORT)}), "17:00.0") == {"error": "NOT_PERMITTED"}


@pytest.mark.usefixtures("unprivileged")
def test_the_probe_of_nobody(fill: Fill, tmp_path: Path) -> None:
    every = {"15:01.0": space(PORT), "16:00.0": space(PORT), "17:00.0": space(PORT), "17:01.0": space(PORT),
             "20:00.0": space(ENDPOINT), "21:00.0": space(ENDPOINT)}  # fmt: skip
    notes = Notes()
    found = source.read(fill(every), notes)
    assert {dict(one.unknown)["acs_redirect"] for one in found} == {Unknown.NOT_PERMITTED}
    assert [(note.level, note.message) for note in notes] == [
        (Level.DEGRADED, "configuration space of 0000:15:01.0 and 5 more was not read: NOT_PERMITTED")
    ]


def test_who_sleeps_is_not_woken(fill: Fill, monkeypatch: pytest.MonkeyPatch) -> None:
    sleeping = {f"sys/devices/{spelled(GPU).rpartition('/')[0]}/power/runtime_status": "suspended\n"}
    host = fill({"17:00.0": space(PORT)}, sleeping)
    opened: list[str] = []
    file = LiveHost._file

    def noted(host: LiveHost, path: str) -> int:
        opened.append(path)
        return file(host, path)

    monkeypatch.setattr(LiveHost, "_file", noted)
    assert told(host, "17:00.0") == {"error": "SUSPENDED"}
    assert not any(path.endswith("0000:17:00.0/config") for path in opened)
    assert any(path.endswith("0000:17:01.0/config") for path in opened)
    notes = Notes()
    source.read(host, notes)
    assert (Level.NOTE, "configuration space of 0000:17:00.0 was not read: it sleeps") in [
        (note.level, note.message) for note in notes
    ]


@pytest.mark.parametrize(("why", "config", "said"), [
    ("the extended list leads back to its beginning", changed(PORT, 0x148, "01 00 02 10"), {"error": "GARBLED"}),
    ("an entry leads to itself", changed(PORT, 0x1F0, "03 00 01 1f"), {"error": "GARBLED"}),
    ("the list leads back to its beginning", changed(PORT, 0x48, "05 40"), {"error": "GARBLED"}),
    ("no extended capability", changed(PORT, 0x100, "00 00 00 00"), {"type": 6}),
    ("an extended list that leads below itself ends", changed(PORT, 0x148, "01 00 02 0f"), {"type": 6}),
    ("a function that says it has no list", changed(PORT, 0x06, "00 00"), {}),
    ("nobody answers", b"\xff" * 4096, {"error": "GONE"}),
    ("it falls off while it is asked", changed(PORT, 0x148, "ff ff ff ff"), {"error": "GONE"}),
    ("an earlier entry of the same kind counts", changed(PORT, 0x148, "0d 00 01 1f"),
     {"type": 6, "acs": {"capability": 0, "control": 0}}),
])  # fmt: skip
def test_lists(why: str, config: bytes, said: dict[str, Json], fill: Fill) -> None:
    assert told(fill({"17:00.0": config}), "17:00.0") == said


def test_a_list_that_leads_beyond_the_end(fill: Fill) -> None:
    data = bytearray(changed(PORT, 0x148, "01 00 c2 ff"))
    data[0xFFC:] = bytes.fromhex("0d 00 01 00")
    assert told(fill({"17:00.0": bytes(data)}), "17:00.0") == {"error": "ABSENT"}


def test_each_word_is_read_once(fill: Fill, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is a transaction on the bus: a dozen, where all of it are a thousand."""
    host = fill({name: space(PORT) for name in ("15:01.0", "16:00.0", "17:00.0", "17:01.0", "20:00.0", "21:00.0")})
    read: list[tuple[int, int]] = []
    whole = os.pread

    def counted(file: int, length: int, offset: int) -> bytes:
        read.append((length, offset))
        return whole(file, length, offset)

    monkeypatch.setattr(os, "pread", counted)
    host.document("acs")
    assert {length for length, _ in read} == {4}
    assert len(read) == 6 * len({*read})
    assert len({*read}) <= 12


@given(st.binary(min_size=0, max_size=64), st.integers(0, 4096 - 64), st.integers(0, 4096))
def test_any_bytes(rubbish: bytes, place: int, length: int) -> None:
    """Taken or refused, and soon: no list is followed twice round."""
    data = bytearray(space(PORT))
    data[place : place + len(rubbish)] = rubbish
    with tempfile.TemporaryFile() as file:
        file.write(bytes(data[:length]))
        file.flush()
        with contextlib.suppress(acs._Refused):
            assert {*acs._said(file.fileno())} <= {"type", "acs", "ats"}


def test_time_is_up(fill: Fill, tmp_path: Path) -> None:
    """--timeout: a bus that answers slowly costs no more."""
    fill({"17:00.0": space(PORT)})
    assert told(LiveHost(str(tmp_path / "root"), timeout=0), "17:00.0") == {"error": "TIMEOUT"}


def test_what_is_no_file_is_not_read(fill: Fill, tmp_path: Path) -> None:
    host = fill({"17:00.0": None})
    os.mkfifo(tmp_path / "root/sys/bus/pci/devices/0000:17:00.0/config")
    assert told(host, "17:00.0") == {"error": "EINVAL"}


def test_a_kept_document_comes_first(fill: Fill, tmp_path: Path) -> None:
    host = fill({"17:00.0": space(PORT)})
    kept = {"functions": [{"bdf": "0000:17:00.0", "error": "GONE"}]}
    (tmp_path / "root/documents").mkdir(exist_ok=True)
    (tmp_path / "root/documents/acs.json").write_text(json.dumps(kept))
    assert told(host, "17:00.0") == {"error": "GONE"}


# Facts


def facts(*functions: Json) -> tuple[tuple[Acs, ...], list[str]]:
    notes = Notes()
    documents: dict[str, Document] = {"acs": {"functions": [*functions]}}
    found = source.read(machine({}, documents=documents, complete=False), notes)
    return found, [note.code for note in notes]


def one(**said: Json) -> Acs:
    (found,), _ = facts({"bdf": "0000:17:00.0", **said})
    return found


@pytest.mark.parametrize(("control", "redirects", "enabled"), [
    (0x00, False, ()),
    (0x01, False, ("SrcValid",)),
    (0x02, False, ("TransBlk",)),
    (0x04, True, ("ReqRedir",)),
    (0x08, True, ("CmpltRedir",)),
    (0x10, True, ("UpstreamFwd",)),
    (0x20, False, ("EgressCtrl",)),
    (0x40, False, ("DirectTrans",)),
    (0x1D, True, ("SrcValid", "ReqRedir", "CmpltRedir", "UpstreamFwd")),
    (0xFF80, False, ()),
])  # fmt: skip
def test_bits_of_acs_control(control: int, redirects: bool, enabled: tuple[str, ...]) -> None:  # noqa: FBT001 a case
    found = one(type=6, acs={"capability": 0x7F, "control": control})
    assert (found.acs_redirect, found.enabled, found.ats, found.unknown) == (redirects, enabled, None, ())


@pytest.mark.parametrize(("control", "on"), [(0x8000, True), (0x7FFF, False), (0, False)])
def test_bits_of_ats_control(control: int, on: bool) -> None:  # noqa: FBT001 a case
    assert one(type=0, ats={"capability": 0x20, "control": control}).ats is on


def test_a_function_that_has_neither() -> None:
    assert one(type=6) == Acs(PciAddress.parse("0000:17:00.0"), None)


@pytest.mark.parametrize(("error", "reason"), [
    ("NOT_PERMITTED", Unknown.NOT_PERMITTED), ("ABSENT", Unknown.NOT_RECORDED), ("SUSPENDED", Unknown.UNREADABLE),
    ("GONE", Unknown.UNREADABLE), ("GARBLED", Unknown.UNREADABLE), ("EIO", Unknown.UNREADABLE),
    ("TIMEOUT", Unknown.TIMEOUT),
])  # fmt: skip
def test_reasons(error: str, reason: Unknown) -> None:
    assert one(error=error).unknown == (("acs_redirect", reason), ("ats", reason))
    assert one(error=error).acs_redirect is None


@pytest.mark.parametrize(
    "acs", [None, [], {}, {"control": -1}, {"control": 1 << 16}, {"control": "29"}, {"control": True}]
)
def test_a_register_that_is_none(acs: Json) -> None:
    """A document that somebody edited: unknown, and never off."""
    found = one(acs=acs)
    assert (found.acs_redirect, found.unknown) == (None, (("acs_redirect", Unknown.UNREADABLE),))


@pytest.mark.parametrize(
    "answer", [None, [], {}, {"functions": None}, {"functions": [1, {}, {"bdf": 7}, {"bdf": "x"}]}]
)
def test_documents_of_strangers(answer: Json) -> None:
    assert source.read(machine({}, documents={"acs": answer}), Notes()) == ()


# The command


@pytest.fixture
def root(fill: Fill, tmp_path: Path) -> Path:
    """Both ports above GPU and NIC redirect; the rest has nothing to say."""
    configs = {"15:01.0": space(CONVENTIONAL), "16:00.0": space(CONVENTIONAL), "17:00.0": space(PORT),
               "17:01.0": space(PORT), "20:00.0": space(ENDPOINT), "21:00.0": space(ENDPOINT)}  # fmt: skip
    fill(configs)
    return tmp_path / "root"


def test_a_root_directory(root: Path) -> None:
    usual, asked = run("check", "--from", str(root)), run("check", "--from", str(root), "--probe", "acs")
    assert (usual.returncode, usual.stdout, usual.stderr) == (0, "", "")
    assert (asked.returncode, asked.stderr) == (0, "")
    assert asked.stdout.splitlines()[:2] == [
        "warning: acs_redirect: pci:0000:20:00.0",
        "  ReqRedir+ CmpltRedir+ at 0000:17:00.0, 0000:17:01.0 before 0000:21:00.0; ATS on at both",
    ]
    assert run("check", "--from", str(root), "--probe", "acs", "--fail-on", "warning").returncode == 1
    for port in ("0000:17:00.0", "0000:17:01.0"):
        (root / f"sys/bus/pci/devices/{port}/config").write_bytes(changed(PORT, 0x1F6, "00 00"))
    quiet = run("check", "--from", str(root), "--probe", "acs", "--fail-on", "warning", "--strict", "--info")
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, "", "")


def test_a_recording_does_not_hold_it(root: Path, tmp_path: Path) -> None:
    """`record` opens no configuration space; what holds the answers already keeps them."""
    done = run("record", "--from", str(root))
    assert "@acs" not in done.stdout
    said = open_host(str(root)).document("acs")
    kept = done.stdout.replace("\n@", f"\n@acs {json.dumps(said)}\n@", 1)
    (tmp_path / "box.topo").write_text(kept, encoding="utf-8")
    assert open_host(str(tmp_path / "box.topo")).document("acs") == said
    assert "@acs {" in run("record", "--from", str(tmp_path / "box.topo")).stdout
    assert run("synth", str(tmp_path / "box.topo"), "-o", str(tmp_path / "again")).returncode == 0
    assert open_host(str(tmp_path / "again")).document("acs") == said


def test_this_machine() -> None:
    """Nothing here is known beforehand, but that it is answered, and that root is refused by nobody."""
    done = run("check", "--probe", "acs", "-v")
    assert done.returncode in (0, 1)
    said: Any = LiveHost("/").document("acs")
    assert [*strict(FOLDER / "acs-document.json").iter_errors(said)] == []
    if os.geteuid() == 0 and LiveHost("/").source.scope == "host":
        assert not [one for one in said["functions"] if one.get("error") == "NOT_PERMITTED"]


def test_help_tells_of_it() -> None:
    assert re.search(r"--probe \[acs\] +Read more, as root", run("check", "--help").stdout)
    assert run("check", "--probe", "everything").returncode == 2


def _pcie() -> Iterator[str]:
    """Functions of this machine whose `config` reaches extended space."""
    for path in Path("/sys/bus/pci/devices").glob("*/config"):
        if stat.S_ISREG(path.stat().st_mode) and path.stat().st_size == 4096:
            yield path.parent.name


@pytest.mark.skipif(os.geteuid() != 0 or not any(_pcie()), reason="no PCIe here, or no root")
def test_lspci_says_the_same() -> None:
    try:
        done = subprocess.run(["lspci", "-D", "-vvv"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no lspci here (Debian: pciutils)")
    blocks = {block.partition(" ")[0]: block for block in done.stdout.split("\n\n")}
    said: Any = LiveHost("/").document("acs")
    for function in said["functions"]:
        block = blocks[function["bdf"]]
        assert ("ACSCtl" in block) == ("acs" in function)
        if "acs" in function:
            assert ("ReqRedir+" in block.partition("ACSCtl")[2].partition("\n")[0]) == bool(
                function["acs"]["control"] & 4
            )


def test_unavailable_where_nothing_can_be_listed(tmp_path: Path) -> None:
    (tmp_path / "sys").mkdir()
    assert LiveHost(str(tmp_path)).document("acs") == {"functions": []}
    with pytest.raises(Unavailable):
        machine({}).document("acs")
