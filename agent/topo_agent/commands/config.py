"""`topo-agent config`, and the options that the settings are: one for each field of Settings."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import click
from click.core import ParameterSource

from topo_agent.commands.answer import CouldNot, F, as_json, give, option
from topo_agent.settings import FILE, SETTINGS, BadSettings, Loaded, Setting, load, values

if TYPE_CHECKING:
    from topo_agent.host import Json
    from topo_agent.views.devices import Row

_settings_file = option("--config", "settings_file", metavar="FILE", help=f"Settings (TOML) instead of {FILE}.")


def options(command: F) -> F:
    """Give a command `--config` and an option for each setting, and what was typed: its first two arguments.

    They are the settings that flags named, by name, and the settings file, as `load` takes them. Variables are
    not among the flags: `load` reads those itself, and knows them apart.
    """

    @functools.wraps(command)
    def with_flags(*, settings_file: str | None, **given: Any) -> Any:
        context = click.get_current_context()
        flags: dict[str, str] = {}
        for one in SETTINGS:
            said = given.pop(one.field)
            if context.get_parameter_source(one.field) is ParameterSource.COMMANDLINE:
                flags[one.name] = one.kind.text(said) if one.kind is values.SWITCH else said
        return command(flags, settings_file, **given)

    decorated: Any = with_flags
    for one in reversed(SETTINGS):
        decorated = _option(one)(decorated)
    return cast("F", _settings_file(decorated))


def _option(one: Setting) -> Any:
    """Text of any kind: what fits is decided where the file and the variables are read, too."""
    if one.kind is values.SWITCH:
        return option(f"{one.flag}/--no-{one.name}", one.field, default=None, help=one.help)
    return option(one.flag, one.field, metavar=one.kind.metavar, help=one.help)


def loaded(flags: Mapping[str, str], file: str | None) -> Loaded:
    """The settings, or why not: status 2 for a flag or a variable, as with any option, and 3 for the file."""
    try:
        return load(flags, os.environ, file)
    except BadSettings as error:
        if error.usage:
            raise click.UsageError(str(error)) from None
        raise CouldNot(str(error)) from None


@click.command(short_help="Every setting of the daemon with its value and origin.")
@option("-f", "--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
@option("-o", "--output", metavar="FILE", help="Write there, whole or not at all.")
@options
def config(flags: Mapping[str, str], settings_file: str | None, form: str, output: str | None) -> None:
    """Print every setting of the daemon with its value and where that was said: a flag, a variable, a file, or nowhere.

    Takes the flags of `run`, so that `config` in its place shows what it would go by. docs/settings.md describes them.
    """
    from topo_agent.views.table import table

    settings, origins = loaded(flags, settings_file)
    if form == "json":
        said = [
            {"name": one.name, "value": one.kind.plain(getattr(settings, one.field)), "origin": origins[one.name]}
            for one in SETTINGS
        ]
        give(as_json(cast("Json", said)), output)
        return
    rows: list[Row] = [
        {"name": one.name, "value": one.kind.text(getattr(settings, one.field)), "origin": origins[one.name]}
        for one in SETTINGS
    ]
    give(table(rows, ("name", "value", "origin")), output)
