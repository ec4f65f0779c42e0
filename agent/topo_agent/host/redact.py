"""Who a machine is, taken out of what it says: addresses, GUIDs, serials, UUIDs and names become pseudonyms.

First the secrets are met where they are known by the name of a file or of a key, then they are replaced in
every path, link, text and document. Whatever looks like a MAC, GUID, UUID or GID is replaced wherever it is.
PCI addresses, ids and versions are never touched.
"""

from __future__ import annotations

import re

from topo_agent.host import Json, Unavailable
from topo_agent.host.paper import Document, Entry, Link, PaperHost
from topo_agent.host.pseudonyms import Pseudonyms, placeholder
from topo_agent.host.shapes import Shapes

_SERIAL = re.compile(
    r"(?:.*[_-])?(?:serial|serialno|serialnumber|sn)(?:[_-](?:number|no|num))?|.*serialnumber|.*asset_?tag|fru_id"
    r"|ifalias|.*password.*|.*secret.*|.*token",
    re.ASCII,
)
_HOST = re.compile(r"(?:.*_)?(?:hostname|host_name|nodename|node_name|sysname|system_name|sys_name|fqdn)", re.ASCII)
_HEX = re.compile(
    r"(?:.*_)?(?:guid|gid|ib_?guid|uuid|unique_id|hive_id|nguid|eui|eui64|phys_switch_id|phys_port_id|switchid"
    r"|xgmi_device_id|hostid|machine_id|boot_id|mac|mac_address|perm_address|.*uuid|.*guid)",
    re.ASCII,
)
_NQN = re.compile(r"(?:.*_)?(?:nqn|subsysnqn|hostnqn)", re.ASCII)
# Four numbers with dots between are an address, except where versions are told.
_VERSION = re.compile(r".*(?:ver|version|rev|revision|release|fw|firmware|bios|vbios|date|model|driver).*", re.ASCII)
_KEYED = re.compile(
    r"(?im)^((?:[\w.]*serial(?:[ _-]?(?:number|no))?|[\w.]*hostname|nodename|asset[ _]tag)[ \t]*[:=][ \t]*"
    r"|(?:unique_id|hive_id) )(\S[^\n]*?)(\s*)$"
)
_DEVICE = re.compile(r"[A-Za-z]+[A-Za-z0-9]*[_-][0-9]+")
_WORD = re.compile(r'(?:[^\s"]|"[^"]*"?)+')
_NVME = re.compile(r"(nvme\.[0-9a-f]{4}-)([0-9a-f]+)(?=-)")
_BOOT = re.compile(
    r"(?:iommu|(?:intel|amd)_iommu|pci|pcie_\w+|isolcpus|nohz\w*|rcu_nocb\w*|irqaffinity|numa\w*|(?:default_)?huge\w+"
    r"|transparent_hugepage|mitigations|maxcpus|nr_cpus|possible_cpus|mem|efi|tsc|clocksource|idle|processor[.]\w+"
    r"|intel_\w+[.]\w+|(?:intel|amd)_pstate|skew_tick|nmi_watchdog|nvme\w*[.]\w+|nvidia\w*[.]\w+|mlx\w*[.]\w+"
    r"|amdgpu[.]\w+|xe[.]\w+|i915[.]\w+|vfio\w*[.]\w+|kvm\w*[.]\w+|cgroup_\w+|net[.]ifnames|biosdevname|crashkernel"
    r"|console|movable_node|kernelcore|movablecore|panic|selinux|apparmor|audit|systemd[.]unified_cgroup_hierarchy)"
    r"=[^\s\"]*|quiet|splash|ro|rw|rhgb|nosmt|no[a-z_]{2,20}|threadirqs|--",
    re.ASCII,
)


def redacted(paper: PaperHost) -> PaperHost:
    """The same machine without its names; what is redacted already stays as it is."""
    work = _Redaction(paper)
    work.tree()
    work.documents()
    work.settle()
    return PaperHost(work.tree(), work.documents(), source=paper.source._replace(redacted=True))


class _Redaction:
    """Runs twice over a machine: the first time it only meets the secrets (see Pseudonyms)."""

    def __init__(self, paper: PaperHost) -> None:
        self.paper = paper
        self.names = Pseudonyms(known=paper.source.redacted)
        self.shapes = Shapes(self.names)
        self.words: dict[str, str] = {}  # a serial or name -> its kind: replaced wherever it is
        self._parts = {part for path in paper.entries for part in path.split("/")}
        self._replaced: list[tuple[str, str, re.Pattern[str], str]] = []
        self._settled = False

    def settle(self) -> None:
        self.names.settle()
        self._settled = True
        self.shapes.forget()
        for word in sorted(self.words, key=lambda word: (-len(word), word)):
            edge = r"\d" if word.isdigit() else "A-Za-z0-9" if self.words[word] == "host" else None
            around = (f"(?<![{edge}])", f"(?![{edge}])") if edge else ("", "")
            pattern = re.compile(around[0] + re.escape(word) + around[1], re.IGNORECASE)
            made = self._name(self.words[word], word)
            self._replaced.append((word, word.lower(), pattern, made))
            if self.words[word] == "serial" and len(word) >= 8:  # wwid "nvme.144d-5334…": the serial in hexadecimal
                digits = word.encode().hex()
                self._replaced.append((word, digits, re.compile(digits, re.IGNORECASE), made.encode().hex()))

    def tree(self) -> dict[str, Entry]:
        return {self.path(path): self.entry(path, self.paper.entries[path]) for path in sorted(self.paper.entries)}

    def documents(self) -> dict[str, Document]:
        return {
            name: answer if isinstance(answer, Unavailable) else self.json("", answer)
            for name, answer in sorted(self.paper.documents.items())
        }

    def path(self, path: str) -> str:
        return "/".join([self.shapes.replaced(self._without_words(part, hosts=False)) for part in path.split("/")])

    def entry(self, path: str, entry: Entry) -> Entry:
        if isinstance(entry, Link):
            return Link(self.path(entry.target))
        if isinstance(entry, bytes):
            entry = entry.decode("utf-8", "replace")
        return self.text(path, entry) if isinstance(entry, str) else entry

    def text(self, path: str, text: str) -> str:
        name = path.rpartition("/")[2]
        if path == "proc/cmdline":
            text = _WORD.sub(lambda found: _boot_word(found[0]), text)
        elif name == "node_desc":
            text = self._node_desc(text)
        elif name == "wwid":
            text = _NVME.sub(self._nvme_serial, text) if _NVME.match(text) else self._value("serial", text)
        elif path.endswith("/nfit/id"):
            text = self._value("serial_number", text)
        else:
            text = self._value(name, text)
        return self._rest(name, _KEYED.sub(self._keyed, text))

    def _keyed(self, found: re.Match[str]) -> str:
        """A line of a text that names what it holds: `Serial : 1000…`, `unique_id 1156…`."""
        key = found[1].strip(" \t:=").lower().replace(" ", "_")
        return found[1] + self._value(key, found[2]) + found[3]

    def _node_desc(self, text: str) -> str:
        """`"gpu7 mlx5_0"` -> `"host1 mlx5_0"`; what a vendor writes there by itself stays, all else is a name."""
        word = text.strip(" \t\r\n\0")
        first, _, rest = word.partition(" ")
        if placeholder(word) or "ConnectX" in word or "Mellanox" in word:
            return text
        name = first if _DEVICE.fullmatch(rest) else word
        return text.replace(name, self._learn("host", name), 1)

    def _nvme_serial(self, found: re.Match[str]) -> str:
        """`nvme.144d-<serial in hexadecimal>-…`: what an old NVMe controller has for an id."""
        try:
            serial = bytes.fromhex(found[2]).decode("ascii").strip()
        except ValueError:
            return f"{found[1]}{self.names.of(f'hex{len(found[2])}', found[2])}"
        return found[1] + self._learn("serial", serial).encode("ascii").hex()

    def json(self, key: str, value: Json) -> Json:
        if isinstance(value, dict):
            return {self.path(inner): self.json(inner, it) for inner, it in sorted(value.items())}
        if isinstance(value, list):
            return [self.json(key, it) for it in value]
        plain = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", key).lower().replace("-", "_")
        if isinstance(value, str):
            return self._rest(plain, self._value(plain, value))
        if isinstance(value, int) and not isinstance(value, bool) and _SERIAL.fullmatch(plain):
            made = self._name("serial", str(value))
            return int(made) if made.isdigit() else made
        return value

    def _rest(self, name: str, text: str) -> str:
        """What is left to replace in any text: known words, and all that has the shape of an address."""
        if len(text) < 6 and text.strip() not in self.words:
            return text
        return self.shapes.replaced(self._without_words(text, hosts=True), ip=not _VERSION.fullmatch(name.lower()))

    def _value(self, name: str, text: str) -> str:
        """The whole text of a file or key that is known to hold a secret; any other text stays."""
        word = text.strip(" \t\r\n\0")
        if placeholder(word):
            return text
        name = name.lower()
        if _HEX.fullmatch(name):
            made = self.shapes.whole(word)
            return text.replace(word, self._learn("serial", word) if made is None else made)
        if _NQN.fullmatch(name):
            return text if word.endswith(".discovery") else text.replace(word, self._learn("nqn", word))
        if _HOST.fullmatch(name):
            return text.replace(word, self._learn("host", word))
        if _SERIAL.fullmatch(name) and not self.shapes.is_one(word):
            return text.replace(word, self._learn("serial", word))
        return text

    def _learn(self, kind: str, word: str) -> str:
        """Meet a word, and look for it everywhere if it cannot be mistaken for something else."""
        digits, letters = re.search(r"\d", word), re.search(r"[A-Za-z]", word)
        if kind == "host":
            short = word.partition(".")[0]
            known = {it: kind for it in (word, short) if len(it) >= 3 and not it.isdigit() and it not in self._parts}
            self.words.update(known)
        elif len(word) >= ((6 if letters else 10) if digits else 8) and (digits or word.isupper()):
            self.words[word] = kind
        return self._name(kind, word)

    def _name(self, kind: str, word: str) -> str:
        """A name with a domain keeps that it has one: "gpu7.dc.corp" -> "host1.example"."""
        if kind != "host" or "." not in word.strip("."):
            return self.names.of(kind, word)
        return self.names.of(kind, word.partition(".")[0]) + (".example" if self._settled else "")

    def _without_words(self, text: str, *, hosts: bool) -> str:
        low = text.lower()
        for word, looked_for, pattern, made in self._replaced:
            if looked_for in low and (hosts or self.words.get(word) != "host"):
                text = pattern.sub(made, text)
        return text


def _boot_word(word: str) -> str:
    """`"iommu=pt"` -> itself, `"root=UUID=0b5c…"` -> `"root=redacted"`: only what wiring may hang on is kept."""
    if _BOOT.fullmatch(word):
        return word
    key, equals, _ = word.partition("=")
    return f"{key}=redacted" if equals and re.fullmatch(r"[\w.-]+", key) else "redacted"
