"""
An engine of somebody else: installed, found by its URL, used, and put through the suite that ships
for it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from laneway import Laneway, Message
from laneway.engines import check_server, open_engine
from laneway.engines.base import Check, Settings
from laneway.engines.own import OWN
from laneway.errors import UsageError

MODULE = """
from laneway.engines import open_engine
from laneway.engines.base import Check

opened = []

def open_shared(url, settings):
    opened.append((url, settings.namespace))
    return open_engine("sqlite://", settings)

class OpenChecked:
    def __call__(self, url, settings):
        return open_shared(url, settings)

    def check_server(self, url):
        return [Check("server", ok=False, detail=url)]

open_checked = OpenChecked()
"""


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder as pip installs it: the module, and the metadata that names its entry point."""
    (tmp_path / "kept_engine.py").write_text(MODULE)
    metadata = tmp_path / "kept_engine-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: kept-engine\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[laneway.engines]\nkept = kept_engine:open_shared\nchecked = kept_engine:open_checked\n"
        "broken = no_such_module:open_broken\nsqlite = kept_engine:open_shared\n"
    )
    return tmp_path


def test_foreign_engine_is_found_by_its_scheme(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        UsageError, match=r'there is no engine "kept", only postgres, postgresql, redis, .* sqlite'
    ):
        open_engine("kept://here", Settings())
    monkeypatch.syspath_prepend(installed)
    seen = []
    with Laneway("kept://here", namespace="mine") as app:

        @app.handler("*")
        async def note(message: Message) -> None:
            seen.append(message.body)

        app.publish("a", 1)
        app.run_worker(burst=True)
    assert seen == [1]
    assert sys.modules["kept_engine"].opened == [("kept://here", "mine")]
    with pytest.raises(UsageError, match=r"only broken, checked, kept, postgres, "):
        open_engine("other://here", Settings())
    with pytest.raises(UsageError, match=r'no engine "keptt"; did you mean "kept"\?$'):
        open_engine("keptt://here", Settings())
    with pytest.raises(UsageError, match="engine broken: no_such_module:open_broken cannot be imp"):
        open_engine("broken://here", Settings())


def test_server_check_of_a_foreign_engine_is_optional(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(installed)
    assert check_server("kept://here") == []
    assert check_server("checked://here") == [Check("server", ok=False, detail="checked://here")]


def test_foreign_engine_cannot_replace_one_of_ours(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(installed)
    engine = open_engine("sqlite://", Settings())
    assert engine.capabilities.name == "sqlite"
    opened = getattr(sys.modules.get("kept_engine"), "opened", [])  # None: never imported
    assert ("sqlite://", "default") not in opened
    engine.close()


def test_our_engines_are_opened_without_the_metadata_of_packages() -> None:
    """Reading it takes longer than opening a store; a source tree on PYTHONPATH has none."""
    program = (
        "import sys; from laneway import Laneway; Laneway('sqlite://').publish('a', 1)\n"
        "assert 'importlib.metadata' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_our_engines_are_registered() -> None:
    registered = entry_points(group="laneway.engines")
    ours = {each.name: each.value for each in registered if each.value.startswith("laneway.")}
    assert ours == OWN


def test_conformance_suite_runs_on_a_foreign_engine(installed: Path) -> None:
    """One command runs it, as docs/writing-an-engine.md says; without a URL it says what to set."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--pyargs",
        "laneway.testing.conformance",
        "-k",
        "merge",
    ]
    source = str(Path(__file__).parents[2] / "src")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(installed), source])}
    environment.pop("PYTEST_ADDOPTS", None)
    result = subprocess.run(
        command,
        cwd=installed,
        env={**environment, "LANEWAY_ENGINE": "kept://"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert result.returncode == 0, result.stdout
    assert " passed" in result.stdout
    result = subprocess.run(
        [*command, "-x"],
        cwd=installed,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert result.returncode == 1
    assert "set LANEWAY_ENGINE=URL, or define a fixture make_engine" in result.stdout


@pytest.mark.parametrize("package", ["redis", "hiredis"])
def test_a_missing_client_library_is_named(package: str) -> None:
    script = (
        f"import sys; sys.modules[{package!r}] = None\nfrom laneway.engines import"
        " open_engine\nfrom laneway.engines.base import"
        " Settings\nopen_engine('valkey://localhost', Settings())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert (
        f'engine valkey: the package "{package}" of the client library is missing; pip install'
        in done.stderr.splitlines()[-1]
    )
