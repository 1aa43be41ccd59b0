"""Which store a command uses: one order, before and after the command, and what differs is said."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from laneway import Laneway
from laneway.cli import main
from tests.cli.test_worker import run as run_apart

PROGRAM = """
from laneway import Laneway
app = Laneway({argument})

@app.handler("push.*")
def push(message):
    print("handled", message.body, flush=True)
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LANEWAY_URL", raising=False)


def call(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(main, list(arguments))
    assert result.exit_code == code, result.output
    return result.stdout


@pytest.mark.parametrize("short", [True, False])
def test_options_before_and_after_the_command(short: bool) -> None:
    """
    -u and -n mean the same before a command, after it, and after a subcommand; the last one counts.
    """
    url, namespace = ("-u", "-n") if short else ("--url", "--namespace")
    store = [url, "sqlite:///s.db", namespace, "apart"]
    call("publish", "push.a", "1", *store)
    for command in (["topics"], ["peek", "push.a"]):
        assert "push.a" in call(*store, *command, "--json")
        assert "push.a" in call(*command, *store, "--json")
    call("policy", "set", "push.a", "--rate", "5/s", *store)
    assert "push.a" in call(*store, "policy", "list")
    assert "push.a" in call("policy", *store, "list")
    assert "push.a" in call("-u", "sqlite:///none.db", "topics", *store)
    call("topics", url, "sqlite:///none.db", code=3)


def test_an_empty_namespace_is_not_the_default_one() -> None:
    """`-n "$NAMESPACE"` in a script that has not set it must not purge another one."""
    call("publish", "push.a", "1")
    for arguments in (["-n", "", "topics"], ["topics", "-n", ""]):
        result = CliRunner().invoke(main, arguments)
        assert (result.exit_code, result.output) == (
            2,
            "laneway: namespace: expected a name, got ''\n",
        )


def test_the_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Option, argument, environment, project, default; each names what it passes over."""
    assert Laneway().runtime.holder.choice.source == "default"
    assert not Laneway().runtime.holder.choice.passed_over
    (tmp_path / "pyproject.toml").write_text('[tool.laneway]\nurl = "sqlite:///project.db"\n')
    assert Laneway().url == "sqlite:///project.db"
    monkeypatch.setenv("LANEWAY_URL", "valkey://:secret@host")
    app = Laneway("sqlite:///code.db")
    assert (
        str(app.runtime.holder.choice)
        == "sqlite:///code.db (argument in the code); ignored: valkey://***@host (environment"
        " LANEWAY_URL), sqlite:///project.db (pyproject.toml [tool.laneway] url)"
    )
    app.runtime.use_store("sqlite:///option.db", "apart")
    assert (app.url, app.namespace, app.runtime.holder.choice.source) == (
        "sqlite:///option.db",
        "apart",
        "option --url",
    )
    assert len(app.runtime.holder.choice.passed_over) == 3
    assert Laneway().url == "valkey://:secret@host"
    text = call("config", "show")
    assert "valkey://***@host (environment LANEWAY_URL)" in text
    assert "ignored: sqlite:///project.db" in text


@pytest.mark.parametrize("processes", ["1", "2"])
def test_the_option_stands_above_the_code(tmp_path: Path, processes: str) -> None:
    """
    A worker serves the store and namespace that the command line names, in all its processes, and
    says what it passes over.
    """
    (tmp_path / "shop.py").write_text(PROGRAM.format(argument="'sqlite:///code.db'"))
    call("publish", "push.a", "17", "-u", "sqlite:///option.db", "-n", "apart")
    done = run_apart(
        tmp_path,
        "worker",
        "shop:app",
        "--burst",
        "--processes",
        processes,
        "-u",
        "sqlite:///option.db",
        "-n",
        "apart",
    )
    assert done.returncode == 0, done.stderr
    assert "handled 17" in done.stdout
    assert (
        "store sqlite:///option.db (option --url); ignored: sqlite:///code.db (argument in the"
        " code)" in done.stderr
    )
    assert "namespace: apart (option --namespace); ignored: default" in done.stderr


def test_the_environment_does_not_end_a_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Where the code names a store, the environment's is passed over with a warning that hides its
    password.
    """
    (tmp_path / "pyproject.toml").write_text('[tool.laneway]\nurl = "valkey://:secret@host"\n')
    (tmp_path / "shop.py").write_text(PROGRAM.format(argument="'sqlite:///code.db'"))
    call("publish", "push.a", "17", "-u", "sqlite:///code.db")
    done = run_apart(tmp_path, "worker", "shop", "--burst")
    assert "handled 17" in done.stdout
    assert (
        "store sqlite:///code.db (argument in the code); ignored: valkey://***@host"
        " (pyproject.toml" in done.stderr
    )


def test_the_readme_program_and_the_commands_share_a_store(tmp_path: Path) -> None:
    """Ten lines without a URL, and `topics`, use the same file."""
    Laneway().publish("push.acme", 1)
    assert "push.acme" in call("topics")


def test_the_store_of_dev_is_named_where_the_default_one_is_new(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Else a program beside `laneway dev` publishes into another file, and nothing tells why."""
    hint = (
        "`laneway dev` keeps its messages in laneway-dev.db;"
        " export LANEWAY_URL=sqlite:///laneway-dev.db to use that store"
    )
    assert hint not in CliRunner().invoke(main, ["topics"]).stderr
    (tmp_path / "laneway-dev.db").touch()
    result = CliRunner().invoke(main, ["topics"])
    assert result.exit_code == 3
    assert hint in result.stderr
    assert result.stderr.count("\n") == 1
    for expected in ([f"sqlite:///laneway.db is a new store; {hint}"], []):
        with Laneway() as app:
            app.publish("push.acme", 1)
        assert [record.getMessage() for record in caplog.records] == expected
        caplog.clear()
