"""A machine as one text file, a line for each entry: written to be read, searched, compared and edited.

    # topo-agent recording v1
    @recording {"complete": true, "privileged": true, "redacted": true, "scope": "host"}
    sys/class/net/eth3 -> ../../devices/pci0000:16/0000:16:01.0/net/eth3
    sys/devices/pci0000:16/0000:16:01.0/numa_node = "1\\n"
    sys/devices/pci0000:16/0000:16:01.0/net/eth3/speed ! EINVAL
    sys/kernel/iommu_groups/
    @nvml ! not_supported
    @process {"allowed_cpus": [0, 1], "architecture": "x86_64"}
    # end

A path or target with a blank or anything else unusual is a JSON string. Lines of a recording that was written
here are sorted. `@recording` promises the last line, so that a file cut short is noticed; one typed by hand may
leave both out and is then taken as incomplete.
"""

from __future__ import annotations

import errno
import json
import math
import re
from collections.abc import Iterator

from topo_agent.diagnostics import Unknown
from topo_agent.host import BadSource, Host, Json, Source, Unavailable, covered
from topo_agent.host.archive import unpacked
from topo_agent.host.paper import TARGET_AT_MOST, Document, Entry, Failure, Link, PaperHost, placed
from topo_agent.host.redact import redacted

FIRST_LINE = "# topo-agent recording v1"
LAST_LINE = "# end"
BYTES_AT_MOST = 256 << 20
LINES_AT_MOST = 1_000_000

_PLAIN = re.compile(r"[!$-?A-~][!-~]*")  # printable, no blank, no quote or # or @ in front
_DOCUMENT = re.compile(r"@([a-z][a-z0-9_-]{0,40}) (?:! ([a-z_]{1,40})|(.+))", re.ASCII)
_ERRNO: dict[str, int] = {name: getattr(errno, name) for name in dir(errno) if name.startswith("E")}
_REASONS = frozenset(reason.value for reason in Unknown)


def _finite(word: str) -> float:
    """`"1.5"` -> 1.5; NaN, Infinity and 1e999 are no JSON and would not come back as they were."""
    value = float(word)
    if not math.isfinite(value):
        raise ValueError(f"{word[:40]} is no JSON")
    return value


_JSON = json.JSONDecoder(parse_constant=_finite, parse_float=_finite)


def write(host: Host, *, keep_names: bool = False) -> str:
    """The recording of a host; recording what was recorded gives the same text."""
    paper = covered.copy(host)
    return "".join(line + "\n" for line in lines(paper if keep_names else redacted(paper)))


def lines(paper: PaperHost) -> Iterator[str]:
    """A machine on paper, line by line, without the line ends."""
    yield FIRST_LINE
    source = paper.source
    yield "@recording " + _dumps(
        {
            "complete": source.complete,
            "privileged": source.privileged,
            "redacted": source.redacted,
            "scope": source.scope,
        }
    )
    for path in sorted(paper.entries):
        entry = paper.entries[path]
        if entry is not None or not paper.names(path):
            yield _entry_line(path, entry)
    for name in sorted(paper.documents):
        answer = paper.documents[name]
        yield f"@{name} ! {answer.reason}" if isinstance(answer, Unavailable) else f"@{name} {_dumps(answer)}"
    yield LAST_LINE


def read(path: str) -> PaperHost:
    """The machine in a file, which may be compressed; BadSource names the file and the line."""
    with unpacked(path, BYTES_AT_MOST) as file:
        data = file.read(BYTES_AT_MOST + 1)
    if len(data) > BYTES_AT_MOST:
        raise BadSource(f"{path}: expected a recording of at most {BYTES_AT_MOST >> 20} MiB")
    return parse(data, path)


def parse(text: str | bytes, name: str = "recording") -> PaperHost:
    """The machine that a recording tells of; BadSource("name: line 7: …") where it tells of none."""
    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8")
        except UnicodeDecodeError as error:
            raise BadSource(f"{name}: expected a recording; byte {error.start} is not UTF-8") from None
    if text.count("\n") > LINES_AT_MOST:
        raise BadSource(f"{name}: expected a recording of at most {LINES_AT_MOST} lines")
    found = _Reader(name)
    found.all(text.split("\n"))
    try:
        return PaperHost(found.entries, found.documents, source=found.source)
    except ValueError as error:
        raise BadSource(f"{name}: expected a recording; {error}") from None


class _Reader:
    def __init__(self, name: str) -> None:
        self.name = name
        self.entries: dict[str, Entry] = {}
        self.documents: dict[str, Document] = {}
        self.source = Source(kind="recording", complete=False)

    def all(self, text: list[str]) -> None:
        if text[0].rstrip("\r") != FIRST_LINE:
            raise BadSource(f"{self.name}: expected a recording, whose first line is {FIRST_LINE!r}")
        if text[-1]:
            raise BadSource(f"{self.name}: expected a whole recording; line {len(text)} is cut off")
        for number, line in enumerate(text, 1):
            try:
                self._line(line.rstrip("\r"))
            except (ValueError, RecursionError) as error:
                why = "nested too deeply" if isinstance(error, RecursionError) else str(error)
                raise BadSource(f"{self.name}: line {number}: expected a line of a recording; {why}") from None
        if "recording" in self.documents:
            self._made(self.documents.pop("recording"), ended=text[-2].rstrip("\r") == LAST_LINE)
        if not self.entries and not self.documents:
            raise BadSource(f"{self.name}: expected a recording; this one holds nothing")

    def _line(self, line: str) -> None:
        if line.startswith("@"):
            self._document(line)
        elif line.strip() and not line.startswith("#"):
            path, entry = _parsed(line)
            if path in self.entries:
                raise ValueError(f"{path[:80]!r} is there twice")
            self.entries[path] = entry

    def _document(self, line: str) -> None:
        matched = _DOCUMENT.fullmatch(line)
        if not matched:
            raise ValueError(f"{line[:40]!r} is no document (@name and JSON)")
        name, reason, text = matched.groups()
        if name in self.documents or (reason and reason not in _REASONS):
            raise ValueError(f"@{name} is there twice" if name in self.documents else f"{reason!r} is no reason")
        self.documents[name] = Unavailable(reason) if reason else _loads(text)

    def _made(self, made: Document, *, ended: bool) -> None:
        """How the recording was made; a value that does not fit counts as not recorded."""
        if not ended:
            raise BadSource(f"{self.name}: expected a whole recording; its last line {LAST_LINE!r} is missing")
        if not isinstance(made, dict):
            raise BadSource(f"{self.name}: expected a JSON object after @recording")
        privileged, scope = made.get("privileged"), made.get("scope")
        self.source = self.source._replace(
            complete=made.get("complete") is True,
            redacted=made.get("redacted") is True,
            privileged=privileged if isinstance(privileged, bool) else None,
            scope="host" if scope == "host" else "container" if scope == "container" else None,
        )


def _entry_line(path: str, entry: Entry) -> str:
    word = _word(path)
    if entry is None:
        return f"{word}/"
    if isinstance(entry, Link):
        return f"{word} -> {_word(entry.target)}"
    if isinstance(entry, Failure):
        name = errno.errorcode.get(entry.errno, "EIO")
        return f"{word}/ ! {name}" if entry.directory else f"{word} ! {name}"
    return f"{word} = {json.dumps(entry if isinstance(entry, str) else entry.decode('utf-8', 'replace'))}"


def _parsed(line: str) -> tuple[str, Entry]:
    """`sys/class/net/eth3/speed ! EINVAL` -> ("sys/class/net/eth3/speed", Failure(22))."""
    path, rest = _taken(line)
    directory = rest.startswith("/") or path.endswith("/")
    rest = rest.removeprefix("/")
    path = placed(path.removesuffix("/"))
    mark, _, value = rest.lstrip(" ").partition(" ")
    if directory and not mark:
        return path, None
    if mark == "!" and value in _ERRNO:
        return path, Failure(_ERRNO[value], directory)
    if mark == "->" and not directory:
        return path, Link(_target(value))
    if mark == "=" and not directory:
        text = _loads(value)
        if isinstance(text, str):
            return path, text
    raise ValueError(f'{rest.strip()[:40]!r} is neither = "text", -> target nor ! ERRNO')


def _taken(line: str) -> tuple[str, str]:
    """A word, plain or a JSON string, and what follows: `"a b" -> c` -> ("a b", " -> c")."""
    if not line.startswith('"'):
        word, blank, rest = line.partition(" ")
        return word, blank + rest
    word, end = _JSON.raw_decode(line)
    return str(word), line[end:]


def _target(value: str) -> str:
    target, rest = _taken(value)
    if rest or not target or len(target) > TARGET_AT_MOST or "\0" in target:
        raise ValueError(f"{value[:40]!r} is no target of a link")
    return target


def _word(text: str) -> str:
    return text if _PLAIN.fullmatch(text) else json.dumps(text)


def _dumps(value: Json) -> str:
    return json.dumps(value, sort_keys=True)


def _loads(text: str) -> Json:
    try:
        value: Json = _JSON.decode(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"column {error.colno} of {text[:40]!r} is no JSON") from None
    return value
