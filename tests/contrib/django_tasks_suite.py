"""
Run the tests of Django's own task backends with Laneway's: `python django_tasks_suite.py FOLDER`.

FOLDER is `tests/tasks` of Django's source (from 6.0 on), or `tests` of that of django-tasks. The
tests of the immediate backend run with one that has a worker run each task when it is enqueued,
those of the dummy backend with one that keeps the results, as `DummyBackend` does.
"""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
import threading
import types
from pathlib import Path
from typing import Any

import django
from django.conf import settings
from django.test.runner import DiscoverRunner

IMMEDIATE_ONLY = {
    "test_throws_keyboard_interrupt": "a worker survives it, and the task has failed",
    "test_cannot_get_result": "results can be read",
    "test_cannot_refresh_result": "results can be read",
    "test_cannot_pass_run_after": "tasks may be deferred",
    "test_get_result_from_different_request": "results can be read",
}
DUMMY_ONLY = {
    "test_refresh_result": "it changes the dummy's list of results",
    "test_refresh_result_async": "it changes the dummy's list of results",
    "test_clear": "it clears the dummy's list of results",
}
BACKENDS_ONLY = {"test_uses_lib_tasks_by_default": "the default backend of the library"}


def configure(folder: Path) -> None:
    """Settings like those of the suites, with Laneway's app."""
    sys.path.insert(0, str(folder.parent))
    name = folder.name
    own = folder / "settings.py"
    store = tempfile.mkdtemp()
    if own.exists():
        os.environ.setdefault("IN_TEST", "1")
        module = importlib.import_module(f"{name}.settings")
        given = {key: value for key, value in vars(module).items() if key.isupper()}
        given.pop("BASE_DIR", None)
    else:
        given = {"INSTALLED_APPS": [], "USE_TZ": True, "SECRET_KEY": "for tests"}
    given["INSTALLED_APPS"] = ["laneway.contrib.django", *given["INSTALLED_APPS"]]
    given["LANEWAY"] = {"URL": f"sqlite:///{store}/queue.db", "MODULES": []}
    given["DATABASES"] = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
    settings.configure(**given)
    django.setup()


def replace_backends() -> None:
    """Put Laneway's backend where the suites look for the library's."""
    backend = importlib.import_module("laneway.contrib.django.backend")
    library = backend.LIBRARY

    class ImmediateBackend(backend.LanewayBackend):  # type: ignore[name-defined]
        """A worker runs each task when it is enqueued."""

        def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
            result = super().enqueue(task, args, kwargs)
            # in a fresh context, as in a process of its own
            worker = threading.Thread(target=backend.app.worker(burst=True).run)
            worker.start()
            worker.join()
            result.refresh()
            return result

    class DummyBackend(backend.LanewayBackend):  # type: ignore[name-defined]
        """Results are listed."""

        def __init__(self, alias: str, params: dict[str, Any]) -> None:
            super().__init__(alias, params)
            self.ids: list[str] = []

        def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
            result = super().enqueue(task, args, kwargs)
            self.ids.append(result.id)
            return result

        @property
        def results(self) -> list[Any]:
            return [self.get_result(each) for each in self.ids]

        def clear(self) -> None:
            self.ids.clear()

    for kind, own in (("immediate", ImmediateBackend), ("dummy", DummyBackend)):
        module: types.ModuleType = importlib.import_module(f"{library}.backends.{kind}")
        setattr(module, own.__name__, own)


class Runner(DiscoverRunner):
    """Says how many tests passed, and why some cannot."""

    def suite_result(self, suite: Any, result: Any, **_: Any) -> int:
        bad = {test.id() for test, _ in [*result.failures, *result.errors]}
        # a subtest's id goes on after the test's
        names = {each.partition(" ")[0] for each in bad}
        known: set[str] = set()
        for each in names:
            reasons = DUMMY_ONLY if "Dummy" in each else IMMEDIATE_ONLY
            if each.rpartition(".")[2] in reasons | BACKENDS_ONLY:
                known.add(each)
        print(
            f"{result.testsRun} tests: {result.testsRun - len(names)} passed, {len(known)} are"
            f" about what only the other backend does, {len(names - known)} failed"
        )
        return len(names - known)


def main(folder: Path) -> int:
    configure(folder)
    replace_backends()
    return Runner(verbosity=1, interactive=False).run_tests([folder.name])


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
