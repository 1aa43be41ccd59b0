"""Help, the list of commands, and wrong calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import pytest

from laneway.cli import main
from laneway.cli.main import COMMANDS
from laneway.policy import FIELDS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cli.conftest import Command


def paths() -> Iterator[tuple[str, ...]]:
    """Every command and subcommand there is."""
    context = click.Context(main)
    for name in COMMANDS:
        yield (name,)
        command = main.get_command(context, name)
        if isinstance(command, click.Group):
            yield from ((name, sub) for sub in command.list_commands(context))


@pytest.mark.parametrize("path", [(), *paths()])
def test_every_command_has_help(laneway: Command, path: tuple[str, ...]) -> None:
    """--help works everywhere, says what the command does, and explains its options."""
    assert "Usage:" in laneway(*path, "--help").stdout
    command: click.Command | None = main
    for name in path:
        assert isinstance(command, click.Group)
        command = command.get_command(click.Context(command), name)
    assert command is not None
    assert command.help


def test_every_setting_is_an_option(laneway: Command) -> None:
    """`policy set` takes each setting of a policy."""
    text = laneway("policy", "set", "--help").stdout
    assert all(f"--{name.replace('_', '-')}" in text for name in FIELDS)


def test_a_typing_error_gets_a_hint(laneway: Command) -> None:
    """An unknown command says which was likely meant."""
    assert 'did you mean "topics"' in laneway("topcs", code=2).stderr


@pytest.mark.parametrize("path", [("policy",), ("dead",), ("gate",)])
def test_no_command_is_answered_with_the_list(laneway: Command, path: tuple[str, ...]) -> None:
    """A group without a command prints its help as it stands, exit code 2."""
    text = laneway(*path, code=2).output
    assert text.startswith("Usage:")
    assert "see `laneway" not in text


def test_version(laneway: Command) -> None:
    """--version needs no store."""
    assert laneway("--version").stdout.startswith("laneway")
