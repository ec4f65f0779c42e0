"""host/nvml.py and host/child.py with the real binding, against a libnvidia-ml.so.1 of our own (nvml_stub.py)."""

from __future__ import annotations

import ctypes
import json
import os
import pty
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import nvml_stub
from tests.nvml_stub import PROFILES
from tests.paper import NVIDIA, grown, topology
from tests.schemas import FOLDER, strict
from tests.test_cli import PROGRAM, environment
from topo_agent.host import Json, Unavailable, child, nvml_structs, recording
from topo_agent.host.live import LiveHost
from topo_agent.views.tree import tree

ANSWERING = [name for name in PROFILES if not nvml_stub.profile(name).get("faults")]
_LIMIT = 30.0  # seconds; nothing here comes near it


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bool], Path]:
    """The stub, and the one of an old driver: each built when it is first needed."""
    built: dict[bool, Path] = {}

    def library(old: bool) -> Path:  # noqa: FBT001 its only argument
        if old not in built:
            built[old] = nvml_stub.build(tmp_path_factory.mktemp("nvml"), old_driver=old)
        return built[old]

    return library


Plug = Callable[..., dict[str, Any]]


@pytest.fixture
def plug(libraries: Callable[[bool], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plug:
    """`plug("h100")`: the library of that machine is what is asked; gives the document that it is to give."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))

    def plugged(name: str, **faults: str) -> dict[str, Any]:
        short = nvml_stub.profile(name)
        said = nvml_stub.document(short)
        lines = tmp_path / "table"
        lines.write_text(nvml_stub.table(said, short.get("faults", {}) | faults), encoding="utf-8")
        library = libraries(short.get("old_driver", False))
        monkeypatch.setenv("TOPO_AGENT_STUB_NVML", str(lines))
        monkeypatch.setenv("TOPO_AGENT_NVML", "ask")
        monkeypatch.setenv("LD_LIBRARY_PATH", str(library.parent))
        return said

    return plugged


class Heard:
    """A Watch that remembers."""

    def __init__(self) -> None:
        self.stages: list[str] = []
        self.remarks: list[str] = []
        self.ended = 0

    def waiting(self, what: str) -> None:
        self.stages.append(what)

    def done(self) -> None:
        self.ended += 1

    def remark(self, sentence: str) -> None:
        self.remarks.append(sentence)


def refusal(deadline: float = _LIMIT) -> Unavailable:
    with pytest.raises(Unavailable) as found:
        LiveHost("/", timeout=deadline).document("nvml")
    assert found.value.reason in {"not_supported", "not_permitted", "driver_error", "timeout"}
    assert str(found.value)
    assert "\n" not in str(found.value)
    return found.value


def comparable(said: Any) -> Any:
    """Affinity without the words that this machine, with its own CPUs, does not ask for."""
    if isinstance(said, dict):
        cut = {"cpu_affinity": child_words("cpu"), "memory_affinity": child_words("node")}
        return {
            key: [it for it in value[: cut[key]] if it != "0"] if key in cut and isinstance(value, list)
            else comparable(value)
            for key, value in said.items()
        }  # fmt: skip
    return [comparable(one) for one in said] if isinstance(said, list) else said


def child_words(folder: str) -> int:
    try:
        last = Path(f"/sys/devices/system/{folder}/possible").read_text(encoding="ascii").strip()
    except OSError:
        return 16
    return int(re.split("[-,]", last)[-1]) // 64 + 1


# What is asked, and what is written down.


@pytest.mark.parametrize("name", ANSWERING)
def test_the_document_is_what_the_library_says(name: str, plug: Plug) -> None:
    expected = plug(name)
    began = time.monotonic()
    found = LiveHost("/", timeout=_LIMIT).document("nvml")
    print(f"{name}: {len(json.dumps(found)) >> 10} KiB, {time.monotonic() - began:.2f} s")
    assert comparable(found) == comparable(expected)
    assert [*strict(FOLDER / "nvml-document.json").iter_errors(found)] == []
    assert isinstance(found, dict)
    assert found["gpus"], "a profile has GPUs"


def test_mig_devices_of_the_library(plug: Plug) -> None:
    """contract.md, section 4: `mig:0000:1b:00.0/1`, a place; the third may not be asked for its compute instance."""
    plug("mig")
    files = grown("pci0000:16/16:01.0/18:00.0", NVIDIA) | grown("pci0000:28/28:01.0/2a:00.0", NVIDIA)
    found = topology(files, documents={"nvml": child.ask_in_child("nvml", _LIMIT)})
    assert [(str(one.ref), str(one.partition_of), one.uid, one.profile, one.memory_bytes) for one in found.migs] == [
        (f"mig:0000:18:00.0/{place}", "pci:0000:18:00.0", f"MIG-00000001-0000-4000-8000-{number:012}", profile, size)
        for number, (place, profile, size) in enumerate(
            ((1, "3g.40gb", 42412802048), (5, "2g.20gb", 21072183296), (13, "1g.10gb", 10468982784)), 1
        )
    ]
    assert [(one.gpu_instance, one.compute_instance) for one in found.migs] == [(1, 0), (5, 0), (13, None)]
    assert "3 MIG: 3g.40gb, 2g.20gb, 1g.10gb" in tree(found)


def test_it_is_the_same_each_time(plug: Plug) -> None:
    plug("gb200")
    assert child.ask_in_child("nvml", _LIMIT) == child.ask_in_child("nvml", _LIMIT)


@pytest.mark.parametrize(
    ("name", "reason", "word"),
    [
        ("mismatch", "driver_error", "different versions"),
        ("no-permission", "not_permitted", "may not"),
        # Where there is no trace of its module either, there is no driver.
        ("not-loaded", "driver_error" if Path("/sys/module/nvidia").exists() else "not_supported", "loaded"),
    ],
)
def test_why_there_is_no_answer(name: str, reason: str, word: str, plug: Plug) -> None:
    plug(name)
    found = refusal()
    assert (found.reason, word in str(found)) == (reason, True), str(found)


def test_the_number_of_gpus_is_not_guessed(plug: Plug) -> None:
    plug("h100", nvmlDeviceGetCount_v2="!999")
    assert "UNKNOWN" in str(refusal())


def test_without_a_library(plug: Plug, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Absent is ordinary; there and not loadable is not, though the binding calls both "not found"."""
    plug("l40s")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    assert refusal().reason == "not_supported"
    (tmp_path / "libnvidia-ml.so.1").write_bytes(b"no ELF")
    found = refusal()
    assert (found.reason, "does not load" in str(found)) == ("driver_error", True)


def test_a_library_that_is_named(plug: Plug, monkeypatch: pytest.MonkeyPatch) -> None:
    """TOPO_AGENT_NVML may be the path of the library: where it is on no path of the linker's."""
    expected = plug("l40s")
    monkeypatch.setenv("TOPO_AGENT_NVML", f"{os.environ['LD_LIBRARY_PATH']}/libnvidia-ml.so.1")
    monkeypatch.delenv("LD_LIBRARY_PATH")
    assert comparable(child.ask_in_child("nvml", _LIMIT)) == comparable(expected)


def test_bytes_that_are_no_text(plug: Plug) -> None:
    """The binding raises UnicodeDecodeError on these."""
    plug("l40s", **{"nvmlDeviceGetName,0": "NVIDIA %ff%c3", "nvmlDeviceGetPciInfo_v3,1": "%ff%c3 1 2"})
    found: Any = child.ask_in_child("nvml", _LIMIT)
    assert [gpu["name"] for gpu in found["gpus"] if gpu["index"] == 0] == ["NVIDIA \\xff\\xc3"]
    assert [gpu["bdf"] for gpu in found["gpus"] if gpu["index"] == 1] == ["\\xff\\xc3"]


# What the compiler says.

_STRUCTS = {
    "nvmlPciInfo_t": nvml_structs.PciInfo,
    "nvmlFieldValue_t": nvml_structs.FieldValue,
    "nvmlValue_t": nvml_structs.Value,
    "nvmlGpuFabricInfo_t": nvml_structs.FabricV1,
    "nvmlGpuFabricInfo_v2_t": nvml_structs.FabricV2,
    "nvmlGpuFabricInfo_v3_t": nvml_structs.FabricV3,
    "nvmlGpuFabricClique_v1_t": nvml_structs.Clique,
    "nvmlGpuFabricInfo_v4_t": nvml_structs.FabricV4,
    "nvmlPlatformInfo_v2_t": nvml_structs.Platform,
}
_V1_NAMES = {
    "chassisSerialNumber": "rackGuid", "slotNumber": "chassisPhysicalSlotNumber", "trayIndex": "computeSlotIndex",
    "hostId": "nodeIndex",
}  # fmt: skip


def laid_out(struct: Any, names: dict[str, str]) -> dict[str, list[int]]:
    fields = {names.get(name, name): getattr(struct, name) for name, *_ in struct._fields_}
    return {name: [field.offset, field.size] for name, field in fields.items()} | {"": [ctypes.sizeof(struct), 0]}


def test_structs_are_laid_out_as_the_compiler_does(tmp_path: Path) -> None:
    nvml_stub.needs_compiler()
    ours = {name: laid_out(struct, {}) for name, struct in _STRUCTS.items()}
    ours["nvmlPlatformInfo_v1_t"] = laid_out(nvml_structs.Platform, _V1_NAMES)
    lines = ["#include <stddef.h>", "#include <stdio.h>", "#include <nvml.h>", "int main(void) {"]
    for name, fields in ours.items():
        for field in fields:
            what = (
                f"offsetof({name}, {field}), sizeof((({name} *)0)->{field})" if field else f"sizeof({name}), (size_t)0"
            )
            lines.append(f'printf("{name} .{field} %zu %zu\\n", {what});')
    words = ("nvmlGpuFabricInfo_v2", "nvmlGpuFabricInfo_v3", "nvmlPlatformInfo_v1", "nvmlPlatformInfo_v2")
    lines += [f'printf("word {word} %u 0\\n", (unsigned){word});' for word in words]
    lines += ['printf("word cliques %d 0\\n", NVML_GPU_FABRIC_CLIQUE_MAX);', "return 0; }"]
    (tmp_path / "sizes.c").write_text("\n".join(lines), encoding="ascii")
    nvml_stub.compiled(tmp_path / "sizes.c", tmp_path / "sizes")
    said = subprocess.run([str(tmp_path / "sizes")], capture_output=True, text=True, check=True, timeout=10).stdout
    told: dict[str, dict[str, list[int]]] = {}
    for line in said.splitlines():
        name, field, offset, size = line.split(" ")
        told.setdefault(name, {})[field.lstrip(".")] = [int(offset), int(size)]
    versions = {name: numbers[0] for name, numbers in told.pop("word").items()}
    assert told == ours
    assert versions == {
        "nvmlGpuFabricInfo_v2": nvml_structs.word(nvml_structs.FabricV2, 2),
        "nvmlGpuFabricInfo_v3": nvml_structs.word(nvml_structs.FabricV3, 3),
        "nvmlPlatformInfo_v1": nvml_structs.word(nvml_structs.Platform, 1),
        "nvmlPlatformInfo_v2": nvml_structs.word(nvml_structs.Platform, 2),
        "cliques": nvml_structs.CLIQUES,
    }


# What hangs, crashes and says nonsense.


def test_a_crash_costs_one_note(plug: Plug) -> None:
    plug("crash")
    found = refusal()
    assert found.reason == "driver_error"
    assert "SIGSEGV" in str(found)
    assert "GPU 3 of 8" in str(found)


def test_a_hang_costs_the_deadline(plug: Plug) -> None:
    plug("hang")
    began = time.monotonic()
    found = refusal(3.0)
    assert 3 <= time.monotonic() - began < 10
    assert (found.reason, "GPU 3 of 8" in str(found)) == ("timeout", True), str(found)
    assert child._LEFT == []


def test_slow_is_told_from_hung(plug: Plug, monkeypatch: pytest.MonkeyPatch) -> None:
    """Persistence mode off: what was too slow says so; what was slow and came recommends a remedy, and no fact."""
    plug("slow-start")
    assert "persistence mode" in str(refusal(3.0))
    expected = plug("slow-start", **{"sleep,nvmlInitWithFlags": "0.8"})
    monkeypatch.setattr(child, "SLOW_START", 0.3)
    heard = Heard()
    found = child.ask_in_child("nvml", _LIMIT, heard)
    assert comparable(found) == comparable(expected)
    (remark,) = heard.remarks
    assert re.search(r"took [0-9]+ s .*nvidia-persistenced", remark)
    assert "asking the NVIDIA driver … initialising" in heard.stages
    assert heard.ended == 1
    monkeypatch.setattr(child, "SLOW_START", 5.0)
    assert child.ask_in_child("nvml", _LIMIT) == found


@pytest.fixture
def unkillable(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Children that a signal does not end, as those that wait in the kernel; the test ends them after all."""
    monkeypatch.setattr(child, "_TO_DIE", 0.1)
    monkeypatch.setattr(subprocess.Popen, "kill", lambda self: left.append(self.pid))
    left: list[int] = []
    yield left
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    for process in child._LEFT:
        process.wait(10)
    child._LEFT.clear()


def test_a_stuck_child_is_not_joined(plug: Plug, unkillable: list[int]) -> None:
    plug("hang")
    assert refusal(0.6).reason == "timeout"
    (stuck,) = unkillable
    began = time.monotonic()
    for _ in range(2):
        found = refusal()
        assert (found.reason, str(stuck) in str(found)) == ("timeout", True), str(found)
    assert time.monotonic() - began < 1
    done = subprocess.run(
        [*PROGRAM, "dump", "-v"], env=environment(TOPO_AGENT_NVML="ask"), capture_output=True, text=True, check=False,
        timeout=60,
    )  # fmt: skip
    assert f"process {stuck} still waits" in done.stderr
    assert unkillable == [stuck], "another child was started"
    os.kill(stuck, signal.SIGKILL)
    child._LEFT[0].wait(10)
    assert isinstance(_asked_of(plug, "l40s"), dict)
    unkillable.clear()


def _asked_of(plug: Plug, name: str) -> Json:
    plug(name)
    return child.ask_in_child("nvml", _LIMIT)


def test_a_lock_that_nobody_holds_is_no_lock(plug: Plug, tmp_path: Path) -> None:
    """A process of that number that began at another time, a process that is gone, and nonsense."""
    plug("l40s")
    path = tmp_path / f"topo-agent-{os.geteuid()}-nvml.lock"
    for text in (f"{os.getpid()} 1 stuck\n", "999999999 1 stuck\n", "nonsense", ""):
        path.write_text(text, encoding="ascii")
        assert isinstance(child.ask_in_child("nvml", _LIMIT), dict)
    assert path.read_text(encoding="ascii") == ""
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    assert isinstance(child.ask_in_child("nvml", _LIMIT), dict)
    assert not (tmp_path / "elsewhere").exists()


def test_two_at_once_ask_one_after_the_other(plug: Plug) -> None:
    expected = plug("l40s", **{"sleep,nvmlInitWithFlags": "2"})
    script = "import json; from topo_agent.host.child import *; print(json.dumps(ask_in_child('nvml', 20)))"
    env = environment(**{name: os.environ[name] for name in os.environ if name.startswith("TOPO_AGENT_")})
    command = [sys.executable, "-c", script]
    began = time.monotonic()
    pair = [subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [one.communicate(timeout=30)[0] for one in pair]
    assert time.monotonic() - began > 4
    assert [comparable(json.loads(one)) for one in said] == [comparable(expected)] * 2


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ("print('{\"gpus\"')", "no answer"),
        ("print('[' * 100000)", "no answer"),
        ("print('{\"unavailable\": 3}')", "no answer"),
        ("import sys; sys.exit(3)", "status 3"),
        ("import os; os.write(1, b'x' * (17 << 20))", "longer than"),
        ("import os; os.write(2, b'x' * (9 << 20)); os.abort()", "SIGABRT"),
        ("import os; os.close(1); os.kill(os.getpid(), 9)", "SIGKILL"),
    ],
)
def test_nonsense_from_the_child(body: str, word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    spawn = subprocess.Popen
    monkeypatch.setattr(
        subprocess, "Popen", lambda _, **how: spawn([sys.executable, "-S", "-c", body], **how)
    )  # fmt: skip
    with pytest.raises(Unavailable, match=word) as found:
        child.ask_in_child("nvml", _LIMIT)
    assert found.value.reason == "driver_error"


def test_the_child_looks_for_modules_where_we_do(plug: Plug, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in the folder that we were started in: `python -m` would."""
    plug("l40s")
    (tmp_path / "json.py").write_text("raise SystemExit('taken from here')", encoding="ascii")
    monkeypatch.chdir(tmp_path)
    assert isinstance(child.ask_in_child("nvml", _LIMIT), dict)


def test_no_child_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOPO_AGENT_NVML", raising=False)
    monkeypatch.setattr("topo_agent.host.live._NVIDIA", ("/nowhere",))
    monkeypatch.setattr(subprocess, "Popen", None)
    assert refusal().reason == "not_supported"


# Random refusals.

_INJECT = """
import ctypes, json, random, sys
from topo_agent.host import Unavailable, nvml
stub = ctypes.CDLL("libnvidia-ml.so.1")
for line in sys.stdin:
    for key, code in json.loads(line):
        stub.stub_inject(key.encode(), code)
    try:
        said = {"answer": nvml.ask()}
    except Unavailable as missing:
        said = {"unavailable": [missing.reason, str(missing)]}
    stub.stub_mend()
    print(json.dumps(said), flush=True)
"""
_LADDER = {"INVALID_ARGUMENT", "FUNCTION_NOT_FOUND", "ARGUMENT_VERSION_MISMATCH"}


def differences(base: Any, found: Any, at: str = "") -> Iterator[tuple[str, str]]:
    """(place, name of the refusal) wherever the two differ; anything else in place of an answer is an invention."""
    if base == found:
        return
    if isinstance(found, dict) and isinstance(found.get("error"), str):
        assert {*found} <= {"error", "index"}, (at, found)
        yield at, found["error"]
        return
    assert type(base) is type(found), (at, base, found)
    if isinstance(base, dict):
        older = re.search(r"\.(fabric|platform)$", at) and base["api"] != found["api"]
        for key in {**base, **found}:
            if older and (key not in found or key in ("api", "cliques")):
                continue
            assert key in base, (at, key, found[key])
            assert key in found or re.search(r"\.(c2c|mig)$", at), (at, key)
            if key in found:
                yield from differences(base[key], found[key], f"{at}.{key}")
        if older:
            yield at, "an older struct"
        return
    assert isinstance(base, list), (at, base, found)
    assert all(isinstance(one, dict) for one in found), (at, base, found)
    name = (lambda one: (one["a"], one["b"])) if at == ".pairs" else (lambda one: one.get("link", one.get("index")))
    before, after = {name(one): one for one in base}, {name(one): one for one in found}
    assert {*after} <= {*before}, at
    missing = {*before} - {*after}
    for key, one in after.items():
        yield from differences(before[key], one, f"{at}[{key}]")
    if missing:
        yield at, f"without {sorted(missing)}"


def test_random_refusals_are_told_and_nothing_is_invented(
    plug: Plug, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1,000 codes in calls of a machine with all that can be asked: each has its name in the place of its answer."""
    plug("gb200")
    env = environment(**{name: os.environ[name] for name in os.environ if name.startswith("TOPO_AGENT_")})
    keys = _asked_keys(env, tmp_path / "keys")
    numbers = {number: name for name, number in nvml_stub.codes().items() if number} | {77: "ERROR_77"}
    dice = random.Random(6)  # noqa: S311 the same each time
    rounds = [
        [(key, dice.choice([*numbers])) for key in dice.sample(keys, dice.choice((1, 2, 3, 4)))] for _ in range(420)
    ]
    # The links of one GPU are three quarters of all calls: every other call once at least.
    rounds += [[(key, dice.choice([*numbers]))] for key in keys if "NvLink" not in key and "FieldValues" not in key]
    with subprocess.Popen(
        [sys.executable, "-c", _INJECT], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def asked(codes: list[tuple[str, int]]) -> dict[str, Any]:
            assert process.stdin is not None and process.stdout is not None  # noqa: PT018
            process.stdin.write(json.dumps(codes) + "\n")
            process.stdin.flush()
            answer: dict[str, Any] = json.loads(process.stdout.readline())
            return answer

        base = asked([])["answer"]
        for one in rounds:
            judge(base, asked(one), {key: numbers[code] for key, code in one})
        process.stdin.close()
    total = sum(len(one) for one in rounds)
    print(f"{total} codes in {len(rounds)} rounds, {len(keys)} different calls")
    assert total >= 1000


def _asked_keys(env: dict[str, str], path: Path) -> list[str]:
    script = "import ctypes, sys; from topo_agent.host import nvml; stub = ctypes.CDLL('libnvidia-ml.so.1'); "
    script += "stub.stub_log(sys.argv[1].encode()); nvml.ask(); stub.stub_log(None)"
    subprocess.run([sys.executable, "-c", script, str(path)], env=env, check=True, timeout=30)
    return sorted(set(path.read_text(encoding="ascii").split()))


def judge(base: dict[str, Any], said: dict[str, Any], refused: dict[str, str]) -> None:
    """Every difference is a refusal that was given, and every refusal that was given is a difference."""
    if "unavailable" in said:
        assert {"nvmlInitWithFlags", "nvmlDeviceGetCount_v2"} & {*refused}, refused
        return
    assert not {"nvmlInitWithFlags", "nvmlDeviceGetCount_v2"} & {*refused}, refused
    found = list(differences(base, said["answer"]))
    names = {name for _, name in found}
    handles = {key for key in refused if "HandleByIndex" in key}
    for name in names - {"an older struct"}:
        assert name in refused.values() or (handles and name.startswith("without")), (name, refused, found)
    if "an older struct" in names:
        assert _LADDER & {*refused.values()}, (refused, found)
    lost = {key.partition(",")[2] for key in handles}
    for key, name in refused.items():
        ladder = "FabricInfo" in key or "PlatformInfo" in key
        silent = ladder or any(index in key.split(",")[1:3] for index in lost)  # a lower rung is asked only if need be
        past = key.startswith(("nvmlDeviceGetNvLink", "nvmlDeviceGetFieldValues")) and key.endswith(",18")
        assert name in names or silent or past, (key, name, found)


# The command line.


def run_on(table_env: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, *arguments], env=environment(**table_env), stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip


def passed_on() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith("TOPO_AGENT_")}


def test_the_command_line_waits_and_goes_on(plug: Plug) -> None:
    plug("hang")
    done = run_on(passed_on(), "dump", "-f", "json", "--timeout", "1", "-v")
    assert done.returncode == 0
    notes = [note for note in json.loads(done.stdout)["diagnostics"] if note["code"] == "nvml_unavailable"]
    assert len(notes) == 1
    assert "no answer within 1 s" in notes[0]["message"]
    assert "asking" not in done.stderr
    assert run_on(passed_on(), "dump", "--strict", "--timeout", "1").returncode == 4
    assert run_on(passed_on() | {"TOPO_AGENT_TIMEOUT": "1"}, "dump", "--strict").returncode == 4
    assert run_on({}, "dump", "--timeout", "0").returncode == 2


def test_a_terminal_sees_what_is_waited_for(plug: Plug) -> None:
    """After a second, on stderr, and it goes again; nothing with -q."""
    plug("hang")
    for quiet in ((), ("-q",)):
        screen, side = pty.openpty()
        with subprocess.Popen(
            [*PROGRAM, "list", "gpus", "--timeout", "4", *quiet], env=environment(**passed_on()),
            stdout=subprocess.PIPE, stderr=side,
        ) as process:  # fmt: skip
            process.communicate(timeout=30)
        os.close(side)
        text = _all_of(screen)
        if quiet:
            assert text == ""
        else:
            assert "asking the NVIDIA driver … GPU 3 of 8" in text
            assert text.endswith("\r\x1b[K")


def _all_of(screen: int) -> str:
    said = b""
    try:
        while chunk := os.read(screen, 4096):
            said += chunk
    except OSError:  # the other side is closed
        pass
    os.close(screen)
    return said.decode("utf-8")


def test_a_recording_keeps_the_document(plug: Plug, tmp_path: Path) -> None:
    expected = plug("mig")
    done = run_on(passed_on(), "record", "--keep-names", "-o", str(tmp_path / "host.topo"))
    assert done.returncode == 0, done.stderr
    assert comparable(recording.read(str(tmp_path / "host.topo")).document("nvml")) == comparable(expected)
