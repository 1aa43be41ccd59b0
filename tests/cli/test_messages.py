"""Publishing, looking, purging, dead letters: the commands that are about messages."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from laneway import Laneway
from laneway.cli import main

if TYPE_CHECKING:
    from tests.cli.conftest import Command


def kill(laneway: Command, topic: str) -> None:
    """Make a dead letter of all that waits in the topic."""
    with Laneway(laneway.url) as app:
        for delivery in app.lease(100, topics=[topic]):
            delivery.dead("no such address")


def test_publish_and_peek(laneway: Command) -> None:
    """What was published is what peek shows."""
    receipt = laneway.json(
        "publish",
        "push.acme",
        '{"order": 42}',
        "--priority",
        "5",
        "--key",
        "order-42",
        "-H",
        "trace=abc",
    )
    assert receipt["outcome"] == "accepted"
    [seen] = laneway.json("peek", "push.acme")
    assert (seen["id"], seen["priority"], seen["key"], seen["headers"]) == (
        receipt["id"],
        5,
        "order-42",
        {"trace": "abc"},
    )
    assert seen["body"] == {"order": 42}


def test_publish_lines(laneway: Command) -> None:
    """--lines publishes a message for each line of stdin."""
    assert "3 accepted" in laneway("publish", "a", "--lines", stdin="1\n2\n3\n").stdout
    assert laneway.json("topics")[0]["waiting"] == 3


@pytest.mark.parametrize("wrong", [b"x", b'"\xff"', b"[" * 100_000])
def test_a_wrong_line_is_named_with_what_was_published(laneway: Command, wrong: bytes) -> None:
    """Also one that is not UTF-8, and one that is nested too deeply."""
    stdin = b"1\n" * 4_000 + wrong + b"\n"
    result = laneway("publish", "a", "--lines", code=2, stdin=stdin)
    assert "line 4,001 is not JSON" in result.stderr
    assert re.search(r"the first [\d,]+ messages were already answered", result.stderr)
    assert result.stderr.count("\n") == 1
    assert "line" not in laneway("publish", "a", code=2, stdin=wrong).stderr


@pytest.mark.parametrize("arguments", [("publish", "a", "-"), ("publish", "a")])
def test_publish_from_stdin(laneway: Command, arguments: tuple[str, ...]) -> None:
    """A body of "-", or none, is read from stdin."""
    laneway(*arguments, stdin='{"a": 1}')
    assert laneway.json("peek", "a")[0]["body"] == {"a": 1}


def test_publish_bytes(laneway: Command) -> None:
    """--raw takes the body as it is."""
    laneway("publish", "a", "not json", "--raw")
    with Laneway(laneway.url) as app:
        app.publish("b", b"\xff")
        assert app.lease(1, topics=["a"])[0].body == b"not json"
    assert laneway.json("peek", "b")[0]["body"] == "\ufffd"


def test_the_same_id_is_a_duplicate(laneway: Command) -> None:
    """A second publish of a pending id changes nothing."""
    laneway("publish", "a", "1", "--id", "mine")
    assert laneway.json("publish", "a", "1", "--id", "mine")["outcome"] == "duplicate"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("publish", "a", "not json"), "not JSON"),
        (("publish", "a"), "the body is empty; write JSON"),
        (("publish", "a\nb", "1"), "control"),
        (("publish", "a", "1", "--header", "nothing"), "NAME=VALUE"),
        (("publish", "a", "1", "--delay", "soon"), "soon"),
        (("publish", "a", "1", "--lines"), "--lines"),
        (("publish", "a", "--lines", "--id", "x"), "--id"),
        (("publish", "a", "1", "--priority", str(2**52)), "--priority"),
        (("publish", "a", "1", "--at", "tomorrow"), "2026-12-24T18:00+01:00"),
        (("publish", "a", "1", "--at", "2036-12-24T18:00"), "with its zone"),
        (("peek", "push.*"), "pattern"),
        (("dead", "list", "--topic", "push.*"), "pattern"),
        (("dead", "redrive", "--topic", "push.*"), "pattern"),
        (("purge", "push.*", "--yes"), "pattern; name one topic"),
    ],
)
def test_a_wrong_call_is_one_line(
    laneway: Command, arguments: tuple[str, ...], expected: str
) -> None:
    """What is wrong is named in one line on stderr, and the exit code is 2."""
    laneway("publish", "there", "1")
    result = laneway(*arguments, code=2)
    assert result.stderr.startswith("laneway: ")
    assert expected in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("at", ["2096-12-24T18:00+01:00", "2096-12-24 18:00:00Z", "4000000000"])
def test_publish_at_a_time(laneway: Command, at: str) -> None:
    """--at takes ISO times with their zone, and seconds since 1970."""
    laneway("publish", "a", "1", "--at", at)
    assert laneway.json("peek", "a")[0]["state"] == "delayed"


def test_a_full_backlog(laneway: Command) -> None:
    """A refused publish has exit code 1 and says why."""
    laneway("policy", "set", "a", "--max-backlog", "1")
    laneway("publish", "a", "1")
    assert "a" in laneway("publish", "a", "2", code=1).stderr


def test_topics_of_subscriptions(laneway: Command) -> None:
    """A pattern lists the subscriptions of a name, the largest backlog first."""
    laneway("subscription", "add", "orders.*", "audit")
    laneway("publish", "orders.eu", "1")
    laneway("publish", "orders.us", "--lines", stdin="1\n2\n")
    found = laneway.json("topics", "orders.*#audit")
    assert [(each["topic"], each["waiting"]) for each in found] == [
        ("orders.us#audit", 2),
        ("orders.eu#audit", 1),
    ]
    assert "subscription list" in laneway("topics", "stock.*#audit").stdout
    refused = laneway("topics", "orders.*#audit", "--order", "name", code=2)
    assert "has no list by name" in refused.stderr


def test_topics_by_order(laneway: Command) -> None:
    """The largest backlog comes first; a pattern restricts, a page goes on."""
    laneway("publish", "push.few", "--lines", stdin="1\n")
    laneway("publish", "push.many", "--lines", stdin="1\n" * 50)
    laneway("publish", "mail.other", "1")
    assert [topic["topic"] for topic in laneway.json("topics", "push.*", "--order", "backlog")] == [
        "push.many",
        "push.few",
    ]
    assert [
        topic["topic"]
        for topic in laneway.json("topics", "--order", "name", "--after", "mail.other")
    ] == ["push.few", "push.many"]
    assert "push.many" in laneway("topics").stdout
    assert (
        "by rate; --order name lists all topics"
        in laneway("topics", "none.*", "--order", "rate").stdout
    )
    assert "push.many" in laneway("top", "--once", "--every", "0.1").stdout


def test_purge_asks(laneway: Command) -> None:
    """Purging without --yes asks, and a no changes nothing."""
    laneway("publish", "a", "1")
    laneway("purge", "a", code=1, stdin="n\n")
    assert "UTF-8" in laneway("purge", "a", code=2, stdin=b"\xff\xfe\n").stderr
    assert len(laneway.json("peek", "a")) == 1
    laneway("purge", "a", "--yes")
    assert laneway.json("peek", "a") == []


def test_explain(laneway: Command) -> None:
    """The binding reason is shown; an unknown id has exit code 1."""
    receipt = laneway.json("publish", "a", "1")
    laneway("pause", "a")
    explanation = laneway.json("explain", receipt["id"])
    assert "pause" in explanation["reasons"][0]
    assert laneway.json("explain", "nobody", "--topic", "a", code=1)["state"] == "unknown"


def test_dead_letters(laneway: Command) -> None:
    """Dead letters are listed with their reason, shown, and put back."""
    receipt = laneway.json("publish", "a", "1")
    kill(laneway, "a")
    [listed] = laneway.json("dead", "list", "--topic", "a")
    assert listed["message"]["reason"] == "no such address"
    assert "no such address" in laneway("dead", "show", receipt["id"]).stdout
    laneway("dead", "redrive", receipt["id"], "--topic", "a")
    assert laneway.json("dead", "list") == []
    assert laneway.json("peek", "a")[0]["attempts"] == 0


def test_drop_dead_letters(laneway: Command) -> None:
    """Dropping says how many; nothing to drop is exit code 1, and no choice at all a wrong call."""
    laneway("publish", "a", "1")
    kill(laneway, "a")
    laneway("dead", "drop", code=2)
    laneway("dead", "drop", "--all", code=1, stdin="n\n")
    assert "1 dropped" in laneway("dead", "drop", "--all", "--yes").stdout
    laneway("dead", "redrive", "--all", code=1)
    laneway("dead", "show", "nobody", code=1)


def test_ids_that_are_no_dead_letters(laneway: Command) -> None:
    """A misspelled id, or one without its topic, is reported even if another id is found."""
    laneway("publish", "a", "1", "--id", "mine")
    kill(laneway, "a")
    shown = laneway("dead", "redrive", "mine", code=1).stdout
    assert shown == (
        "0 redriven; 1 id not found among the dead letters;"
        " an id that you chose needs its --topic\n"
    )
    shown = laneway("dead", "redrive", "mine", "nope", "--topic", "a").stdout
    assert shown == "1 redriven; 1 id not found among the dead letters\n"
    assert laneway("dead", "drop", "nope", "--topic", "a", code=1).stdout == (
        "0 dropped; 1 id not found among the dead letters\n"
    )


def test_a_few_dead_letters(laneway: Command) -> None:
    """--limit takes the oldest only."""
    laneway("publish", "a", "--lines", stdin="1\n2\n3\n")
    kill(laneway, "a")
    assert (
        "1 redriven" in laneway("dead", "redrive", "--all", "--limit", "1", "--rate", "10/s").stdout
    )
    assert "1 dropped" in laneway("dead", "drop", "--all", "--yes", "--limit", "1").stdout
    assert [each["message"]["body"] for each in laneway.json("dead", "list")] == [3]


LONE = "\udcff"
"""How an argument arrives that is not UTF-8."""


@pytest.mark.parametrize(
    "arguments",
    [
        ("explain", LONE),
        ("explain", "m", "--topic", LONE),
        ("dead", "drop", LONE),
        ("dead", "redrive", LONE),
        ("dead", "show", LONE),
        ("dead", "list", LONE),
        ("job", "show", LONE),
        ("job", "cancel", LONE),
        ("peek", LONE),
        ("purge", LONE),
        ("pause", LONE),
        ("publish", LONE),
        ("publish", "t", f'"{LONE}"'),
        ("publish", "t", LONE, "--raw"),
        ("publish", "t", "1", "--id", LONE),
        ("publish", "t", "1", "--key", LONE),
        ("publish", "t", "1", "-H", f"a={LONE}"),
        ("publish", "t", "1", "--delay", "1e15"),
        ("publish", "t", "1", "--ttl", LONE),
        ("publish", "t", "1", "--at", "1e300"),
        ("topics", LONE),
        ("topics", "--pattern", LONE),
        ("policy", "set", LONE, "rate=1"),
        ("policy", "set", "t", f"pool={LONE}"),
        ("policy", "set", "t", "lease=1e400"),
        ("policy", "show", LONE),
        ("policy", "copy", "n" * 200),
        ("policy", "copy", LONE),
        ("gate", "set", LONE, "--rate", "1"),
        ("schedules", "remove", LONE),
        ("schedules", "pause", LONE),
        ("schedules", "show", LONE),
    ],
)
def test_arguments_that_cannot_be_are_clear_errors(
    laneway: Command, arguments: tuple[str, ...]
) -> None:
    """
    One line, no traceback, and an exit code that says that the call was at fault or found nothing.
    """
    laneway("publish", "t", "1")
    result = CliRunner().invoke(main, ["--url", laneway.url, *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(
        result.exception
    )
    assert result.exit_code in (1, 2), result.output
    assert "Traceback" not in result.output


def test_a_topic_with_delayed_messages_only_is_scheduled(laneway: Command) -> None:
    """`topics` and `top` call it scheduled; idle is a topic without messages."""
    laneway("publish", "mail.acme", "1", "--delay", "1h")
    assert laneway("topics").stdout.splitlines()[1].split()[-1] == "scheduled"
    assert "scheduled" in laneway("top", "--once", "--every", "0.1").stdout


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has /dev/full")
def test_a_full_output_is_one_line(laneway: Command) -> None:
    """`laneway topics > file` on a full disk."""
    laneway("publish", "a", "1")
    command = [sys.executable, "-m", "laneway", "-u", laneway.url, "topics"]
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (
        1,
        "laneway: the output cannot be written: no space left on its device\n",
    )
