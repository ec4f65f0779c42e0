"""`topo-agent config`, and the options that a command gets for the settings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tests.test_cli import answer, refused, run
from topo_agent.commands.config import options
from topo_agent.settings import SETTINGS, Settings


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Settings that say nothing: this machine may have some of its own."""
    path = tmp_path / "a.toml"
    path.touch()
    return path


def said(*arguments: str, env: dict[str, str] | None = None) -> dict[str, tuple[object, str]]:
    return {
        one["name"]: (one["value"], one["origin"])
        for one in json.loads(answer("config", "-f", "json", *arguments, env=env))
    }


def test_every_setting_with_its_value_and_origin(file: Path) -> None:
    lines = answer("config", "--config", str(file)).splitlines()
    assert lines[0].split() == ["NAME", "VALUE", "ORIGIN"]
    assert [line.split()[0] for line in lines[1:]] == [one.name for one in SETTINGS]
    assert {line.split()[2] for line in lines[1:]} == {"default"}
    assert ["rescan", "5m", "default"] in [line.split() for line in lines]


def test_for_programs(file: Path) -> None:
    file.write_text('domain = "example.com"\nlisten = ["127.0.0.1:1", "unix:/run/x"]\n')
    found = said("--rescan", "90", "--metrics-pairs", env={"TOPO_AGENT_CONFIG": str(file), "TOPO_AGENT_HISTORY": "7"})
    assert found["domain"] == ("example.com", str(file))
    assert found["listen"] == (["127.0.0.1:1", "unix:/run/x"], str(file))
    assert found["rescan"] == ("90s", "--rescan")
    assert found["metrics-pairs"] == (True, "--metrics-pairs")
    assert found["history"] == (7, "TOPO_AGENT_HISTORY")
    assert found["log-format"] == ("text", "default")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("dranet-socket", "/tmp/x/"),  # noqa: S108 - only a name
        ("dranet-socket", "/" + "x" * 107),
        ("state-group", "99999999999"),
        ("listen", "a" * 64 + ":1"),
        ("listen", "a..b:1"),
    ],
)
def test_the_daemon_does_not_start_with_what_it_could_never_use(name: str, text: str) -> None:
    """Contract, section 1: status 2 is usage."""
    done = run("run", f"--{name}", text)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"--{name}: expected " in done.stderr
    assert "internal error" not in done.stderr


def test_a_driver_has_a_day_at_most() -> None:
    """As with the setting `timeout`, whose variable it shares."""
    assert run("list", "gpus", "--timeout", "86401").returncode == 2


def test_a_switch_is_turned_off(file: Path) -> None:
    file.write_text("metrics-pairs = true\n")
    variables = {"TOPO_AGENT_METRICS_PAIRS": "yes"}
    arguments = ("--config", str(file))
    assert said(*arguments)["metrics-pairs"] == (True, str(file))
    assert said(*arguments, env=variables)["metrics-pairs"] == (True, "TOPO_AGENT_METRICS_PAIRS")
    assert said(*arguments, "--no-metrics-pairs", env=variables)["metrics-pairs"] == (False, "--metrics-pairs")


@pytest.mark.parametrize("empty", ["listen", "state-dir", "overlay"])
def test_an_empty_flag_is_off(empty: str, file: Path) -> None:
    found = said("--config", str(file), f"--{empty}", "")
    assert found[empty] == ([] if empty == "listen" else "", f"--{empty}")


# Contract, section 1: what is typed wrong is usage, 2, and so is a variable, which is an option; a bad file is 3.


@pytest.mark.parametrize(
    ("arguments", "env"),
    [
        ("--rescan never", {}), ("--metrics-pairs=1", {}), ("--listen x", {}), ("--tls-key /k", {}), ("--nosuch", {}),
        ("", {"TOPO_AGENT_RESCAN": "never"}), ("", {"TOPO_AGENT_METRICS_PAIRS": "maybe"}),
        ("--rescan 1m", {"TOPO_AGENT_RESCAN": "never"}), ("-f csv", {}),
    ],
)  # fmt: skip
def test_a_wrong_option_is_usage(arguments: str, env: dict[str, str], file: Path) -> None:
    done = run("config", "--config", str(file), *arguments.split(), env=env)
    assert (done.returncode, done.stdout) == (2, "")
    assert "\nError: " in f"\n{done.stderr}"


@pytest.mark.parametrize("text", ["rescan = 0", "rescn = 1", "rescan", "\ud800"])
def test_a_bad_file_is_bad_input(text: str, file: Path) -> None:
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    assert f"{file}:" in refused(run("config", "--config", str(file)))
    assert f"{file}:" in refused(run("config", "--config", str(file), "--rescan", "1m"))


def test_a_named_file_has_to_exist(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    assert f"{missing}: expected" in refused(run("config", "--config", missing))
    assert f"{missing}: expected" in refused(run("config", env={"TOPO_AGENT_CONFIG": missing}))


def test_output_goes_to_a_file(file: Path, tmp_path: Path) -> None:
    told = answer("config", "--config", str(file))
    assert answer("config", "--config", str(file), "-o", str(tmp_path / "out")) == ""
    assert (tmp_path / "out").read_text() == told
    assert "No space" in refused(run("config", "--config", str(file), around='exec "$@" >/dev/full'))


@click.command
@options
@click.option("--other")
def command(flags: Mapping[str, str], settings_file: str | None, other: str | None) -> None:
    click.echo(json.dumps([flags, settings_file, other]))


def test_options_of_another_command() -> None:
    def given(*arguments: str) -> object:
        done = CliRunner().invoke(command, arguments, env={"TOPO_AGENT_RESCAN": "1m"}, catch_exceptions=False)
        return json.loads(done.stdout)

    assert given() == [{}, None, None]
    assert given("--config", "/x", "--other", "o", "--history", "5") == [{"history": "5"}, "/x", "o"]
    assert given("--rescan", "2m", "--no-metrics-pairs") == [{"rescan": "2m", "metrics-pairs": "false"}, None, None]


def test_every_field_has_its_option() -> None:
    names = {option.name for option in command.params}
    assert names >= {one.field for one in SETTINGS}
    assert [one.field for one in SETTINGS] == [*Settings.__dataclass_fields__]
