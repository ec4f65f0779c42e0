"""`topo-agent run --labels nfd-file`: the file that nfd-worker reads."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import fixtures
from tests.agent import Agent, wait_for
from tests.test_cli import answer

MACHINE = "gb200-nvl72-tray"
NODE = "tray-3"
# Between two looks at a reading that is new, and the rescan of a machine that is none of ours.
SOON = "from topo_agent.daemon import loop; loop._CONFIRM, loop._POLL = 0.1, 3600.0"

Start = Callable[..., Agent]


@pytest.fixture(scope="module")
def box(common: Path) -> Path:
    return fixtures.tree(MACHINE, common)


@pytest.fixture
def mapping(tmp_path: Path) -> Path:
    """A rack whose name is no label as it is."""
    path = tmp_path / "nodes.csv"
    path.write_text(f"node,rack,block\n{NODE},rack 09,b1\n", encoding="utf-8")
    return path


@pytest.fixture
def features(tmp_path: Path) -> Path:
    (tmp_path / "features.d").mkdir()
    return tmp_path / "features.d" / "topo-agent"


@pytest.fixture
def start(box: Path, mapping: Path, features: Path, tmp_path: Path) -> Iterator[Start]:
    started: list[Agent] = []

    def begin(*arguments: str) -> Agent:
        words = ["--labels", "nfd-file", "--nfd-file", str(features), "--node", NODE, "--mapping", str(mapping)]
        started.append(Agent(tmp_path / "http", *words, "--from", str(box), *arguments, around=SOON))
        return started[-1].ready()

    yield begin
    for one in started:
        one.kill()


def said(box: Path, mapping: Path) -> str:
    return answer("dump", "-f", "labels", "--from", str(box), "--node", NODE, "--mapping", str(mapping))


def test_the_file_says_what_dump_says(start: Start, box: Path, mapping: Path, features: Path) -> None:
    """It is there whole, and nothing beside it that nfd-worker would read (formats.md, section 7)."""
    agent = start()
    agent.wait_for(features.exists)
    text = features.read_text(encoding="utf-8")
    assert text == said(box, mapping)
    assert "topo-agent.io/nvlink-clique=5a1c2f6e-0b7d-4c39-9e1f-7d2a4b6c8e10.32766\n" in text
    assert os.listdir(features.parent) == [features.name]
    assert features.stat().st_mode & 0o777 == 0o644
    agent.stop()
    assert features.read_text(encoding="utf-8") == text


def test_it_is_left_as_it_is_by_the_next_run(start: Start, features: Path) -> None:
    """Also the value that is no label as it is; the same file, not another one with the same text."""
    first = start()
    first.wait_for(features.exists)
    before, text = features.stat(), features.read_text(encoding="utf-8")
    first.kill()
    second = start()
    for _ in range(3):
        second.rescan()
    after = features.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert features.read_text(encoding="utf-8") == text


def test_a_mapping_by_a_relative_path(
    start: Start, box: Path, mapping: Path, features: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From where it was started; the scanner is elsewhere."""
    monkeypatch.chdir(mapping.parent)
    start("--mapping", mapping.name)
    wait_for(features.exists)
    assert "topo-agent.io/rack=" in features.read_text(encoding="utf-8")
    assert features.read_text(encoding="utf-8") == said(box, mapping)


def test_it_follows_the_mapping(start: Start, box: Path, mapping: Path, features: Path) -> None:
    agent = start()
    agent.wait_for(features.exists)
    mapping.write_text(f"node,rack\n{NODE},r-10\n", encoding="utf-8")
    expected = said(box, mapping)
    assert "block" not in expected
    agent.wait_for(lambda: features.read_text(encoding="utf-8") == expected)


def test_a_mapping_that_is_damaged_takes_nothing_back(start: Start, mapping: Path, features: Path) -> None:
    agent = start()
    agent.wait_for(features.exists)
    text = features.read_text(encoding="utf-8")
    stands = 'topo_label_info{key="topo-agent.io/block",source="mapping",state="suspect",value="b1"}'
    for spoil in (lambda: mapping.write_text("node,ra", encoding="utf-8"), mapping.unlink):
        spoil()
        for _ in range(3):
            agent.rescan()
        assert features.read_text(encoding="utf-8") == text
        assert agent.metrics()[stands]


def test_a_scan_that_fails_takes_nothing_back(start: Start, features: Path, tmp_path: Path) -> None:
    """labels.md, section 7: suspect on errors, and the label is kept."""
    overlay = tmp_path / "overlay.yaml"
    overlay.write_text("roots: {}\n", encoding="utf-8")
    agent = start("--overlay", str(overlay))
    agent.wait_for(features.exists)
    text = features.read_text(encoding="utf-8")

    def stands(state: str) -> bool:
        return f'topo_label_info{{key="topo-agent.io/block",source="mapping",state="{state}",value="b1"}}' in (
            agent.metrics()
        )

    agent.wait_for(lambda: stands("published"))
    overlay.write_text("roots: [", encoding="utf-8")
    agent.send(signal.SIGHUP)
    agent.wait_for(lambda: stands("suspect"))
    assert features.read_text(encoding="utf-8") == text
    overlay.write_text("roots: {}\n", encoding="utf-8")
    agent.rescan()
    assert stands("published")


def test_a_folder_that_is_not_there_is_told_once(start: Start, features: Path) -> None:
    features.parent.rmdir()
    agent = start()
    agent.wait_for_line("cannot be written: No such file or directory")
    for _ in range(3):
        agent.rescan()
    assert len(agent.lines(str(features))) == 1
    features.parent.mkdir()
    agent.rescan()
    wait_for(features.exists)
    agent.wait_for_line("can be written again")
