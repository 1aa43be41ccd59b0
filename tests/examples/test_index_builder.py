"""The index builder: killed, asked to step down, stopped; the index is always right."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from examples.index_builder.indexer import Documents, Index, OldTerm, words
from laneway import Laneway
from laneway.testing.servers import until

ROOT = Path(__file__).parents[2]


def test_index_through_three_successions(tmp_path: Path) -> None:
    """Each document is indexed once, by one process at a time."""
    documents, index = Documents(tmp_path), Index(tmp_path)
    command = [
        sys.executable,
        "-m",
        "examples.index_builder.indexer",
        str(tmp_path),
        "6",
    ]  # seconds of a term
    processes = [
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    written: list[tuple[str, int]] = []

    def append(count: int) -> None:
        """Append documents until there are so many."""
        for n in range(documents.count() + 1, count + 1):
            text = f"Document {n}, about the number {n * n}"
            documents.append(text)
            written.extend((word, n) for word in set(words(text)))

    def is_complete() -> bool:
        return index.built_to() == documents.count()

    try:
        with Laneway(f"sqlite:///{tmp_path}/laneway.db") as app:
            append(200)
            until(is_complete, "the first documents", 60)
            until(lambda: app.election("index").state().holder, "a holder", 60)
            holder = app.election("index").state().holder
            assert holder is not None
            killed = next(each for each in processes if each.pid == int(holder.split(":")[1]))
            killed.send_signal(signal.SIGKILL)
            append(400)
            until(is_complete, "a successor of a killed process", 60)
            until(lambda: app.election("index").state().state == "held", "a holder", 60)
            app.election("index").step_down(wait=30)
            append(600)
            until(is_complete, "a successor of one that stepped down", 60)
            for process in processes:
                process.terminate()
            codes = {process.wait(30) for process in processes if process is not killed}
            assert codes == {0}
            assert app.election("index").state().handed_over
            last = app.election("index").state().number
        assert index.entries() == sorted(written)
        with pytest.raises(OldTerm), index.change(last - 1):
            pass
    finally:
        for process in processes:
            process.kill()
            process.communicate()
        with closing(documents), closing(index):
            pass
