"""Several programs, and several versions of one, on a store: whose policies hold."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from laneway import BadPolicy, EngineUnavailable, Laneway, UsageError, programs as registry
from laneway.engines.sql.engine import SqlQueue
from laneway.policy import PROGRAM
from laneway.testing.servers import Server

Make = Callable[..., Laneway]


@pytest.fixture(scope="module")
def shared() -> Iterator[Server]:
    with Server() as running:
        yield running


@pytest.fixture(params=["sqlite", "valkey"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/q.db"
    server: Server = request.getfixturevalue("shared")
    return f"{server.url}?shards=2"


@pytest.fixture
def namespace() -> str:
    return uuid.uuid4().hex


def program(
    url: str,
    namespace: str,
    name: str,
    version: str | int | None = None,
    **policies: dict[str, object],
) -> None:
    """
    A program starts, declares these policies (`__` in a name is a dot, `_all` at its end the
    pattern), and ends.
    """
    with Laneway(url, namespace=namespace, program=name, version=version) as app:
        for pattern, fields in policies.items():
            app.policy(pattern.replace("_all", ".*").replace("__", "."), **fields)  # type: ignore[arg-type]
        app.engine.overview()


def holds(url: str, namespace: str, topic: str) -> dict[str, object]:
    with Laneway(url, namespace=namespace, program="looker") as app:
        return app.topic(topic).policy()


def test_a_newer_version_replaces_the_whole_set(url: str, namespace: str) -> None:
    """What was deleted from the code goes, of patterns and of topics; other programs' stays."""
    program(
        url,
        namespace,
        "shop",
        "1.9",
        push_all={"rate": 5, "retries": 2},
        push__acme={"weight": 2},
        mail_all={"rate": 1},
    )
    program(url, namespace, "billing", "7", bills_all={"rate": 9}, push__acme={"retries": 2})
    program(url, namespace, "shop", "1.10", push_all={"rate": 6}, push__zoo={"weight": 3})
    assert holds(url, namespace, "push.acme") == {"rate": 6.0, "retries": 2}
    assert holds(url, namespace, "push.zoo") == {"rate": 6.0, "weight": 3.0}
    assert holds(url, namespace, "mail.a") == {}
    assert holds(url, namespace, "bills.a") == {"rate": 9.0}


def test_an_older_version_changes_nothing_and_says_so(
    url: str, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    program(url, namespace, "shop", "2026-11-21", push_all={"rate": 6})
    with caplog.at_level(logging.WARNING, logger="laneway"):
        program(url, namespace, "shop", "2026-11-20", push_all={"rate": 5}, mail_all={"rate": 1})
    assert (
        "program shop 2026-11-20: version 2026-11-21 has declared its policies already"
        in caplog.text
    )
    assert holds(url, namespace, "push.a") == {"rate": 6.0}
    assert holds(url, namespace, "mail.a") == {}


def test_the_same_version_and_none_replace_too(url: str, namespace: str) -> None:
    """
    Code is changed and started again; one that declares nothing is a tool, unless it says its
    version.
    """
    program(url, namespace, "shop", "1", a={"rate": 5})
    program(url, namespace, "shop", "1", b={"rate": 5})
    assert (holds(url, namespace, "a"), holds(url, namespace, "b")) == ({}, {"rate": 5.0})
    program(url, namespace, "shop", None, c={"rate": 5})
    assert (holds(url, namespace, "b"), holds(url, namespace, "c")) == ({}, {"rate": 5.0})
    program(url, namespace, "shop")
    assert holds(url, namespace, "c") == {"rate": 5.0}
    program(url, namespace, "shop", "2")
    assert holds(url, namespace, "c") == {}


def test_programs_do_not_overwrite_each_other(url: str, namespace: str) -> None:
    """
    The error names the owner; the same value, or another field, is fine; what was there stays.
    """
    program(url, namespace, "shop", "1", push_all={"rate": 5}, push__acme={"weight": 2})
    program(
        url,
        namespace,
        "billing",
        "1",
        push_all={"rate": "300/m", "retries": 1},
        push__acme={"weight": 2, "retries": 3},
    )
    for policies in ({"push_all": {"rate": 6}}, {"push__acme": {"weight": 3}}):
        third: dict[str, dict[str, object]] = {
            pattern: {**fields} for pattern, fields in policies.items()
        }
        with pytest.raises(BadPolicy, match=r'the program "(shop|billing)" declares'):
            program(url, namespace, "third", "1", **third)
    assert holds(url, namespace, "push.acme") == {"rate": 5.0, "weight": 2.0, "retries": 3}
    program(url, namespace, "billing", "2", later={"backoff": 1})
    with pytest.raises(BadPolicy, match=r'"billing" declares another one than "third"; let'):
        program(url, namespace, "third", "1", later={"backoff": [1, 5]})
    program(url, namespace, "billing", "3")
    program(url, namespace, "shop", "2")
    program(url, namespace, "third", "1", push_all={"rate": 6})
    assert holds(url, namespace, "push.acme") == {"rate": 6.0}


def test_what_is_set_at_run_time_stays_until_it_is_reset(url: str, namespace: str) -> None:
    """Over restarts and newer versions; reset, what is declared holds again."""
    with Laneway(url, namespace=namespace, program="shop", version="1") as app:
        app.policy("push.*", rate=5, retries=2)
        app.policy("push.acme", weight=2)
        app.engine.overview()
        app.policy("push.*", rate=7)
        app.policy("push.acme", weight=4)
        app.policy("later", rate=1)
    program(
        url, namespace, "shop", "2", push_all={"rate": 6, "retries": 3}, push__acme={"weight": 3}
    )
    assert holds(url, namespace, "push.acme") == {"rate": 7.0, "retries": 3, "weight": 4.0}
    assert holds(url, namespace, "later") == {"rate": 1.0}
    with Laneway(url, namespace=namespace) as app:
        for name in ("push.*", "push.acme", "later"):
            assert app.engine.policy_reset("code", name)
            assert not app.engine.policy_reset("code", name)
    assert holds(url, namespace, "push.acme") == {"rate": 6.0, "retries": 3, "weight": 3.0}
    assert holds(url, namespace, "later") == {}


def test_an_operator_precedes_all_programs(url: str, namespace: str) -> None:
    with Laneway(url, namespace=namespace) as app:
        app.engine.policy_set("operator", "push.*", {"rate": 1})
    program(url, namespace, "shop", "1", push_all={"rate": 6}, push__acme={"rate": 7})
    assert holds(url, namespace, "push.acme") == {"rate": 1.0}


def test_gates_belong_to_programs_too(url: str, namespace: str) -> None:
    def limits() -> dict[str, object]:
        with Laneway(url, namespace=namespace) as app:
            return {gate["name"]: gate["concurrency"] for gate in app.engine.gate_list()}

    def start(name: str, version: str, **gates: int) -> None:
        with Laneway(url, namespace=namespace, program=name, version=version) as app:
            for gate, concurrency in gates.items():
                app.gate(gate, concurrency=concurrency)
            app.engine.overview()

    start("shop", "1", card=5, mail=2)
    start("billing", "1", mail=2)
    with pytest.raises(BadPolicy, match=r'gate card: the program "shop"'):
        start("billing", "2", card=6)
    assert limits() == {"card": 5, "mail": 2}
    start("shop", "2", card=6)
    assert limits() == {"card": 6, "mail": 2}
    start("shop", "1", card=1)
    start("billing", "3")
    assert limits() == {"card": 6, "mail": None}


def test_invalid_set_is_refused_and_can_be_corrected(url: str, namespace: str) -> None:
    """Patterns are looked at together: their order in the code does not matter."""
    program(url, namespace, "shop", "1", a__b_all={"window": 5}, a_all={"merge": "last"})
    with pytest.raises(BadPolicy, match="window"):
        program(url, namespace, "shop", "2", a__b_all={"window": 5}, c_all={"rate": 5})
    assert holds(url, namespace, "a.b.c") == {"window": 5.0, "merge": "last"}
    program(url, namespace, "shop", "2", c_all={"rate": 5})
    assert (holds(url, namespace, "a.b.c"), holds(url, namespace, "c.d")) == ({}, {"rate": 5.0})


def test_the_same_set_again_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even the store's clock: a thousand workers may start at once."""
    url = f"sqlite:///{tmp_path}/q.db"
    policies: dict[str, dict[str, object]] = {"push_all": {"rate": 5}, "push__acme": {"weight": 2}}
    program(url, "default", "shop", "1", **policies)
    with Laneway(url, program="looker") as app:
        engine = app.engine
        transactions: list[object] = []
        transaction = SqlQueue.transaction

        def counted(self: SqlQueue, *arguments: object, **options: object) -> object:
            transactions.append(arguments)
            return transaction(self, *arguments, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(SqlQueue, "transaction", counted)
        declared = {"push.acme": {"weight": 2.0}, "push.*": {"rate": 5.0}}
        registry.declare(engine, "shop", "1", declared, {})
        assert transactions == []
        registry.declare(engine, "shop", "1", declared | {"c": {"weight": 2.0}}, {})
        assert transactions != []


def test_many_topics_are_declared_and_replaced(url: str, namespace: str) -> None:
    with Laneway(url, namespace=namespace, program="shop", version=1) as app:
        app.policy_many((f"push.{n}", {"rate": 5}) for n in range(2500))
        app.engine.overview()
    with Laneway(url, namespace=namespace, program="shop", version=2) as app:
        app.policy_many(
            (f"push.{n}", {"rate": 5 if n % 2 else 6, "weight": 2}) for n in range(2000)
        )
        app.engine.overview()
        found: dict[str, object] = {}
        after: str | None = ""
        while after is not None:
            page, after = app.engine.policy_own_list(after, 1000)
            found |= {topic: layers[f"{PROGRAM}shop"] for topic, layers in page}
    assert found == {
        f"push.{n}": {"rate": 5.0 if n % 2 else 6.0, "weight": 2.0} for n in range(2000)
    }


def test_a_process_that_ended_in_the_middle_is_followed_by_the_next(
    url: str, namespace: str
) -> None:
    """Its claim runs out; until then others wait."""
    program(url, namespace, "shop", "1", a={"rate": 5})
    with Laneway(url, namespace=namespace, program="looker") as app:
        (name, stored), *_ = app.engine.programs().items()
        record = registry.records(app.engine)["shop"]
        now = app.engine.overview().now_us
        record.version, record.digest, record.claim, record.claimed_until = (
            "2",
            "",
            "somebody",
            now + 300_000,
        )
        assert app.engine.program_swap(name, stored, registry._encode(record))
        assert not app.engine.program_swap(name, stored, None)
    program(url, namespace, "shop", "2", b={"rate": 5})
    assert (holds(url, namespace, "a"), holds(url, namespace, "b")) == ({}, {"rate": 5.0})


@pytest.mark.parametrize("is_applied", [True, False])
@pytest.mark.parametrize("failing", range(1, 5))
def test_a_set_is_declared_again_after_the_connection_breaks(
    url: str, namespace: str, monkeypatch: pytest.MonkeyPatch, failing: int, *, is_applied: bool
) -> None:
    """
    A server that restarts does not end a program that starts meanwhile: each call may fail, with
    or without having changed something.
    """
    with Laneway(url, namespace=namespace, program="shop", version=1) as app:
        calls = 0

        def breaking(name: str) -> None:
            call = getattr(type(app.engine), name)

            def broken(self: object, *arguments: object, **options: object) -> object:
                nonlocal calls
                calls += 1
                if calls != failing:
                    return call(self, *arguments, **options)
                if is_applied:
                    call(self, *arguments, **options)
                raise EngineUnavailable("the connection broke", applied=None)

            monkeypatch.setattr(type(app.engine), name, broken)

        for name in ("program_swap", "gate_set", "policy_set_many"):
            breaking(name)
        with Laneway(url, namespace=namespace, program="mail", version=1) as other:
            other.gate("smtp", rate=5)
            other.policy("mail.*", gate="smtp")
            began = time.monotonic()
            assert other.topic("mail.acme").policy() == {"gate": "smtp"}
            assert time.monotonic() - began < registry.CLAIM_US / 2e6
        assert calls >= failing


STARTED = """
import sys
from laneway import Laneway
url, namespace, version, rate = sys.argv[1:]
for _ in range(5):
    with Laneway(url, namespace=namespace, program="shop", version=version) as app:
        app.policy("push.*", rate=int(rate))
        app.policy(f"only-in-{version}", weight=2)
        app.policy_many((f"push.{n}", {"rate": int(rate)}) for n in range(300))
        app.publish("push.1", version)
"""


def test_old_and_new_start_at_once(url: str, namespace: str) -> None:
    """
    A rolling deploy, and one rolled back: processes of both versions start again and again; the
    newer one's set holds, whole.
    """
    for versions in (("1.0", "1.1"), ("1.1", "1.2", "1.0")):
        started = [
            subprocess.Popen(
                [sys.executable, "-c", STARTED, url, namespace, version, version.replace(".", "")],
                stderr=subprocess.PIPE,
                text=True,
            )
            for version in versions
            for _ in range(2)
        ]
        for process in started:
            _, output = process.communicate(timeout=120)
            assert process.returncode == 0, output
        newest = max(versions)
        with Laneway(url, namespace=namespace, program="looker") as app:
            for topic in ("push.1", "push.299", "push.other"):
                assert app.topic(topic).policy() == {"rate": float(newest.replace(".", ""))}
            for version in versions:
                assert app.topic(f"only-in-{version}").policy() == (
                    {"weight": 2.0} if version == newest else {}
                )
            assert [check for check in app.engine.doctor() if not check.ok] == []


def test_the_default_program_is_the_module_that_makes_the_application(tmp_path: Path) -> None:
    """The same for a script, a module that is run, and one that a worker imports."""
    assert Laneway("sqlite://").program == "tests.app.test_programs"
    (tmp_path / "shop.py").write_text(
        "from laneway import Laneway\napp = Laneway('sqlite://')\nif __name__ == '__main__':\n   "
        " print(app.program)\n"
    )
    for arguments in (["shop.py"], ["-m", "shop"], ["-c", "import shop; print(shop.app.program)"]):
        output = subprocess.run(
            [sys.executable, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout
        assert output == "shop\n"
    output = subprocess.run(
        [sys.executable, "-c", "from laneway import Laneway; print(Laneway('sqlite://').program)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert output == "default\n"


@pytest.mark.parametrize("name", ["", "a:b", "a b", "x" * 101, 5])
def test_names_that_no_program_can_have(name: object) -> None:
    with pytest.raises(UsageError, match="program"):
        Laneway("sqlite://", program=name)  # type: ignore[arg-type]
