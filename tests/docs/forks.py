"""
Run programs in processes of their own that need not import Laneway: an interpreter that has
imported it forks one for each.

The file is also the program of that interpreter. It reads requests from standard input, one JSON
list a line, and answers each with the exit status of the child. It has no threads when it forks.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Self

TIMEOUT = 60


class Forks:
    """The interpreter, until the end of a `with` block."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-B", "-W", "error", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=TIMEOUT)

    def run(self, folder: Path, name: str, *, is_imported: bool = False) -> tuple[int, str]:
        """Run a file of the folder there, or import it. Returns the exit status and the output."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with (folder.parent / f"{folder.name}.out").open("w+") as output:
            request = [str(folder), name, is_imported, output.name]
            print(json.dumps(request), file=self._process.stdin, flush=True)
            code = int(self._process.stdout.readline())
            return code, output.read()


def _serve() -> None:
    for module in ("laneway", "laneway.engines.sqlite", "laneway.working.worker"):
        importlib.import_module(module)
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            _become(*request)  # the rest of this file is the end of the program
            return
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _become(folder: str, name: str, is_imported: bool, output: str) -> None:
    """Be the program: in its folder, with its arguments, its output and its `__main__`."""
    import signal

    signal.alarm(TIMEOUT)
    for stream in (1, 2):
        os.dup2(os.open(output, os.O_WRONLY | os.O_APPEND), stream)
    os.close(0)
    os.open(os.devnull, os.O_RDONLY)
    os.chdir(folder)
    sys.path[0] = folder
    sys.argv = [name]
    warnings.simplefilter("error")
    if is_imported:
        importlib.import_module(name.removesuffix(".py"))
    else:
        sys.modules["__main__"].__file__ = str(Path(folder, name))
        runpy.run_path(name, run_name="__main__")


if __name__ == "__main__":
    _serve()
