"""Whatever a file holds: it is read, or refused in one line that names it; soon, and in bounded memory.

Readers of what users and strangers hand in: recordings, archives, descriptions, overlays, documents of drivers.
Examples start from what is valid and are damaged. TOPO_AGENT_LONG=1 (make long) and CI=true take more of them.
"""

from __future__ import annotations

import bz2
import copy
import functools
import gzip
import io
import json
import lzma
import os
import re
import resource
import signal
import subprocess
import sys
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, example, given, note, settings
from hypothesis import strategies as st

from topo_agent.diagnostics import Notes
from topo_agent.graph.build import build
from topo_agent.host import BadSource, Json, Unavailable, archive, files, recording
from topo_agent.host.live import LiveHost
from topo_agent.host.opening import open_host
from topo_agent.host.paper import PaperHost
from topo_agent.readers.overlay import BadOverlay
from topo_agent.readers.overlay import parse as overlay
from topo_agent.scan import scan
from topo_agent.sources import gpu, net, pci, process
from topo_agent.synthesis import edits, expand, layout, nodes, nvidia, tree
from topo_agent.synthesis.build import from_file, from_text

ROOT = Path(__file__).parents[1]
LONG, CI = bool(os.environ.get("TOPO_AGENT_LONG")), bool(os.environ.get("CI"))
EXAMPLES = 30_000 if LONG else 3_000 if CI else 300

# As tests/test_properties.py. The alarm below ends a hang; hypothesis' deadline would wait for its end.
SETTINGS = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=not LONG,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
)

SECONDS = 30  # no example takes one; a loaded machine may be slow
MEMORY = 768 << 20  # beside what the process has: the limits of every reader (256 MiB of text) with room for objects
LINE = 2_000  # characters of a message


class Hang(BaseException):
    """Not an Exception, so that nothing on the way takes it for its own."""


@contextmanager
def bounded() -> Iterator[None]:
    """Ends what takes too long with Hang, what takes too much with MemoryError."""

    def hang(number: int, frame: object) -> None:
        raise Hang(f"more than {SECONDS} s")

    has = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    before = signal.signal(signal.SIGALRM, hang)
    signal.alarm(SECONDS)
    resource.setrlimit(resource.RLIMIT_AS, (has + MEMORY, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def read_overlay(path: str) -> None:
    overlay(files.text(path, "an overlay (YAML)"), path)


REFUSED = (BadSource, files.Unreadable, BadOverlay)


def tried(path: Path, data: bytes, read: Callable[[str], object]) -> str | None:
    """The one line with which a reader refuses a file; None where it takes it. Anything else fails the test."""
    path.write_bytes(data)
    with bounded():
        try:
            read(str(path))
        except REFUSED as error:
            said = str(error)
            assert said.startswith(f"{path}: "), said
            assert len(said) < LINE
            assert "\n" not in said
            return said
    return None


def walked(host: PaperHost) -> None:
    """A host that was made answers: with OSError at worst."""
    for path in list(host.entries)[:200]:
        for ask in (host.text, host.names, host.link):
            try:
                ask(path)
            except OSError:
                continue


# Damage

HOSTILE = (
    *(b"\0", b"\xff\xfe", b"\r", b"\n", b"\t", b" ", b"", b"-1", b"..", b"/", b"~", b"\xe2\x80\xa8", b"\x1b[2J"),
    *(b"9" * 5000, b"0x" + b"f" * 40, b"1e999", b"NaN", b"-0", b"0-8191", b"0-99999999", b"4294967296", b"8192"),
    *(b"[" * 5000, b"{a: " * 500, b"- " * 300, b'"', b"'", b"x" * 100_000, b"'" + b"y" * 4096 + b"'", b"{}", b"[]"),
    *(b"&a [*a]", b"*a", b"&a", b"!!python/object:os.system x", b"? [a]\n: b", b"|\n", b"<<: "),
    *(b"---\n", b"%YAML 9.9\n", b"@nvml {}\n", b"@process []\n"),
    *(b"$(x)", b"$(index+999999)", b"$(", b"make", b"use", b"all", b"none", b"null", b"true", b"2.5x16", b"64 GiB"),
    *(b'"\\ud800"', b'"a\\u0000b"', b"a/../../b", b" -> ../../../../x\n", b" ! EIO\n", b'/ = "x"\n'),
    *(b"@recording []\n", b"# end\n", b'{"a":' * 2000, b"@netlink " + b"[" * 100_000 + b"\n", b"\x85", b"0" * 300),
    b"a: &a [1,1,1,1,1,1,1,1,1]\n"
    + b"".join(b"%c: &%c [%s]\n" % (n + 1, n + 1, b",".join([b"*%c" % n] * 9)) for n in range(97, 110)),
)  # fmt: skip
_WORD = re.compile(rb"[\w.:/$+-]+")

Change = tuple[str, int, int]


def _cut(data: bytes, where: int, _: int) -> bytes:
    return data[: where % (len(data) + 1)]


def _flip(data: bytes, where: int, what: int) -> bytes:
    if not data:
        return data
    at = where % len(data)
    return data[:at] + bytes([data[at] ^ (what % 255 + 1)]) + data[at + 1 :]


def _put(data: bytes, where: int, what: int) -> bytes:
    at = where % (len(data) + 1)
    return data[:at] + HOSTILE[what % len(HOSTILE)] + data[at:]


def _word(data: bytes, where: int, what: int) -> bytes:
    """One word is another: what parsers of values see, where random bytes end at the syntax."""
    words = list(_WORD.finditer(data))
    if not words:
        return data
    found = words[where % len(words)]
    return data[: found.start()] + HOSTILE[what % len(HOSTILE)] + data[found.end() :]


def _other(data: bytes, where: int, what: int) -> bytes:
    """One word is another one of the same file."""
    words = list(_WORD.finditer(data))
    if not words:
        return data
    found = words[where % len(words)]
    return data[: found.start()] + words[what % len(words)][0] + data[found.end() :]


def _lines(how: str) -> Callable[[bytes, int, int], bytes]:
    def change(data: bytes, where: int, what: int) -> bytes:
        lines = data.split(b"\n")
        one, two = where % len(lines), what % len(lines)
        if how == "swap":
            lines[one], lines[two] = lines[two], lines[one]
        elif how == "again":
            lines.insert(two, lines[one])
        elif how == "gone":
            del lines[one]
        elif how == "deeper":
            lines[one] = b"  " * (what % 60) + lines[one]
        else:
            lines.insert(one, HOSTILE[what % len(HOSTILE)])
        return b"\n".join(lines)

    return change


CHANGES: dict[str, Callable[[bytes, int, int], bytes]] = {
    "word": _word,
    "other": _other,
    "put": _put,
    "flip": _flip,
    "cut": _cut,
    **{how: _lines(how) for how in ("again", "swap", "gone", "deeper", "line")},
}
_NUMBERS = st.integers(0, 1 << 24)


def changes(most: int = 4, least: int = 1) -> st.SearchStrategy[list[Change]]:
    return st.lists(st.tuples(st.sampled_from(sorted(CHANGES)), _NUMBERS, _NUMBERS), min_size=least, max_size=most)


def damaged(data: bytes, how: list[Change]) -> bytes:
    for name, where, what in how:
        data = CHANGES[name](data, where, what)[: 1 << 20]
    return data


def damage(*valid: bytes) -> st.SearchStrategy[bytes]:
    """Now and then nothing but random bytes; mostly a valid file with a few changes."""
    return st.one_of(
        st.builds(damaged, st.sampled_from(valid), changes()),
        st.builds(damaged, st.sampled_from(valid), changes()),
        st.binary(max_size=400),
    )


# Recordings


def _parts(path: Path) -> Iterator[bytes]:
    """Small recordings out of a large one, so that an example takes a millisecond."""
    lines = path.read_bytes().splitlines(keepends=True)
    for start in range(3):
        yield b"".join([*lines[:2], *lines[2 + start : -4 : len(lines) // 40], *lines[-4:]])


RECORDINGS = tuple(part for path in sorted((ROOT / "fixtures").glob("*/host.topo")) for part in _parts(path))


def read_recording(path: str) -> None:
    host = recording.read(path)
    walked(host)
    again = recording.parse("".join(f"{line}\n" for line in recording.lines(host)))
    assert again.entries == host.entries
    assert _said(again) == _said(host)


def _said(host: PaperHost) -> dict[str, object]:
    return {name: one.reason if isinstance(one, Unavailable) else one for name, one in host.documents.items()}


@SETTINGS
@given(damage(*RECORDINGS))
def test_recordings(tmp_path: Path, data: bytes) -> None:
    tried(tmp_path / "machine.topo", data, read_recording)


@pytest.mark.parametrize("data", RECORDINGS, ids=range(len(RECORDINGS)))
def test_the_recordings_are_valid_before_they_are_damaged(tmp_path: Path, data: bytes) -> None:
    assert tried(tmp_path / "machine.topo", data, read_recording) is None


# Archives

_NAMES = (
    *("sys/devices/system/cpu/online", "sys/class/net/eth0", "proc/cpuinfo", "sys", "./sys/", "top/sys/a", "sys/a"),
    *("../sys/x", "/sys/abs", "sys/../../x", "sys//x", "sys/./x", ".", "", "sys/" + "n" * 300),
    *("sys/" + "d/" * 80 + "x", "sys/\udcff", "sys/a\nb", "sys/" + "long" * 400),
)  # fmt: skip
_KINDS = (
    *(tarfile.REGTYPE, tarfile.REGTYPE, tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE),
    *(tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, tarfile.CONTTYPE, tarfile.GNUTYPE_SPARSE, b"Z", b"x", b"g"),
    *(b"L", b"K", b"X"),
)
_SIZES = (None, None, None, None, 0, 1, 511, 1 << 16, 10 << 30, (1 << 63) - 1, -1, -512)
_PACKS: tuple[Callable[[bytes], bytes], ...] = (
    bytes,
    functools.partial(gzip.compress, compresslevel=1),
    functools.partial(bz2.compress, compresslevel=1),
    functools.partial(lzma.compress, preset=0),
)
MEMBERS = st.lists(
    st.tuples(
        st.sampled_from(_NAMES),
        st.sampled_from(_KINDS),
        st.sampled_from(_NAMES),  # where a link points: itself for one
        st.sampled_from([b"", b"0-3\n", b"x" * 2000, b"12 path=a\n", b"1" * 600, b"30 GNU.sparse.size=9999999\n"]),
        st.sampled_from(_SIZES),
    ),
    max_size=6,
)
_ONLINE = ("sys/devices/system/cpu/online", tarfile.REGTYPE, "", b"0-3\n", None)


def packed(
    members: list[tuple[str, bytes, str, bytes, int | None]],
    form: Literal[0, 1, 2],
    inner: list[Change],
    pack: Callable[[bytes], bytes],
    outer: list[Change],
) -> bytes:
    out = b""
    for name, kind, link, data, size in [_ONLINE, *members]:
        about = tarfile.TarInfo(name)
        about.type, about.linkname, about.size = kind, link, len(data) if size is None else size
        try:
            out += about.tobuf(form, errors="surrogateescape") + data.ljust(-(-len(data) // 512) * 512, b"\0")
        except ValueError:  # what this form cannot say
            continue
    return damaged(pack(damaged(out + bytes(10240), inner)), outer)


def read_archive(path: str) -> None:
    host = open_host(path)
    assert isinstance(host, PaperHost)
    assert not any(".." in name.split("/") or name.startswith("/") for name in host.entries)
    walked(host)


ARCHIVES = st.builds(
    packed,
    MEMBERS,
    st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT]),
    changes(2, 0),
    st.sampled_from(_PACKS),
    st.just([]) | changes(2),
)


@SETTINGS
@given(ARCHIVES | st.binary(max_size=400))
@example(packed([], tarfile.GNU_FORMAT, [], bytes, []))
def test_archives(tmp_path: Path, data: bytes) -> None:
    tried(tmp_path / "machine.tar", data, read_archive)


# Descriptions and overlays

DESCRIPTIONS = tuple(path.read_bytes() for path in sorted((ROOT / "fixtures").glob("*/machine.yaml")))
OVERLAY = b"""\
roots: {"pci0000:15": 0, pci0000:37: 1}
roles: {mlx5_4: storage, eno1: management}
pairs:
  gpu0: [mlx5_0, mlx5_1]
  gpu1: &a [mlx5_2]
  gpu2: *a
"""


@SETTINGS
@given(damage(*DESCRIPTIONS))
def test_descriptions(tmp_path: Path, data: bytes) -> None:
    tried(tmp_path / "machine.yaml", data, lambda path: walked(from_file(path)))


@SETTINGS
@given(damage(OVERLAY))
def test_overlays(tmp_path: Path, data: bytes) -> None:
    tried(tmp_path / "overlay.yaml", data, read_overlay)


# Documents: what drivers answered, in a recording or in a file beside sys/

_VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 1 << 70, 1.5, "", "x" * 5000, "\ud800", "\0", [], {}, [None], [[]], [{}]),
    *({"error": "Unknown"}, {"error": None}, "0x10", "99999999:99:99.9", "00000000:17:00.0", "f" * 16, ["f" * 16] * 3),
    *(["g"], [1 << 70], 4096, "-1", [True], {"links": {}}, {"": ""}, 10**30),
)  # fmt: skip


@functools.cache
def machine(name: str) -> PaperHost:
    return from_file(str(ROOT / "fixtures" / name / "machine.yaml"))


def _replaced(text: str, where: list[tuple[int, int]]) -> Any:
    """The document with other values in some places, each found by going down from the top."""
    value = json.loads(text)
    for number, what in where:
        place = number
        inside: list[Any] = [value]
        one: Any = inside
        key: Any = 0
        while True:
            below = one[key]
            keys = (
                list(below) if isinstance(below, dict) else list(range(len(below))) if isinstance(below, list) else []
            )
            place, turn = divmod(place, len(keys) + 1)
            if turn == len(keys):  # here, and no further down
                one[key] = _json(what)
                break
            one, key = below, keys[turn]
        value = inside[0]
    return value


def _json(what: int) -> Any:
    return copy.deepcopy(_VALUES[what % len(_VALUES)])


FOUR = ("l40s-2s-no-switch", "gb200-nvl72-tray", "dgx-a100", "vm-vnuma")
REPLACEMENTS = st.lists(st.tuples(_NUMBERS, _NUMBERS), min_size=1, max_size=4)


def spoilt(name: str, document: str, where: list[tuple[int, int]]) -> PaperHost:
    host = machine(name)
    said = host.documents.get(document, {})
    changed: Json = None if isinstance(said, Unavailable) else _replaced(json.dumps(said), where)
    note(f"{name} @{document}: {where}")
    return PaperHost(host.entries, {**host.documents, document: changed}, source=host.source)


@functools.cache
def _present(name: str) -> dict[Any, Any]:
    found = pci.read(machine(name), Notes())
    return {one.address: one for one in found.devices} if found else {}


@SETTINGS
@given(st.sampled_from(FOUR), st.sampled_from(["nvml", "netlink", "process"]), REPLACEMENTS)
def test_documents(name: str, document: str, where: list[tuple[int, int]]) -> None:
    host = spoilt(name, document, where)
    with bounded():
        if document == "nvml":
            gpu.read(host, Notes(), _present(name))
        elif document == "netlink":
            net.read(host, Notes())
        else:
            process.read(host, Notes())


@settings(SETTINGS, max_examples=EXAMPLES // 10)
@given(st.sampled_from(FOUR[:1]), st.sampled_from(["nvml", "netlink", "process"]), REPLACEMENTS)
def test_what_documents_say_is_joined(name: str, document: str, where: list[tuple[int, int]]) -> None:
    with bounded():
        found = build(scan(spoilt(name, document, where)))
    assert [one for one in found.diagnostics if one.code == "source_failed"] == []


# What was found: each once, with the right answer

HEAD = "schema: topo-agent/machine/v1\nname: test\ncpus: {cores: 2}\n"


def refused(text: str) -> str:
    with bounded(), pytest.raises(BadSource) as error:
        from_text(text)
    return str(error.value)


def _chain(count: int, argument: str) -> str:
    """Templates that use each other, each with `argument`, which holds the argument of the one before."""
    steps = "".join(f"  t{n}:\n  - {{use: t{n + 1}, with: {{x: {argument}}}}}\n" for n in range(count))
    return f"{HEAD}templates:\n{steps}  t{count}: [{{nic: $(x)}}]\npci: [{{use: t0, with: {{x: 1}}}}]\n"


def test_parameters_that_hold_each_other_are_counted() -> None:
    """50^6 values were one node in many places: counted once, and gone through by whoever read them."""
    said = refused(_chain(6, "[" + ",".join(["$(x)"] * 50) + "]"))
    assert said.endswith(f"templates make more than {nodes.NODES_AT_MOST} values")


def test_parameters_inside_of_text_are_counted() -> None:
    said = refused(_chain(5, "a" + "$(x)" * 500))
    assert said.endswith(f"parameters make a text of more than {nodes.WORD_AT_MOST} characters")


def test_parameters_do_not_nest_without_end() -> None:
    said = refused(_chain(7, "[" * 20 + "$(x)" + "]" * 20))
    assert said.endswith(f"templates nest more than {2 * nodes.DEPTH_AT_MOST} deep")


def test_columns_of_rows_are_counted() -> None:
    columns = ",".join(f"a{number}: 0-4095" for number in range(2000))
    said = refused(f"{HEAD}pci:\n- {{make: {{root: '0:00'}}, each: {{{columns}}}}}\n")
    assert said.endswith(f"templates make more than {nodes.NODES_AT_MOST} values")


def test_no_likely_name_is_looked_for_among_long_ones() -> None:
    """difflib needed minutes for two words of 4,000 letters that are nearly alike."""
    word = "".join(chr(0x4E00 + number * 7 % 4001) for number in range(4001))
    with bounded():
        assert expand.near(word, (word[2000:] + word[:2000],)) == ""
        assert expand.near("prots", ("ports",)) == "; did you mean 'ports'?"


@pytest.mark.parametrize("field", ["cores", "nodes"])
def test_a_numbering_that_repeats_is_told_at_once(field: str) -> None:
    """30,000 words of 8,192 CPUs each were all written out first."""
    lists = ",".join(["0-8191"] * 30_000)
    said = refused(f"schema: topo-agent/machine/v1\nname: t\ncpus: {{cores: 2, numbering: {{{field}: [{lists}]}}}}\n")
    assert said.endswith(f"cpus.numbering.{field}: CPU 0 is there twice")


def test_nodes_that_repeat_cpus_are_told_at_once() -> None:
    lists = ",".join(["0-8191"] * 30_000)
    said = refused(f"{HEAD}numa: {{cpus: [{lists}]}}\n")
    assert said.endswith("CPU 0 is in another node already")


def test_virtual_functions_are_counted_all_together() -> None:
    said = refused(
        f"{HEAD}pci:\n- {{make: {{root: '$(r):00', below: [{{nic: cx7, vfs: 2048}}]}}, each: {{r: 1000-2000}}}}\n"
    )
    assert said.endswith(f"more than {layout.FUNCTIONS_AT_MOST} functions")


def test_roots_are_counted() -> None:
    said = refused(f"{HEAD}pci:\n- {{make: {{root: '$(r):00'}}, each: {{r: 1000-4000}}}}\n")
    assert said.endswith(f"more than {layout.ROOTS_AT_MOST} roots")


def test_gpus_are_counted() -> None:
    said = refused(f"{HEAD}pci:\n- {{make: {{root: '$(r):00', below: [{{gpu: h100}}]}}, each: {{r: 1000-1300}}}}\n")
    assert said.endswith(f"more than {layout.GPUS_AT_MOST} GPUs")


def test_files_of_a_description_are_counted() -> None:
    said = refused(
        f"{HEAD}pci:\n- {{make: {{root: '$(r):00', below: [{{nic: cx7, msi: 4096}}]}}, each: {{r: 1000-1999}}}}\n"
    )
    assert said.endswith(
        f"this machine has more than {tree.ENTRIES_AT_MOST} files, or {tree.TEXT_AT_MOST >> 20} MiB of them"
    )


def test_edits_are_counted() -> None:
    """Each went through all files of the machine: hours for a page of text."""
    pages = f"{HEAD}pci:\n- {{root: '0:00', below: [{{nic: cx7, vfs: 200}}]}}\nedits:\n"
    said = refused(f"{pages}- {{make: {{of: all, file: numa_node, says: 0}}, each: {{r: 1-1000}}}}\n")
    assert said.endswith(f"edits change more than {edits._AT_MOST} files")


def test_a_clique_is_a_number() -> None:
    said = refused(f"{HEAD}nvidia: {{fabric: {{clique: 3 2766}}}}\npci: [{{root: '0:00', below: [{{gpu: h100}}]}}]\n")
    assert said.endswith("nvidia.fabric.clique: expected a number from 0 to 4294967295")


@pytest.mark.parametrize(
    ("text", "told"), [("012", 12), ("0x1f", 31), ("0xzz", "0xzz"), ("²", "²"), ("7", 7), ("a", "a")]
)
def test_numbers_of_a_platform_are_numbers_where_they_are(text: str, told: Json) -> None:
    """A word that looks like a number and is none was an internal error."""
    assert nvidia._plain(text) == told


def test_a_long_name_does_not_make_a_long_message() -> None:
    said = refused(HEAD + "pci: " + "".join(f"{{{'k' * 4000}: " for _ in range(20)) + "1" + "}" * 20)
    assert len(said) < LINE


def test_a_name_of_several_lines_makes_one_line() -> None:
    said = refused(HEAD + '"pci\\n\\u2028\\e[31m": 1\n')
    assert said.splitlines() == [said]
    assert said.isprintable()
    assert "pci???[31m" in said


def test_a_description_that_is_a_fifo_does_not_wait(tmp_path: Path) -> None:
    path = tmp_path / "machine.yaml"
    os.mkfifo(path)
    with bounded(), pytest.raises(BadSource, match=f"^{re.escape(str(path))}: expected a description .*no file$"):
        from_file(str(path))


def test_a_document_that_is_nested_without_end_is_unreadable(tmp_path: Path) -> None:
    (tmp_path / "sys").mkdir()
    (tmp_path / "documents").mkdir()
    (tmp_path / "documents" / "nvml.json").write_text("[" * 200_000, encoding="ascii")
    with pytest.raises(Unavailable) as error:
        LiveHost(str(tmp_path)).document("nvml")
    assert error.value.reason == "unreadable"


def xz(dictionary: int, *streams: bytes) -> bytes:
    chain = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 1 << 16}]
    data = b"".join(lzma.compress(one, check=lzma.CHECK_NONE, filters=chain) for one in streams)
    # xz-file-format.txt 3.1: size, flags, filter 0x21, one byte of properties, padding, CRC32
    head = bytes([data[12], data[13], 0x21, 1, dictionary, 0, 0, 0])
    return data[:12] + head + zlib.crc32(head).to_bytes(4, "little") + data[24:]


PLAIN = packed([], tarfile.GNU_FORMAT, [], bytes, [])


def test_the_dictionary_of_an_xz_file_is_bounded(tmp_path: Path) -> None:
    """40 is 4 GiB, allocated at once for a file of 200 bytes: a crash where memory is scarce."""
    path = tmp_path / "machine"
    assert tried(path, xz(8, PLAIN), read_archive) is None
    assert "Memory usage limit exceeded" in (tried(path, xz(40, PLAIN), read_archive) or "")
    assert tried(path, lzma.compress(PLAIN, preset=9), read_archive) is None


def test_streams_of_an_xz_file_follow_each_other(tmp_path: Path) -> None:
    path, first, second = tmp_path / "machine", PLAIN[:700], PLAIN[700:]
    halves = lzma.compress(first) + bytes(8) + lzma.compress(b"") + lzma.compress(second) + bytes(4)
    assert tried(path, halves, read_archive) is None
    assert tried(path, halves[:-40], read_archive) is not None
    assert tried(path, halves + b"garbage", read_archive) is not None


def extended(data: bytes, times: int) -> bytes:
    def header(kind: bytes, size: int) -> bytes:
        about = tarfile.TarInfo("sys/x")
        about.type, about.size = kind, size
        return about.tobuf(tarfile.USTAR_FORMAT)

    padded = data.ljust(-(-len(data) // 512) * 512, b"\0")
    return (header(tarfile.XHDTYPE, len(data)) + padded + header(tarfile.REGTYPE, 0)) * times + PLAIN


def test_extended_headers_are_bounded(tmp_path: Path) -> None:
    """CVE-2024-6232: the square of the length of digits; an hour for one of the largest header that was read."""
    path = tmp_path / "machine"
    said = f"{path}: {archive.EXPECTED}; its extended headers are more than a machine can need"
    assert tried(path, extended(b"1" * 500_000, 1), read_archive) == said
    assert tried(path, extended(b"1010 comment=" + b"c" * 996 + b"\n", 1100), read_archive) == said
    assert tried(path, extended(b"1010 comment=" + b"c" * 996 + b"\n", 1000), read_archive) is None


@pytest.mark.parametrize("kind", [b"Z", tarfile.REGTYPE, tarfile.GNUTYPE_SPARSE, tarfile.CONTTYPE])
@pytest.mark.parametrize("size", [10 << 30, (1 << 63) - 1])
def test_the_size_of_any_member_is_bounded(tmp_path: Path, kind: bytes, size: int) -> None:
    """Of a type that tarfile does not know, only tarfile looked at the size: it read behind the end without end."""
    data = packed([("sys/x", kind, "", b"", size)], tarfile.GNU_FORMAT, [], bytes, [])
    path = tmp_path / "machine"
    said = f"{path}: {archive.EXPECTED}; it unpacks to more than a machine can be"
    assert tried(path, data, read_archive) == said


def test_a_member_of_an_unknown_type_is_passed_over(tmp_path: Path) -> None:
    data = packed([("sys/x", b"Z", "", b"x" * (3 << 20), None)], tarfile.GNU_FORMAT, [], bytes, [])
    assert tried(tmp_path / "machine", data, read_archive) is None


def test_directories_that_paths_name_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line of 130 bytes named 63 directories: a recording within its limits grew to tens of gigabytes."""
    monkeypatch.setattr("topo_agent.host.paper.ENTRIES_AT_MOST", 10_000)
    lines = "".join(f'sys/{number}{"/d" * 60}/x = ""\n' for number in range(1000))
    said = tried(tmp_path / "machine", f"{recording.FIRST_LINE}\n{lines}".encode(), read_recording)
    assert said is not None
    assert said.endswith("it has more than 10000 files and directories")


def test_names_count_as_the_text_of_an_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "TEXT_AT_MOST", 10_000)
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as made:
        for number in range(100):
            made.addfile(tarfile.TarInfo(f"sys/{number}{'n' * 200}"))
    said = tried(tmp_path / "machine", out.getvalue(), read_archive)
    assert said is not None
    assert said.endswith("it unpacks to more than a machine can be")


# The program itself: status 3 and one line that names the file


def _zeros() -> bytes:
    zeros = zlib.compressobj(9, zlib.DEFLATED, 31)
    return b"".join(zeros.compress(bytes(1 << 20)) for _ in range(300)) + zeros.flush()


def _laughs() -> bytes:
    return HEAD.encode() + HOSTILE[-1]


_DUMP = ("dump", "--from", "{}")
_SYNTH = ("synth", "{}", "-o", "{}.out")
_OVERLAY = ("dump", "--from", str(ROOT / "fixtures/qemu-x86/host.topo"), "--overlay", "{}")
BOMBS: dict[str, tuple[tuple[str, ...], Callable[[], bytes]]] = {
    "gzip": (_DUMP, _zeros),
    "xz": (_DUMP, lambda: xz(40, PLAIN)),
    "pax": (_DUMP, lambda: extended(b"1" * 500_000, 1)),
    "size": (_DUMP, lambda: packed([("sys/x", tarfile.REGTYPE, "", b"", 10 << 30)], tarfile.GNU_FORMAT, [], bytes, [])),
    "nested": (_DUMP, f"{recording.FIRST_LINE}\n@nvml {'[' * 500_000}\n".encode),
    "nul": (_DUMP, f'{recording.FIRST_LINE}\nsys/a\0b = ""\n'.encode),
    "laughs.yaml": (_SYNTH, _laughs),
    "parameters.yaml": (_SYNTH, lambda: _chain(6, "[" + ",".join(["$(x)"] * 50) + "]").encode()),
    "overlay.yaml": (_OVERLAY, _laughs),
}


@pytest.mark.parametrize("name", BOMBS)
def test_the_program_refuses_it_in_one_line(tmp_path: Path, name: str) -> None:
    arguments, made = BOMBS[name]
    path = tmp_path / name
    path.write_bytes(made())
    command = [sys.executable, "-m", "topo_agent", *(one.replace("{}", str(path)) for one in arguments)]
    done = subprocess.run(
        ["sh", "-c", f'ulimit -v {MEMORY >> 10}; exec "$0" "$@"', *command],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (3, "")
    lines = done.stderr.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(f"topo-agent: {path}: ")
    assert len(lines[0]) < LINE
