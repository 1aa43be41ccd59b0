"""Flask, FastAPI, Starlette and Litestar: the programs of docs/web-frameworks.md."""

from __future__ import annotations

import importlib.util
import logging.handlers
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from laneway import UsageError
from laneway.testing import virtual

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "web-frameworks.md").read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
PATIENCE = 30.0


def program(folder: Path, containing: str) -> Any:
    """The module of the page's program with this text."""
    (text,) = [each for each in PROGRAMS if containing in each]
    path = folder / "shop.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(f"shop_{containing.lower()}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def client_of(module: str) -> Any:
    """The client for tests of Starlette or Litestar."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # which HTTP library it prefers
        return importlib.import_module(module).TestClient


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The programs' stores are in the current folder."""
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith("shop_"):
            del sys.modules[name]


# Flask


@pytest.fixture
def flask_shop(folder: Path) -> Any:
    pytest.importorskip("flask")
    return program(folder, "FlaskLaneway()")


def test_flask(flask_shop: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """The store is that of the configuration; tasks run inside the application's context."""
    web = flask_shop.create_app()
    assert web.extensions["laneway"] is flask_shop.laneway
    assert flask_shop.laneway.url == "sqlite:///shop.db"

    @flask_shop.laneway.task
    async def name() -> str:
        flask = importlib.import_module("flask")
        return str(flask.current_app.name)

    with virtual(flask_shop.laneway) as world:
        assert web.test_client().post("/orders/acme").status_code == 200
        job = name.delay()
        world.run(raising=True)
        assert job.get() == web.name
    assert "shop@example.com acme welcome" in capsys.readouterr().out


def test_flask_without_init_app(flask_shop: Any) -> None:
    """A worker's run says what is missing."""
    with virtual(flask_shop.laneway) as world:
        flask_shop.mail.delay("acme", "x")
        with pytest.raises(UsageError, match="init_app"):
            world.run(raising=True)


def test_not_an_application_of_flask() -> None:
    pytest.importorskip("flask")
    from laneway.contrib.flask import FlaskLaneway

    with pytest.raises(UsageError, match="expected an application of Flask, got 'sqlite"):
        FlaskLaneway("sqlite:///shop.db")  # type: ignore[arg-type]


def test_flasks_command(flask_shop: Any, folder: Path) -> None:
    """`flask laneway worker`, with processes that load the Flask application first."""
    flask_shop.create_app()
    job = flask_shop.mail.delay("acme", "hello")
    flask_shop.laneway.close()
    command = [sys.executable, "-m", "flask", "--app", "shop", "laneway", "worker"]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{folder}"}
    for options in (["--processes", "2"], ["-c", "0"]):
        ran = subprocess.run(
            [*command, "--burst", *options],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if "0" not in options:
            assert ran.returncode == 0, ran.stderr
            assert "shop@example.com acme hello" in ran.stdout
            assert job.get(0) is None
        else:
            assert ran.returncode == 1
            assert "concurrency" in ran.stderr
    flask_shop.laneway.close()


# ASGI


@pytest.fixture
def own_logging() -> Iterator[None]:
    """Litestar configures the logging of the process, which then writes to a captured stream."""
    root = logging.getLogger()
    level = root.level
    yield
    for handler in root.handlers[:]:
        if isinstance(handler, logging.handlers.QueueHandler):
            root.removeHandler(handler)
    root.setLevel(level)


@pytest.mark.usefixtures("own_logging")
@pytest.mark.parametrize("name", ["FastAPI(", "Litestar("])
def test_lifespan_and_dependency(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A worker runs beside the server; the store is closed with it."""
    if name == "FastAPI(":
        pytest.importorskip("fastapi")
        client = client_of("starlette.testclient")
    else:
        pytest.importorskip("litestar")
        client = client_of("litestar.testing")
    shop = program(folder, name)
    with client(shop.web) as browser:
        answer = browser.post("/orders/acme")
        assert answer.is_success, answer.text
        shop.app.job(answer.json()["job"]).get(PATIENCE)
        assert browser.get("/waiting/acme").json() == 0
    assert "welcome acme" in capsys.readouterr().out


def test_inner_lifespan() -> None:
    """A lifespan of the program's own runs inside, and gives its state."""
    contextlib: Any = importlib.import_module("contextlib")
    applications: Any = importlib.import_module("starlette.applications")
    client: Any = client_of("starlette.testclient")
    from laneway import Laneway
    from laneway.contrib.asgi import lifespan

    app = Laneway("sqlite://")
    seen: list[str] = []

    @contextlib.asynccontextmanager
    async def own(web: Any) -> Any:
        seen.append("begun")
        yield {"one": 1}
        seen.append("ended")

    with client(applications.Starlette(lifespan=lifespan(app, inner=own))) as found:
        assert found.app_state == {"one": 1}
    assert seen == ["begun", "ended"]


def test_dashboard(folder: Path) -> None:
    """Who may do what is the program's choice; a change comes from its own pages."""
    shop = program(folder, "dashboard(app, who)")
    client: Any = client_of("starlette.testclient")
    form = {"topic": "mail.acme", "back": "/queue/"}
    own = {"sec-fetch-site": "same-origin"}

    def paused() -> bool:
        return bool(shop.app.engine.policy_of("mail.acme").paused)

    users: dict[str, str] = {}
    with client(shop.web, follow_redirects=False) as browser:
        gateway = shop.web.routes[0].app
        assert browser.get("/queue/").status_code == 403
        gateway._caller_of = lambda _: shop.who({"session": users})
        users["user"] = "bob"
        page = browser.get("/queue/topics")
        assert page.status_code == 200
        assert 'href="/queue/' in page.text
        browser.post("/queue/actions/pause", data=form, headers=own)
        assert not paused()
        users["user"] = "ann"
        assert browser.post("/queue/actions/pause", data=form).status_code == 403
        assert browser.post("/queue/actions/pause", data=form, headers=own).status_code == 303
        assert paused()
        gateway.close()
