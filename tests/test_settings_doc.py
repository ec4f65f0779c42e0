"""docs/settings.md and systemd/topo-agent.toml are made from the settings: `make golden` writes them anew."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable
from pathlib import Path

from topo_agent import settings
from topo_agent.settings import SETTINGS, Setting, Settings

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs" / "settings.md"
EXAMPLE = ROOT / "systemd" / "topo-agent.toml"

HEAD = f"""# Settings

What the daemon goes by. A setting has one name everywhere: `stale-after` is a key of the file, the variable
`{settings.PREFIX}STALE_AFTER` and the flag `--stale-after`. A flag goes before a variable, a variable before the file,
the file before the default. `topo-agent config` prints every setting with its value and where that was said.

The file is `{settings.FILE}` where it exists, or the one that `--config` names; it is TOML in UTF-8, of at
most 64 KiB, and `systemd/topo-agent.toml` has all settings in it. A key that is no setting is an error, and so is a
value that does not fit, also where a nearer one makes it void. A variable that is empty empties what may be empty and
counts for none elsewhere; other `{settings.PREFIX}` variables are options of other commands, and no errors.

| setting | default | | expected | for instance |
|---|---|---|---|---|
"""

HEAD_OF_EXAMPLE = """\
# Settings of topo-agent, each at its default; docs/settings.md describes them, `topo-agent config` prints what counts.
# TOPO_AGENT_ variables and flags go before this file.
"""


def default_of(setting: Setting) -> str:
    """As the file has it."""
    return setting.kind.toml(getattr(Settings(), setting.field))


def row(setting: Setting) -> str:
    kind = setting.kind
    example = kind.toml(kind.read(setting.example))
    return f"| `{setting.name}` | `{default_of(setting)}` | {setting.help} | {kind.expected} | `{example}` |\n"


def entry(setting: Setting) -> str:
    about = textwrap.wrap(f"{setting.help} Expected: {setting.kind.expected}.", 116)
    return "\n" + "".join(f"# {line}\n" for line in about) + f"#{setting.name} = {default_of(setting)}\n"


def test_the_document_has_every_setting(golden: Callable[[Path, str], None]) -> None:
    golden(DOCUMENT, HEAD + "".join(row(one) for one in SETTINGS))


def test_the_example_has_every_setting(golden: Callable[[Path, str], None]) -> None:
    golden(EXAMPLE, HEAD_OF_EXAMPLE + "".join(entry(one) for one in SETTINGS))


def test_the_example_changes_nothing() -> None:
    loaded = settings.load({}, {}, str(EXAMPLE))
    assert loaded.settings == Settings()
    assert {*loaded.origins.values()} == {settings.DEFAULT}


def test_the_example_has_the_defaults(tmp_path: Path) -> None:
    """Every `#key = value` without its sign."""
    path = tmp_path / "topo-agent.toml"
    path.write_text(re.sub(r"(?m)^#(?=[a-z])", "", EXAMPLE.read_text(encoding="utf-8")), encoding="utf-8")
    loaded = settings.load({}, {}, str(path))
    assert loaded.settings == Settings()
    assert loaded.origins == {one.name: str(path) for one in SETTINGS}
