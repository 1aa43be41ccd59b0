"""
A process that only sleeps: how late it wakes up shows how busy the machine is, whatever Laneway
does.

`python -m laneway.demo.probe FILE` writes a line for each sleep: its end, and its delay in seconds.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

SLEEP = 0.01


def main(path: Path) -> None:
    """Run until the parent process is gone."""
    parent = os.getppid()
    with path.open("a", encoding="utf-8", buffering=1) as file:
        while os.getppid() == parent:
            due = time.monotonic() + SLEEP
            time.sleep(SLEEP)
            file.write(f"{time.time():.4f} {time.monotonic() - due:.6f}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
