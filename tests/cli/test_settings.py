"""Policies, gates, pause, doctor: the commands of whoever operates."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from fairlead import Fairlead

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Command


def test_policy_set_show_reset(fairlead: Command) -> None:
    """The operator's setting stands above the code's until it is reset."""
    with Fairlead(fairlead.url) as app:
        app.policy("push.*", rate=10, concurrency=3)
        app.publish("push.acme", 1)
    fairlead("policy", "set", "push.*", "--rate", "50/s")
    shown = fairlead.json("policy", "show", "push.acme")
    assert (shown["policy"]["rate"], shown["policy"]["concurrency"]) == (50, 3)
    assert shown["why"]["rate"] == {"layer": "operator", "pattern": "push.*"}
    assert "operator push.*" in fairlead("policy", "show", "push.acme", "--why").stdout
    fairlead("policy", "reset", "push.*")
    assert fairlead.json("policy", "show", "push.acme")["policy"]["rate"] == 10
    fairlead("policy", "reset", "push.*", code=1)


@pytest.mark.parametrize("arguments", [("--rate", "-1"), ("--partitions", "3"), ("--concurrency", "many"), ()])
def test_an_impossible_policy(fairlead: Command, arguments: tuple[str, ...]) -> None:
    """A policy that cannot be is a wrong call, told in one line."""
    result = fairlead("policy", "set", "push.*", *arguments, code=2)
    assert result.stderr.startswith("fairlead: ")
    assert result.stderr.count("\n") == 1


def test_copy_and_compare_namespaces(fairlead: Command) -> None:
    """Tried in sandbox, brought to online: diff has exit code 1 until they are the same."""
    fairlead("-n", "sandbox", "policy", "set", "push.*", "--rate", "50/s")
    fairlead("-n", "online", "policy", "set", "mail.*", "--tier", "low")
    fairlead("-n", "sandbox", "policy", "diff", "online", code=1)
    fairlead("-n", "sandbox", "policy", "copy", "online")
    assert "push.*" in fairlead("-n", "online", "policy", "list").stdout


def test_gates(fairlead: Command) -> None:
    """A gate is set and listed; one that limits nothing is a wrong call."""
    fairlead("gate", "set", "stripe", "--rate", "100/s", "--concurrency", "20")
    [gate] = fairlead.json("gate", "list")
    assert (gate["name"], gate["rate"], gate["concurrency"]) == ("stripe", 100, 20)
    fairlead("gate", "set", "nothing", code=2)


def test_pause_and_resume(fairlead: Command) -> None:
    """A paused topic delivers nothing, a resumed one does."""
    fairlead("publish", "push.acme", "1")
    fairlead("pause", "push.*")
    with Fairlead(fairlead.url) as app:
        assert app.lease(1) == []
    fairlead("resume", "push.*")
    with Fairlead(fairlead.url) as app:
        assert len(app.lease(1)) == 1


def test_doctor(fairlead: Command) -> None:
    """A sound store is exit code 0; the dump has no bodies."""
    fairlead("publish", "a", '"secret"')
    assert all(check["ok"] for check in fairlead.json("doctor"))
    assert "ok" in fairlead("doctor", "--repair").stdout
    assert "secret" not in fairlead("doctor", "--dump").stdout


def test_a_store_that_cannot_be_used(fairlead: Command, tmp_path: Path) -> None:
    """A missing or damaged file is exit code 3, and looking creates none."""
    fairlead("topics", code=3)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "fairlead.db").write_bytes(b"this is no database" * 1000)
    assert "fairlead.db" in fairlead("doctor", code=3).stderr
    assert "fairlead.db" in fairlead("publish", "a", "1", code=3).stderr


def test_bench_measures(fairlead: Command) -> None:
    """The small benchmark measures each operation."""
    figures = fairlead.json("bench", "--messages", "1000", "--topics", "10", "--durability", "memory")["per_second"]
    assert set(figures) == {"put", "lease", "settle", "lease + settle"}
    assert all(figure > 0 for figure in figures.values())


def test_bench_of_the_repository(fairlead: Command) -> None:
    """In the repository a benchmark can be named; what is not there, or belongs to the small one, is told."""
    assert "there are: " in fairlead("bench", "nothing", code=2).stderr
    assert "rates" in fairlead("bench", "nothing", code=2).stderr
    assert "small" in fairlead("bench", "rates", "--messages", "1000", code=2).stderr


def test_bench_runs_what_the_repository_has(fairlead: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without names all of it, else those named, in the size asked for; the worst exit code is the command's."""
    calls: list[tuple[list[str], object]] = []

    def run(command: list[str], *, cwd: object, check: bool) -> object:
        calls.append((command[1:], cwd))
        return SimpleNamespace(returncode=len(calls) - 1)

    monkeypatch.setattr("subprocess.run", run)
    fairlead("bench")
    fairlead("bench", "rates", "limited", "--size", "full", code=2)
    assert [command for command, _ in calls] == [["-m", "bench.all", "--quick"], ["-m", "bench.rates"], ["-m", "bench.limited"]]
    monkeypatch.setattr("fairlead.cli.bench._repository", lambda: None)
    assert "repository" in fairlead("bench", "rates", code=2).stderr
