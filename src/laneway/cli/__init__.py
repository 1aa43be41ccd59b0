"""
The command `laneway`: one module for each command. An error is one line; `laneway --help` lists the
exit codes.
"""

from laneway.cli.main import main

__all__ = ["main"]
