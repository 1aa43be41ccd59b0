"""Tasks in child processes: the run, the task's own class and retries are there too."""

from __future__ import annotations

import importlib
import itertools
import os
from pathlib import Path

import pytest

from laneway import Laneway, UsageError
from laneway.testing import virtual

MODULE = """
import os
from decimal import Decimal
from laneway import Laneway, Reject, Task, current_request

app = Laneway("sqlite:///{folder}/laneway.db", durability="memory")

def note(*words):
    with open("{folder}/notes", "a") as file:
        print(*words, file=file)

class Noting(Task):
    def on_failure(self, exc, task_id, args, kwargs, einfo):
        note("failure", self.name, exc, "in the child" if os.getpid() != {parent} else "here")

    def on_success(self, retval, task_id, args, kwargs):
        note("success", retval, type(retval).__name__)

@app.task(bind=True, base=Noting, name="double", topic="double", isolation="process",
          autoretry_for=(OSError,), retries=1, backoff=0)
def double(self, price: Decimal):
    assert current_request() == self.request
    if price == 1:
        raise KeyError("one")
    if price == 2:
        raise self.retry(delay=0, error=OSError("two"))
    return 2 * price
"""
_numbers = itertools.count()


def test_tasks_in_child_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"isolated_{next(_numbers)}_{os.getpid()}"
    (tmp_path / f"{name}.py").write_text(MODULE.format(folder=tmp_path, parent=os.getpid()))
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module(name)
    app: Laneway = module.app
    with virtual(app) as world:
        for price in ("1", "2", "3.5"):
            module.double.delay(price)
        summary = world.run_all()
        assert (summary.acked, summary.retried, summary.died) == (1, 1, 2)
        notes = (tmp_path / "notes").read_text().splitlines()
        assert sorted(notes) == [
            "failure double 'one' in the child",
            "failure double two in the child",
            "success 7.0 Decimal",
        ]
        dead = {letter.reason: letter.error for letter in app.dead_letters.list()}
        assert sorted(dead) == ["KeyError: 'one'", "retries used up (2 attempts): OSError: two"]
        assert f"{name}.py" in (dead["KeyError: 'one'"] or "")
    assert not (tmp_path / "laneway.db").exists(), "neither here nor in a child is the store opened"


def test_a_function_that_no_child_can_import(tmp_path: Path) -> None:
    """It is refused where it is declared, not when its first call ends the worker."""
    app = Laneway(f"sqlite:///{tmp_path}/q.db")

    def inner() -> None: ...

    with pytest.raises(UsageError, match=r"inner: isolation=.process. needs a function at the top"):
        app.task(isolation="process")(inner)
