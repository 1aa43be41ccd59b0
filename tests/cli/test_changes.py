"""Commands that change a store are in its audit log."""

from __future__ import annotations

import os
import pwd
from typing import TYPE_CHECKING

import msgspec
import pytest

from laneway import Laneway
from laneway.admin import audit_log
from laneway.cli.changes import CHANGES
from laneway.push.secret_store import KEY_VARIABLE, new_key
from tests.cli.every import commands

if TYPE_CHECKING:
    from laneway.admin.audit_log import Change
    from tests.cli.conftest import Command

NO_CHANGES = frozenset(
    {
        *("bench", "capacity", "demo", "dev", "exporter", "init", "push", "serve", "worker"),
        *("config show", "explain", "history", "ping", "stacks", "top", "topics", "workers"),
        *("dead list", "dead show", "peek", "policy diff", "policy list", "policy show"),
        *("election list", "election show", "job show", "job watch", "shard list"),
        *("endpoint attempts", "endpoint key", "endpoint list", "endpoint show", "endpoint test"),
        *("gate list", "schedules list", "subscription list", "tier list", "topic-group list"),
        *("token generate", "token list"),
        *("outbox create", "outbox forward", "outbox status", "publish"),
        *("spool drain", "spool status", "migrate"),
    }
)
"""Commands that only read, move messages, or run a program."""


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, new_key())


def changes(laneway: Command) -> list[Change]:
    """The audit log, the oldest change first."""
    with Laneway(laneway.url) as app:
        return [change for _, change in audit_log.newest(app.engine, 100, None)][::-1]


def test_every_command_is_known() -> None:
    """Each command is named as one that changes a store or one that does not."""
    assert {" ".join(each) for each in commands()} == CHANGES | NO_CHANGES
    assert not CHANGES & NO_CHANGES


def test_changes_of_policies(laneway: Command) -> None:
    """
    A change of a policy has the user's name, the options, and what it was before; `explain` names
    the user. What only reads, or is refused, is not in the log.
    """
    laneway("policy", "set", "push.*", "--rate", "5/s")
    laneway("publish", "push.a", "1")
    laneway("pause", "push.a")
    laneway("resume", "push.a")
    laneway("policy", "list")
    laneway("policy", "set", "push.*", "--rate", "fast", code=2)
    found = changes(laneway)
    assert [change.path for change in found] == ["policy set", "pause", "resume"]
    user = pwd.getpwuid(os.getuid()).pw_name
    assert {(each.who, each.address, each.method) for each in found} == {
        (user, "command line", "laneway")
    }
    assert msgspec.json.decode(found[0].request) == {"pattern": "push.*", "rate": "5/s"}
    assert [(each.pattern, each.undo) for each in found] == [
        ("push.*", {}),
        ("push.a", {}),
        ("push.a", {"paused": True}),
    ]
    with Laneway(laneway.url) as app:
        assert audit_log.last_change(app.engine, "push.*").startswith(f"{user} at ")


@pytest.mark.usefixtures("key")
def test_changes_of_endpoints(laneway: Command) -> None:
    """A secret header of an endpoint is not in the log."""
    url = "https://acme.example/hooks"
    laneway("endpoint", "set", "push.a", url, "--header", "authorization: Bearer geheim")
    laneway("endpoint", "disable", "push.a", "--reason", "moved")
    one, other = changes(laneway)
    assert msgspec.json.decode(one.request) == {"topic": "push.a", "url": url, "headers": "hidden"}
    assert b"geheim" not in msgspec.json.encode(one)
    assert msgspec.json.decode(other.request) == {"topic": "push.a", "reason": "moved"}


def test_only_changes(laneway: Command) -> None:
    """A check of the store is no change, its repair is one."""
    laneway("publish", "push.a", "1")
    laneway("doctor")
    laneway("doctor", "--repair")
    laneway("purge", "push.a", "--yes")
    assert [each.path for each in changes(laneway)] == ["doctor", "purge"]
