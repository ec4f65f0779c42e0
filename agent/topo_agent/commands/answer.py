"""What all commands have in common: exit statuses, options that are variables, and how data is given."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from topo_agent.host import Json

F = TypeVar("F", bound=Callable[..., Any])  # click decorates functions of any signature

NO, USAGE, COULD_NOT, LOST = 1, 2, 3, 4
"""Exit statuses (docs/architecture.md): 1 is an answer, 2 and more are trouble."""


class CouldNot(click.ClickException):
    """Bad input, I/O, no such device: one line, status 3."""

    exit_code = COULD_NOT

    def show(self, file: Any = None) -> None:  # noqa: ARG002 click's signature
        from topo_agent.views.text import clean

        click.echo(f"topo-agent: {clean(self.message)}", err=True)


def option(*names: str, **how: Any) -> Callable[[F], F]:
    """A click option that is also an environment variable: `--from` is TOPO_AGENT_FROM."""
    long = next(name for name in names if name.startswith("--")).split("/")[0]
    return click.option(*names, envvar="TOPO_AGENT_" + long[2:].upper().replace("-", "_"), **how)


def as_json(said: Json) -> str:
    import json

    return json.dumps(said, indent=2, ensure_ascii=False) + "\n"


def give(text: str, output: str | None) -> None:
    """Data to stdout, or whole into a file. Names that are no UTF-8 come out with "?" in them."""
    text = text.encode("utf-8", "replace").decode("utf-8")
    if output is None or output == "-":
        _say(text)
        return
    from topo_agent.publishers import files

    try:
        files.replace(output, text)
    except OSError as error:
        raise CouldNot(f"{output}: cannot be written: {error.strerror}") from None


def _say(text: str) -> None:
    """All of it to stdout: a write may be cut short by a full disk, and the next one says why."""
    if sys.stdout is None:
        raise CouldNot("stdout is closed")
    data = memoryview(text.encode("utf-8"))
    try:
        sys.stdout.flush()
        while data:
            data = data[os.write(sys.stdout.fileno(), data) :]
    except OSError as error:
        raise CouldNot(f"stdout: cannot be written: {error.strerror}") from None
