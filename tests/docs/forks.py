"""
Run programs in processes of their own that need not import Laneway: an interpreter that has
imported it forks one for each.

The file is also the program of that interpreter. It reads requests from standard input, one JSON
list a line, and answers each with the process id or the exit status. It has no threads when it
forks.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import signal
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

    def start(
        self,
        folder: Path,
        words: list[str],
        output: Path,
        environment: dict[str, str] | None = None,
    ) -> int:
        """
        Start `python FILE …`, `import FILE` or `MODULE …` in a folder. Its output is appended to a
        file. Returns the process id; `wait` has to follow.
        """
        return self._ask("start", str(folder), words, str(output), environment or {})

    def wait(self, pid: int) -> int:
        """The exit status of a process, when it has ended."""
        return self._ask("wait", pid)

    def run(self, folder: Path, words: list[str]) -> tuple[int, str]:
        """Run a program. Returns the exit status and the output."""
        output = folder.parent / f"{folder.name}.out"
        code = self.wait(self.start(folder, words, output))
        return code, output.read_text()

    def _ask(self, *request: object) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(request), file=self._process.stdin, flush=True)
        return int(self._process.stdout.readline())


MODULES = ("laneway.cli.main", "laneway.engines.sqlite", "laneway.working.worker")
"""What most programs use."""


def _serve() -> None:
    for module in MODULES:
        importlib.import_module(module)
    for line in sys.stdin:
        what, *request = json.loads(line)
        if what == "wait":
            _, status = os.waitpid(request[0], 0)
            print(os.waitstatus_to_exitcode(status), flush=True)
            continue
        child = os.fork()
        if child == 0:
            _become(*request)  # the rest of this file is the end of the program
            return
        print(child, flush=True)


def _become(folder: str, words: list[str], output: str, environment: dict[str, str]) -> None:
    """Be the program: in its folder, with its arguments, its output and its `__main__`."""
    signal.alarm(TIMEOUT)
    for stream in (1, 2):
        os.dup2(os.open(output, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), stream)
    os.close(0)
    os.open(os.devnull, os.O_RDONLY)
    os.chdir(folder)
    os.environ.update(environment)
    sys.path[0] = folder
    warnings.simplefilter("error")
    if words[0] == "import":
        importlib.import_module(words[1].removesuffix(".py"))
    elif words[0] == "python":
        sys.argv = words[1:]
        sys.modules["__main__"].__file__ = str(Path(folder, words[1]))
        runpy.run_path(words[1], run_name="__main__")
    else:
        sys.argv = words
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _serve()
