"""The command `fairlead`: one module a command. Errors are one line; exit codes mean something (see `fairlead --help`)."""

from fairlead.cli.main import main

__all__ = ["main"]
