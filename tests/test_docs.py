"""The documentation is true: its commands run, its outputs are the program's, its links lead somewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import click
import pytest

from tests.paper import NODE, Files, bridge, cpus, function, nodes
from tests.test_cli import EVERY, environment, text_of
from topo_agent.diagnostics import Unknown
from topo_agent.host.paper import Link

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
EVERY_PAGE = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]

CLUSTER_PAGES = sorted(path.name for path in (ROOT / "docs").glob("kubernetes*.md"))

SETUP = {  # a command that sets up a machine -> the line of .ci/run that runs it
    "make dump": "bare make -s dump",
    "make test": "bare make -s test",
    "pipx install .": '"$work/clean/bin/pip" install',  # what pipx does: a fresh environment, and the wheel in it
}

# The server of the examples, `server.topo`: eight times a switch with a GPU, a NIC and a drive.

_LINK: Files = {
    "current_link_speed": "32.0 GT/s PCIe\n",
    "max_link_speed": "32.0 GT/s PCIe\n",
    "current_link_width": "16\n",
    "max_link_width": "16\n",
}


def server() -> Files:
    packages = {0: range(96), 1: range(96, 192)}
    files = cpus(packages) | nodes(packages, {0: (10, 32), 1: (32, 10)})
    files |= {f"{NODE}/node{node}/meminfo": f"Node {node} MemTotal:       1188954112 kB\n" for node in packages}
    files |= {"sys/class/dmi/id/sys_vendor": "Example Inc.\n", "sys/class/dmi/id/product_name": "MI300X server\n"}
    files["proc/cpuinfo"] = "processor : 0\nmodel name : AMD EPYC 9654 96-Core Processor\nflags : fpu\n"
    for number in range(8):
        files |= _group(number, 0x20 * number)
    return files


def _group(number: int, bus: int) -> Files:
    node, port, switch = f"{number // 4}\n", f"0000:{bus:02x}:01.1", f"0000:{bus + 1:02x}:00.0"
    under = f"pci0000:{bus:02x}"
    files = bridge(port, under=under, numa_node=node)
    files |= _port(switch, f"{under}/{port}", node)
    for place, card in enumerate((_gpu, _nic, _drive)):
        below, above = f"0000:{bus + 2:02x}:{place:02x}.0", f"{under}/{port}/{switch}"
        files |= _port(below, above, node)
        files |= card(number, f"0000:{bus + 3 + place:02x}:00.0", f"{above}/{below}", node)
    return files


def _port(address: str, under: str, node: str) -> Files:
    return function(address, under=under, class_="0x060400", vendor="0x1000", device="0xc030", numa_node=node)


def _gpu(_: int, address: str, under: str, node: str) -> Files:
    return function(
        address, under=under, class_="0x120000", vendor="0x1002", device="0x74a1", numa_node=node, driver="amdgpu",
        files=_LINK,
    )  # fmt: skip


def _nic(number: int, address: str, under: str, node: str) -> Files:
    net, port = f"net/ens{number + 1}np0", f"infiniband/mlx5_{number}/ports/1"
    said = {f"{net}/type": "1\n", f"{net}/carrier": "1\n", f"{net}/speed": "400000\n"}
    said |= {f"{port}/state": "4: ACTIVE\n", f"{port}/link_layer": "Ethernet\n"}
    files = function(address, under=under, numa_node=node, driver="mlx5_core", files=_LINK | said)
    files[f"sys/class/{net}"] = Link(f"../../devices/{under}/{address}/{net}")
    files[f"sys/class/infiniband/mlx5_{number}"] = Link(f"../../devices/{under}/{address}/infiniband/mlx5_{number}")
    return files


def _drive(number: int, address: str, under: str, node: str) -> Files:
    here = f"nvme/nvme{number}"
    said = {f"{here}/transport": "pcie\n", f"{here}/model": "Example SSD 3.84TB\n"}
    files = function(
        address, under=under, class_="0x010802", vendor="0x144d", device="0xa826", numa_node=node, driver="nvme",
        files=said,
    )  # fmt: skip
    files[f"sys/devices/{under}/{address}/{here}/nvme{number}n1"] = None
    files[f"sys/class/{here}"] = Link(f"../../devices/{under}/{address}/{here}")
    return files


# Blocks of a page


@dataclass(frozen=True)
class Block:
    line: int
    tag: str
    text: str


def blocks(page: Path) -> list[Block]:
    found: list[Block] = []
    tag, lines, start = "", [""], 0
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if line.startswith("```") and not start:
            tag, lines, start = line[3:].strip(), [], number
        elif line == "```":
            found.append(Block(start, tag, "\n".join(lines)))
            start = 0
        elif start:
            lines.append(line)
    assert not start, f"{page}:{start}: this block has no end"
    return found


def dialogue(block: Block) -> list[tuple[str, list[str]]]:
    """(command, lines shown below it) of a block that shows a terminal."""
    found: list[tuple[str, list[str]]] = []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        else:
            found[-1][1].append(line)
    return found


def shown(expected: list[str], printed: list[str]) -> bool:
    """Is that what was printed? A line `…` stands for one line or more."""
    pattern = "".join(r"(?:.*\n)+?" if line.strip() == "…" else re.escape(line.rstrip()) + r"\n" for line in expected)
    return re.fullmatch(pattern, "".join(f"{line.rstrip()}\n" for line in printed)) is not None


def test_the_comparison_sees_what_differs() -> None:
    assert shown(["a", "…", "d"], ["a", "b", "c", "d"])
    assert shown(["…", "d"], ["a", "d"])
    assert not shown(["a", "…", "d"], ["a", "d"])
    assert not shown(["a", "b"], ["a", "b", "c"])
    assert not shown(["a.c"], ["abc"])


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    """Where a reader sits: the program on PATH, and the recordings of the examples."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "topo-agent"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m topo_agent "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    (tmp_path / "desk").mkdir()
    (tmp_path / "desk" / "server.topo").write_text(text_of(server()), encoding="utf-8")
    return tmp_path / "desk"


def typed(command: str, desk: Path) -> tuple[int, list[str]]:
    variables = environment(PATH=f"{desk.parent / 'bin'}{os.pathsep}{os.environ['PATH']}")
    done = subprocess.run(
        ["sh", "-c", command], env=variables, cwd=desk, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, timeout=60, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout.splitlines()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_of_a_page(page: Path, desk: Path) -> None:
    """Block by block in one folder, as a reader would type them."""
    for block in blocks(page):
        where = f"{page.name}:{block.line}"
        if block.tag == "console":
            for command, expected in dialogue(block):
                status, printed = typed(command, desk)
                assert status == 0, f"{where}: {command}: {printed}"
                assert shown(expected, printed), f"{where}: {command}\n" + "\n".join(printed)
        elif block.tag == "sh":
            status, printed = typed(f"set -e\n{block.text}", desk)
            assert status == 0, f"{where}: {printed}"
        elif block.tag.startswith("topo "):
            (desk / block.tag.split()[1]).write_text(block.text + "\n", encoding="utf-8")
        elif block.tag == "sh setup":
            set_up(block.text.splitlines())
        elif block.tag == "sh service":  # tests/labs/test_systemd.py types it on a server of its own
            assert page.name == "README.md", where
            assert block.text.startswith("make deb "), where
        elif block.tag == "sh cluster":  # tests/labs/controlplane/test_kubernetes_doc.py types it
            assert page.name in CLUSTER_PAGES, where
        else:
            assert block.tag in ("", "yaml"), f"{where}: what is a block {block.tag!r}?"  # test_synth reads the YAML
            assert not re.search(r"(?m)^(\$ |make |pipx |topo-agent (?!recording))", block.text), f"{where}: not run"


def set_up(commands: Iterable[str]) -> None:
    """Not run here: CI does, on a machine that has nothing else."""
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    targets = (ROOT / "Makefile").read_text(encoding="utf-8")
    for line in commands:
        command = line.partition("#")[0].strip()
        assert SETUP[command] in script, command
        word, _, target = command.partition(" ")
        assert word != "make" or re.search(rf"(?m)^{target}:", targets)


def test_there_is_something_to_run() -> None:
    every = [block for page in PAGES for block in blocks(page)]
    commands = [command for block in every if block.tag == "console" for command, _ in dialogue(block)]
    assert len(commands) > 10
    for command in EVERY:
        assert any(f"topo-agent {command}" in one for one in commands), command
    lines = [line for block in every if block.tag == "sh setup" for line in block.text.splitlines()]
    assert {line.partition("#")[0].strip() for line in lines} == {*SETUP}


@pytest.mark.parametrize("page", EVERY_PAGE, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"(?s)```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"))
    links = re.findall(r"\]\(([^)\s]+)\)", text)
    for link in links:
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.is_file(), f"{page.name}: {link}"
        assert target.is_relative_to(ROOT.resolve())
        assert not anchor or anchor in anchors(target), f"{page.name}: {link}"


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headlines: lower case, no punctuation, dashes for blanks."""
    heads = re.findall(r"(?m)^#+ (.*)$", page.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", EVERY_PAGE, ids=lambda page: page.name)
def test_commands_and_options_exist(page: Path) -> None:
    """Every `topo-agent COMMAND --option` that a text names."""
    for words in re.findall(r"`topo-agent ([^`/]*)`", page.read_text(encoding="utf-8")):
        first, second = (*words.split(), "")[:2]
        for command in first.split("|"):
            assert command in {*EVERY, "COMMAND"}, words
            options = EVERY[command].params if command in EVERY else []
            group = EVERY.get(command)
            if isinstance(group, click.Group):
                assert second in group.commands, words
                options = group.commands[second].params
            known = {"--help", *(name for option in options for name in option.opts)}
            assert {*re.findall(r"(?<!\S)--?[a-z][a-z-]*", words)} <= known, words


def test_usage_names_everything() -> None:
    text = (ROOT / "docs" / "usage.md").read_text(encoding="utf-8")
    for command in EVERY.values():
        assert f"`topo-agent {command.name}" in text
        for option in command.params:
            for choice in getattr(option.type, "choices", ()):
                assert f"`{choice}`" in text or option.name not in ("form", "kind"), (command.name, choice)
    for reason in Unknown:
        assert f"| `{reason.value}` |" in text
    rows = re.findall(r"(?m)^\| ([0-9]) \|", text)
    assert rows == ["0", "1", "2", "3", "4"]


def test_architecture_names_what_is_there() -> None:
    """docs/architecture.md: every folder has its row, and no module is named that is not there."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    for folder in ("host", "sources", "graph", "views", "publishers", "publishers/kube", "daemon"):
        modules = {path.stem for path in (ROOT / "agent" / "topo_agent" / folder).glob("*.py")}
        (row,) = re.findall(rf"(?m)^\| `{folder}/` \| (`.*) \|$", text)
        assert set(re.findall(r"`(\w+)`", row)) <= modules
