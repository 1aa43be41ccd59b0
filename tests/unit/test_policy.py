"""Policies: how they are read, checked and resolved."""

from __future__ import annotations

import inspect
import re
from datetime import timedelta
from typing import Any, get_args, get_type_hints

import pytest

from laneway.admin import topic_reasons
from laneway.engines.base.views import Cause
from laneway.engines.shared import explaining
from laneway.errors import BadMessage, BadPolicy
from laneway.gateway.dashboard import words
from laneway.policy import (
    DEFAULT_TIME_LIMIT,
    FIELDS,
    Backoff,
    PolicyOptions,
    PolicyTable,
    Resolved,
    Tier,
    check_changes,
    check_fields,
    check_topic,
)
from laneway.producing import forwarder
from laneway.push import reasons


def policy_table(*rows: tuple[str, str, dict[str, object]]) -> PolicyTable:
    table = PolicyTable()
    for layer, pattern, fields in rows:
        table.put(layer, pattern, check_fields(pattern, fields))
    return table


def test_most_specific_pattern_decides_each_field() -> None:
    """A topic takes each field from the nearest pattern that sets it."""
    policies = policy_table(
        ("code", "*", {"rate": 1, "retries": 2}),
        ("code", "push.*", {"rate": 5}),
        ("code", "push.acme", {"weight": 3}),
    )
    found = policies.resolve("push.acme")
    assert (found.rate, found.retries, found.weight) == (5, 2, 3)
    assert policies.resolve("push.other.deep").rate == 5
    assert policies.resolve("pushy").rate == 1


def test_operators_setting_precedes_the_codes_and_can_be_reset() -> None:
    """This holds also if the code's pattern is more specific."""
    policies = policy_table(("code", "push.acme", {"rate": 5}), ("operator", "push.*", {"rate": 1}))
    assert policies.resolve("push.acme").rate == 1
    policies.put("operator", "push.*", {"rate": None})
    assert policies.resolve("push.acme").rate == 5
    assert policies.why("push.acme") == {"rate": (5.0, "code", "push.acme")}


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"rate": -1}, "rate"),
        ({"rate": "fast"}, "rate"),
        ({"partitions": 1025}, "from 1 to 1,024"),
        ({"concurency": 3}, 'did you mean "concurrency"'),
        ({"weight": 0}, "weight"),
        ({"lease": "soon"}, "lease"),
        ({"time_limit": "none"}, "got 'none'; \"forever\" is allowed, too"),
        ({"time_limit": 0}, "time_limit: expected a duration above 0 seconds, got 0"),
        ({"time_limit": "200y"}, "time_limit"),
        ({"retries": 1.5}, "retries"),
        ({"merge": "some"}, "merge"),
        ({"paused": "yes"}, "paused"),
        ({"max_backlog": "10 parsecs"}, "or a size like \"10MB\", got '10 parsecs'"),
        ({"backoff": {"base": -1}}, "backoff"),
        ({"backoff": []}, "at least one delay"),
        ({"backoff": ["5s", "soon"]}, "soon"),
        ({"backoff": ["5s", -1]}, "duration above 0"),
        ({"backoff": [1] * 101}, "at most 100 delays"),
        ({"backoff": {"delays": [-1]}}, "at most 100 delays"),
        ({"buckets": 4}, "pattern"),
        ({"concurrency": 0}, 'or "auto", got 0; `laneway pause`'),
        ({"concurrency": -1}, "got -1"),
    ],
)
def test_invalid_field_is_refused_with_its_name(fields: dict[str, object], text: str) -> None:
    """The error is one line that names the pattern, the field and the expected form."""
    with pytest.raises(BadPolicy) as refused:
        check_fields("push.acme", fields)
    assert "push.acme" in str(refused.value)
    assert text in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "fields",
    [
        {"concurrency": "auto", "min_concurrency": 9, "max_concurrency": 8},
        {"concurrency": "auto", "min_concurrency": 65},
        {"concurrency": 5, "min_concurrency": 2},
        {"max_concurrency": 2},
        {"tier": "golden"},
        {"window": 5},
        {"merge": "first", "debounce": True},
        {"burst": 5},
        {"merge": "first", "edge": "leading"},
    ],
)
def test_fields_that_contradict_each_other_are_refused(fields: dict[str, object]) -> None:
    """`PolicyTable.check` raises BadPolicy."""
    with pytest.raises(BadPolicy):
        policy_table(("code", "a", fields)).check("a")


@pytest.mark.parametrize(
    ("fields", "own", "allowed"),
    [
        ({}, None, None),
        ({}, 5.0, 5.0),
        ({"time_limit": "1m"}, None, 60.0),
        ({"time_limit": "1m"}, 5.0, 5.0),
        ({"time_limit": "1m"}, 3600.0, 60.0),
        ({"serial": "yield"}, None, DEFAULT_TIME_LIMIT),
        ({"merge": "first"}, None, DEFAULT_TIME_LIMIT),
        ({"serial": True}, 7200.0, 7200.0),
        ({"serial": True, "time_limit": "2h"}, None, 7200.0),
        ({"serial": True, "time_limit": "forever"}, None, None),
        ({"serial": True, "time_limit": "forever"}, 5.0, 5.0),
    ],
)
def test_the_shorter_time_limit_holds(
    fields: dict[str, object], own: float | None, allowed: float | None
) -> None:
    """The handler's or the policy's; without both there is a default where a key may be blocked."""
    policy = policy_table(("code", "*", fields)).resolve("a")
    assert policy.seconds_allowed(own) == allowed


@pytest.mark.parametrize(
    "name", ["", "a\nb", "a\x00", "x" * 256, "é" * 200, "push.*", "*", "\ud800"]
)
def test_invalid_topic_names_are_refused(name: str) -> None:
    """Control characters, more than 255 bytes, patterns, and empty names are invalid."""
    with pytest.raises(BadMessage):
        check_topic(name)


def test_other_names_are_topics() -> None:
    """Spaces, slashes and letters of any script are allowed."""
    for name in ("a", "push.acme", "host.例え.jp", "a b/c", "x" * 255):
        assert check_topic(name) == name


def test_backoff_doubles_up_to_its_cap_with_full_jitter() -> None:
    """The delay is drawn between 0 and base · factor^(n-1)."""
    backoff = Backoff()
    assert [backoff.delay_us(attempt, 1.0) for attempt in (1, 2, 3, 100)] == [
        1_000_000,
        2_000_000,
        4_000_000,
        3_600_000_000,
    ]
    assert backoff.delay_us(3, 0.5) == 2_000_000


def test_a_list_gives_each_failure_its_delay_and_repeats_the_last() -> None:
    backoff = Backoff(delays=(5.0, 300.0))
    assert [backoff.delay_us(failure, 0.5) for failure in (1, 2, 3, 100)] == [
        5_000_000,
        300_000_000,
        300_000_000,
        300_000_000,
    ]
    assert [backoff.delay_us(1, random) for random in (0.0, 1.0)] == [4_000_000, 6_000_000]
    assert Backoff(delays=(5.0,), jitter=False).delay_us(1, 0.0) == 5_000_000
    fields = check_fields("t", {"backoff": ["5s", 30, "2h"]})
    assert fields["backoff"]["delays"] == [5.0, 30.0, 7200.0]


def test_tiers_take_a_share_or_strict() -> None:
    """A share is above 0; any other value is refused."""
    assert Tier.of(6).share == 6
    assert Tier.of("strict").share == "strict"
    for wrong in (0, -1, "first", True):
        with pytest.raises(BadPolicy):
            Tier.of(wrong)


def test_each_field_stands_in_one_table() -> None:
    """Type checkers and engines know the fields of `FIELDS`, and durations are one kind of them."""
    assert set(PolicyOptions.__annotations__) == set(FIELDS)
    assert set(FIELDS) <= set(Resolved.__struct_fields__)
    for name, hint in get_type_hints(PolicyOptions).items():
        is_duration = timedelta in get_args(hint) and name != "backoff"
        assert (FIELDS[name].unit == "duration") == is_duration, name


def test_what_a_waiting_message_notices_is_known_to_those_who_explain_it() -> None:
    """
    `laneway explain` names each field that may hold back or end waiting messages. Of those that end
    them, the forwarder of a spool knows each but `on_unhandled`, which counts from a delivery.
    """
    explained = inspect.getsource(topic_reasons) + inspect.getsource(explaining)
    for name, field in FIELDS.items():
        if field.effect is not None:
            assert re.search(rf"\.{name}\b|[\"']{name}[\"']", explained), name
    ends = {name for name, field in FIELDS.items() if field.effect == "ends"}
    for name in ends - {"on_unhandled"}:
        assert f".{name}" in inspect.getsource(forwarder), name


def test_pages_know_each_cause_of_a_reason() -> None:
    """The dashboard marks each reason of `laneway explain` by its cause."""
    sources = inspect.getsource(topic_reasons) + inspect.getsource(reasons)
    causes = {*re.findall(r'TopicReason\(\s*"(\w+)"', sources), *get_args(Cause)}
    assert causes <= words.CAUSES.keys()
    assert set(words.CAUSES.values()) == {"bad", "slow", "none"}


@pytest.mark.parametrize("field", [{"buckets": 2}, {"own_backlog": False}])
def test_equal_fields_of_a_pattern_and_of_its_subscriptions(field: dict[str, Any]) -> None:
    """Equal fields are checked once, but for subscriptions again: some have no meaning there."""
    check_changes([("a.*", field), ("b.*", field)])
    with pytest.raises(BadPolicy, match=r"policy a\.\*#s: "):
        check_changes([("a.*", field), ("a.*#s", field)])
