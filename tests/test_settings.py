"""Settings: flags before variables before the file, and one line for whatever does not fit."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import stat
from pathlib import Path

import pytest

from topo_agent import settings
from topo_agent.publishers import addresses
from topo_agent.settings import SETTINGS, BadSettings, Loaded, Settings

NAMES = [one.name for one in SETTINGS]


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """This machine may have settings of its own."""
    monkeypatch.setattr(settings, "FILE", str(tmp_path / "usual" / "topo-agent.toml"))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "a.toml"


def from_text(text: str, file: Path) -> Loaded:
    file.write_text(text, encoding="utf-8")
    return settings.load({}, {}, str(file))


def refused(said: pytest.ExceptionInfo[BadSettings]) -> str:
    text = str(said.value)
    assert "\n" not in text
    assert text.isprintable()
    assert len(text) < 500
    return text


def test_the_defaults() -> None:
    loaded = settings.load({}, {}, None)
    assert loaded.settings == Settings()
    assert loaded.origins == dict.fromkeys(NAMES, "default")
    assert loaded.settings.listen == ("127.0.0.1:19738",)
    assert (loaded.settings.rescan, loaded.settings.stale_after, loaded.settings.timeout) == (300, 600, 60)
    assert loaded.settings.state_mode == 0o644


@pytest.mark.parametrize("name", NAMES)
def test_every_place_says_it_the_same_way(name: str, file: Path) -> None:
    """The example of a setting is another value than its default, wherever it is said."""
    one = next(one for one in SETTINGS if one.name == name)
    extra = {} if not name.startswith("tls-") else {f"tls-{which}": "/x" for which in ("certificate", "key")}
    wanted = one.kind.read(one.example)
    assert wanted != getattr(Settings(), one.field)
    texts = extra | {name: one.example}
    by_name = {one.name: one for one in SETTINGS}
    by_flag = settings.load(texts, {}, None)
    by_variable = settings.load({}, {by_name[key].variable: text for key, text in texts.items()}, None)
    lines = [f"{key} = {by_name[key].kind.toml(by_name[key].kind.read(text))}\n" for key, text in texts.items()]
    by_file = from_text("".join(lines), file)
    assert by_flag.settings == by_variable.settings == by_file.settings
    assert getattr(by_flag.settings, one.field) == wanted
    assert by_flag.origins[name] == f"--{name}"
    assert by_variable.origins[name] == "TOPO_AGENT_" + name.upper().replace("-", "_")
    assert by_file.origins[name] == str(file)
    assert one.kind.read(one.kind.text(wanted)) == wanted


def test_what_is_nearer_counts(file: Path) -> None:
    file.write_text('rescan = "1m"\ntimeout = 1\nhistory = 1\n')
    environment = {"TOPO_AGENT_RESCAN": "2m", "TOPO_AGENT_TIMEOUT": "2"}
    found, origins = settings.load({"rescan": "3m"}, environment, str(file))
    assert (found.rescan, found.timeout, found.history) == (180, 2, 1)
    assert [origins[name] for name in ("rescan", "timeout", "history", "domain")] == [
        "--rescan", "TOPO_AGENT_TIMEOUT", str(file), "default",
    ]  # fmt: skip


def test_the_usual_file_is_read_where_it_exists() -> None:
    usual = Path(settings.FILE)
    usual.parent.mkdir()
    usual.write_text("timeout = 5")
    assert settings.load({}, {}, None).settings.timeout == 5
    assert settings.load({}, {}, None).origins["timeout"] == settings.FILE
    usual.unlink()
    usual.symlink_to("elsewhere")
    assert settings.load({}, {}, None).settings.timeout == 60


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_usual_file_that_cannot_be_read_is_not_passed_over() -> None:
    usual = Path(settings.FILE)
    usual.parent.mkdir()
    usual.touch(mode=0)
    with pytest.raises(BadSettings, match="Permission denied"):
        settings.load({}, {}, None)


def test_other_variables_are_no_errors() -> None:
    """Every option of every command is one."""
    variables = {"TOPO_AGENT_FROM": "/x", "TOPO_AGENT_RESCANN": "1m", "TOPO_AGENT_": "", "RESCAN": "1"}
    assert settings.load({}, variables, None).settings == Settings()


def test_an_empty_variable(file: Path) -> None:
    file.write_text('listen = "127.0.0.1:1"\nrescan = "1m"\nmetrics-pairs = true\n')
    empty = {one.variable: "" for one in SETTINGS}
    found, origins = settings.load({}, empty, str(file))
    assert (found.listen, found.state_dir) == ((), "")
    assert (found.rescan, found.metrics_pairs) == (60, True)
    assert (origins["listen"], origins["rescan"]) == ("TOPO_AGENT_LISTEN", str(file))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ('listen = ""', ()),
        ("listen = []", ()),
        ('listen = ["127.0.0.1:1", "unix:/run/x"]', ("127.0.0.1:1", "unix:/run/x")),
        ('listen = "127.0.0.1:1, [::1]:1,unix:/run/x"', ("127.0.0.1:1", "[::1]:1", "unix:/run/x")),
        ('listen = "localhost:80"', ("localhost:80",)),
        ('listen = "[fe80::1%eth0]:80"', ("[fe80::1%eth0]:80",)),
        ('listen = "[fe80::1%eth0.100]:80,[::ffff:192.0.2.1]:80"', ("[fe80::1%eth0.100]:80", "[::ffff:192.0.2.1]:80")),
        ('listen = "node-1.example.com.:80"', ("node-1.example.com.:80",)),
    ],
)
def test_listen(text: str, wanted: tuple[str, ...], file: Path) -> None:
    assert from_text(text, file).settings.listen == wanted


@pytest.mark.parametrize(
    ("said", "seconds", "shown"),
    [("30s", 30, "30s"), ("5m", 300, "5m"), ("1h", 3600, "1h"), ("90", 90, "90s"), ("60", 60, "1m"),
     ("7d", 7 * 86400, "7d")],
)  # fmt: skip
def test_durations(said: str, seconds: int, shown: str) -> None:
    rescan = next(one for one in SETTINGS if one.name == "rescan")
    assert rescan.kind.read(said) == seconds
    assert rescan.kind.text(seconds) == shown


@pytest.mark.parametrize("text", ["a" * 63 + ":1", ".".join(["a" * 63] * 9) + ":1", "_:1", "1.2.3.4.5:1", "a.:1"])
def test_names_that_are_taken_can_be_looked_up(text: str) -> None:
    """Found or not: an OSError has an errno and a text, where another error would end the program without either."""
    (one,) = settings.load({"listen": text}, {}, None).settings.listen
    found = addresses.parse(one)
    with contextlib.suppress(OSError):
        socket.getaddrinfo(found.host, found.port, flags=socket.AI_NUMERICHOST)  # asks nobody


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("state-group", "0"),
        ("state-group", "4294967294"),  # chown(2): -1 leaves a group as it is, and gid_t has 32 bits
        ("state-dir", "/x/"),
        ("state-dir", "/" + "x" * 4094),  # PATH_MAX, with the NUL
        ("dranet-socket", "/" + "x" * 106),  # unix(7): sun_path has 108 bytes, with the NUL
    ],
)
def test_as_much_as_the_kernel_takes(name: str, text: str) -> None:
    assert getattr(settings.load({name: text}, {}, None).settings, name.replace("-", "_")) == text


def test_a_group_by_its_number(file: Path) -> None:
    assert from_text("state-group = 1000", file).settings.state_group == "1000"


BAD = {
    "listen": [
        "x", ":1", "127.0.0.1", "127.0.0.1:", "127.0.0.1:0", "127.0.0.1:65536", "127.0.0.1:-1", "::1:80", "[::1]",
        "unix:", "unix:x", "unix:/", "unix:/x/", "unix:/" + "x" * 107, "unix:/x\n", "a b:1", "127.0.0.1:1,",
        "127.0.0.1:1,127.0.0.1:1", "http://127.0.0.1:1", "127.0.0.1:١",
        "a" * 64 + ":1", "a..b:1", ".a:1", ".:1", "[::::]:1", "[" + "1:" * 40 + "]:1", "[1.2.3.4]:1",
        "[fe80::1%]:1", "[fe80::1%a..b]:1", "[fe80::1%" + "x" * 16 + "]:1", "unix:/" + "é" * 54,
        ",".join(f"127.0.0.1:{n}" for n in range(1, 18)),
    ],
    "rescan": ["", "0", "0s", "-1", "1.5m", "5 m", "5M", "8d", "1h30m", "9" * 5000, "٣s", "m"],
    "stale-after": ["8d", "never"],
    "timeout": ["0", "86401", "1m", "1_0", " 1"],
    "state-dir": ["x", "./x", "/x\0", "/x\ny", "/" + "x" * 4096, "/" + "é" * 2048, "/\udcff"],
    "state-mode": ["", "0o644", "644x", "888", "0666", "0044", "01644", "4755", "-644"],
    "state-group": ["a b", "a:b", "-x", "x" * 33, "a\n", "4294967295", "99999999999", "9" * 32, "-1"],
    "textfile": ["x.prom", "/x", "/x.prom/", "/x.prom\n"],
    "history": ["-1", "10001", "all"],
    "overlay": ["x\n", "\x1b", "x/", "/"],
    "metrics-pairs": ["2", "maybe", "nope"],
    "log-format": ["", "TEXT", "yaml", "text|json"],
    "tls-certificate": ["x.crt", "/x/"],
    "tls-key": ["x.key", "/x/"],
    "tls-client-ca": ["x.crt", "/"],
    "labels": ["", "yes", "Node"],
    "nfd-namespace": ["", "a.b", "A", "a" * 64],
    "nfd-file": ["features.d/x", "/a\nb", "/features.d/"],
    "node": ["Node-1", "a..b", "-a", "a" * 254, "a/b"],
    "kubeconfig": ["a\0b", "a" * 4096, "a/"],
    "context": ["a\nb", "a" * 254],
    "mapping": ["a\nb", "a/"],
    "label-keys": ["rack", "a.b/c", "a.b/c=rocks", "c=rack", "A.b/c=rack", "a.b/c=rack,a.b/c=leaf", "a.b/-=rack",
                   ",".join(f"a.b/c{number}=rack" for number in range(17))],
    "gpu-clique": ["perhaps"],
    "slice-mode": ["", "on"],
    "slice-numa": ["", "ints"],
    "slice-vfs": ["perhaps"],
    "events": ["perhaps"],
    "node-condition": ["perhaps"],
    "dranet-socket": ["dranet", "/x/", "/", "/x\0", "/" + "x" * 107, "/" + "é" * 54],
    "domain": ["", "Example.com", "a..b", "-a.b", "a_b", "a" * 64, "a.b.", "a/b"],
}  # fmt: skip
BAD_CASES = [(name, text) for name, texts in BAD.items() for text in texts]


def test_every_setting_has_bad_values() -> None:
    assert [*BAD] == NAMES


@pytest.mark.parametrize(("name", "text"), BAD_CASES)
def test_bad_values(name: str, text: str) -> None:
    one = next(one for one in SETTINGS if one.name == name)
    with pytest.raises(BadSettings) as said:
        settings.load({name: text}, {}, None)
    assert refused(said).startswith(f"--{name}: expected {one.kind.expected}")
    assert said.value.usage
    if not text:
        return
    with pytest.raises(BadSettings) as said:
        settings.load({}, {one.variable: text}, None)
    assert refused(said).startswith(f"{one.variable}: expected ")
    assert said.value.usage


@pytest.mark.parametrize(
    "line",
    [
        "rescan = true", "rescan = 1.5", "rescan = 0", "rescan = []", "rescan = -5", "rescan = 1979-05-27",
        "timeout = 1e3", "history = {}", 'metrics-pairs = "yes"', "metrics-pairs = 1",
        "state-group = -1", "state-group = 4294967295", "state-group = true",
        "state-mode = 644", "state-mode = 0o644", "domain = 5", "listen = 5", "listen = [5]", 'listen = ["a:1,b:2"]',
        'listen = [""]', "listen = [[]]", "log-format = {a = 1}", "timeout = 0x" + "f" * 9000,
    ],
)  # fmt: skip
def test_bad_values_of_a_file(line: str, file: Path) -> None:
    with pytest.raises(BadSettings) as said:
        from_text(f"# a\n{line}\n", file)
    name = line.partition(" = ")[0].partition(".")[0]
    assert refused(said).startswith(f"{file}: {name}: expected ")
    assert not said.value.usage


@pytest.mark.parametrize(
    ("line", "meant"),
    [("rescn = 1", "rescan"), ("stale_after = 1", "stale-after"), ("Listen = ''", "listen"),
     ("tls-keys = ''", "tls-key")],
)  # fmt: skip
def test_unknown_keys(line: str, meant: str, file: Path) -> None:
    with pytest.raises(BadSettings) as said:
        from_text(line, file)
    wanted = f"{file}: no setting is called {line.partition(' ')[0]!r}; did you mean "
    assert refused(said).startswith(wanted)
    assert f"did you mean {meant}?" in refused(said)


@pytest.mark.parametrize("line", ["[http]\nlisten = ''", '"" = 1', '"a\\nb" = 1', "[[x]]", "x" * 5000 + " = 1"])
def test_keys_like_no_other(line: str, file: Path) -> None:
    with pytest.raises(BadSettings, match="no setting is called"):
        from_text(line, file)
    with pytest.raises(BadSettings) as said:
        from_text(line, file)
    refused(said)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("rescan", 1), ('\n\nrescan = "5m', 3), ("rescan = 5m", 1), ("timeout = 1\ntimeout = 2\n", 2),
        ("state-mode = 0644", 1), ("a = [", 1), ("\n\x00", 2),
    ],
)  # fmt: skip
def test_no_toml(text: str, line: int, file: Path) -> None:
    with pytest.raises(BadSettings) as said:
        from_text(text, file)
    assert refused(said).startswith((f"{file}:{line}: expected ", f"{file}: expected "))
    assert f":{line}: " in refused(said) or "end of document" in refused(said)


@pytest.mark.parametrize(
    "text",
    ["a = " + "[" * 20_000, "a = " + "9" * 6000, "x\n" * 33_000, "a = " + "{a=" * 9000, "rescan" + ".a" * 9000 + "=1"],
)
def test_hostile_toml(text: str, file: Path) -> None:
    with pytest.raises(BadSettings) as said:
        from_text(text, file)
    assert refused(said).startswith(str(file))


def test_files_that_are_none(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    (tmp_path / "large").write_bytes(b"#" * (65 << 10))
    for path in (tmp_path, "/dev/zero", *(tmp_path / name for name in ("missing", "pipe", "bytes", "large"))):
        with pytest.raises(BadSettings) as said:
            settings.load({}, {}, str(path))
        assert refused(said).startswith(f"{path}: expected settings (TOML)")
        assert not said.value.usage


def test_damaged_files(file: Path) -> None:
    """Taken or refused in one line, whatever the bytes."""
    whole = "".join(f"{one.name} = {one.kind.toml(one.kind.read(one.example))}\n" for one in SETTINGS).encode()
    chance = random.Random(8)  # noqa: S311
    for _ in range(300):
        damaged = bytearray(whole)
        for _ in range(chance.randint(1, 5)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        file.write_bytes(damaged)
        try:
            assert isinstance(settings.load({}, {}, str(file)), Loaded)
        except BadSettings as error:
            assert str(error).startswith(str(file))  # noqa: PT017
            assert str(error).isprintable()  # noqa: PT017


@pytest.mark.parametrize(
    ("texts", "missing"),
    [
        ({"tls-certificate": "/c"}, "tls-key"),
        ({"tls-key": "/k"}, "tls-certificate"),
        ({"tls-client-ca": "/a"}, "tls-certificate"),
        ({"tls-client-ca": "/a", "tls-certificate": "/c"}, "tls-key"),
    ],
)
def test_what_belongs_together(texts: dict[str, str], missing: str, file: Path) -> None:
    with pytest.raises(BadSettings) as said:
        settings.load(texts, {}, None)
    assert f"expected {missing} to be set, too" in refused(said)
    assert said.value.usage
    with pytest.raises(BadSettings) as said:
        from_text("".join(f'{name} = "{text}"\n' for name, text in texts.items()), file)
    assert refused(said).startswith(f"{file}: tls-")
    assert settings.load(texts | {"tls-certificate": "/c", "tls-key": "/k"}, {}, None).settings.tls_key == "/k"


def test_settings_are_plain_and_frozen() -> None:
    with pytest.raises(AttributeError):
        Settings().rescan = 5.0  # type: ignore[misc]
    assert hash(Settings()) == hash(Settings())
    assert stat.filemode(Settings().state_mode) == "?rw-r--r--"
