"""
The command `laneway`: one module a command. Errors are one line; exit codes mean something (see
`laneway --help`).
"""

from laneway.cli.main import main

__all__ = ["main"]
