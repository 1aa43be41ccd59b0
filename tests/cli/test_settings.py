"""Policies, gates, pause, doctor: the operator's commands."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import TYPE_CHECKING, get_type_hints

import click
import pytest

from laneway import Laneway
from laneway.cli.policy import Flag, option_type, value_of
from laneway.policy import FIELDS, PolicyOptions
from laneway.presenting import exact_duration, setting_in_words
from laneway.push.secret_store import KEY_VARIABLE, new_key
from laneway.tasks.decorator import TASK_OPTIONS, TaskKeywords

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Command


def test_policy_set_show_reset(laneway: Command) -> None:
    """The operator's setting stands above the code's until it is reset."""
    with Laneway(laneway.url) as app:
        app.policy("push.*", rate=10, concurrency=3)
        app.publish("push.acme", 1)
    laneway("policy", "set", "push.*", "--rate", "50/s")
    shown = laneway.json("policy", "show", "push.acme")
    assert (shown["policy"]["rate"], shown["policy"]["concurrency"]) == (50, 3)
    assert shown["why"]["rate"] == {"layer": "operator", "pattern": "push.*"}
    assert "operator push.*" in laneway("policy", "show", "push.acme", "--why").stdout
    laneway("policy", "reset", "push.*")
    assert laneway.json("policy", "show", "push.acme")["policy"]["rate"] == 10
    laneway("policy", "reset", "push.*", code=1)


def test_time_limits(laneway: Command) -> None:
    """A duration, or no limit; `explain` names the one that holds for a busy key."""
    with Laneway(laneway.url) as app:
        app.policy("stock", serial=True)
        app.publish("stock", 1, key="k", id="first")
        app.publish("stock", 2, key="k", id="second")
        app.engine.lease(1)
    default = "a handler without a time limit of its own is stopped after 30.0 min"
    assert default in laneway("explain", "stock").stdout
    second = ("explain", "second", "--topic", "stock")
    assert default in laneway(*second).stdout
    laneway("policy", "set", "*", "--time-limit", "10m")
    assert laneway.json("policy", "show", "stock")["policy"]["time_limit"] == 600
    shown = laneway("policy", "show", "stock").stdout
    assert re.search(r"^time_limit +10 min +operator \*$", shown, re.MULTILINE)
    limit = "a handler is stopped after 10.0 min (time_limit of the policy)"
    assert limit in laneway("explain", "stock").stdout
    laneway("policy", "set", "stock", "--time-limit", "forever")
    assert laneway.json("policy", "show", "stock")["policy"]["time_limit"] == "forever"
    assert "its topic has no time limit for handlers" in laneway(*second).stdout
    refused = laneway("policy", "set", "*", "--time-limit", "none", code=2)
    assert "time_limit: expected seconds" in refused.output


def test_policies_are_listed_by_pattern_and_number(laneway: Command) -> None:
    """Patterns first, then topics; how many there are more is said."""
    with Laneway(laneway.url) as app:
        app.policy("push.*", rate=10)
        app.policy_many((f"push.{n}", {"weight": 2}) for n in range(20))
        app.policy("mail", rate=1)
        app.publish("push.1", 1)
    listed = laneway.json("policy", "list", "push.*", "--limit", "3")
    by = {"layer": "code", "program": "tests.cli.test_settings", "version": None}
    assert listed[0] == {**by, "pattern": "push.*", "fields": {"rate": 10.0}}
    assert len(listed) == 3
    assert "there are more than 3" in laneway("policy", "list", "--limit", "3").stdout
    assert {row["pattern"] for row in laneway.json("policy", "list")} == {
        "push.*",
        "mail",
        *(f"push.{n}" for n in range(20)),
    }


def test_policies_name_their_owners(laneway: Command) -> None:
    """
    In the list, which picks by owner, and in what holds for a topic; what was set at run time can
    be reset.
    """
    with Laneway(laneway.url, program="shop", version="1.2") as app:
        app.policy("push.*", rate=10, retries=2)
        app.policy("push.acme", weight=2)
        app.publish("push.acme", 1)
        app.policy("push.*", rate=7)
    with Laneway(laneway.url, program="billing", version=3) as app:
        app.policy("push.*", retries=2)
        app.policy("bills", rate=1)
        app.publish("bills", 1)
    laneway("policy", "set", "push.acme", "--concurrency", "3")
    shop = {"layer": "code", "program": "shop", "version": "1.2"}
    assert laneway.json("policy", "list", "--owner", "shop") == [
        {**shop, "pattern": "push.*", "fields": {"rate": 10.0, "retries": 2}},
        {**shop, "pattern": "push.acme", "fields": {"weight": 2.0}},
    ]
    assert laneway.json("policy", "list", "--owner", "code") == [
        {"layer": "code", "pattern": "push.*", "fields": {"rate": 7.0}}
    ]
    assert laneway.json("policy", "list", "--owner", "operator") == [
        {"layer": "operator", "pattern": "push.acme", "fields": {"concurrency": 3}}
    ]
    assert {row.get("program") for row in laneway.json("policy", "list", "bills")} == {"billing"}
    why = laneway.json("policy", "show", "push.acme")["why"]
    assert why["rate"] == {"layer": "code", "pattern": "push.*"}
    assert why["weight"] == {**shop, "pattern": "push.acme"}
    assert why["concurrency"] == {"layer": "operator", "pattern": "push.acme"}
    listed = laneway("policy", "list").stdout
    assert all(
        each in listed
        for each in ("code (shop 1.2)", "code (billing 3)", "code, at run time", "operator")
    )
    shown = laneway("policy", "show", "push.acme", "--set").stdout
    assert "code push.acme (shop 1.2)" in shown
    assert "code push.*, at run time" in shown
    laneway("policy", "reset", "push.*", "--layer", "code")
    assert laneway.json("policy", "show", "push.acme")["policy"]["rate"] == 10
    laneway("policy", "reset", "push.*", "--layer", "code", code=1)


@pytest.mark.parametrize(
    "arguments",
    [("--rate", "-1"), ("--partitions", "1025"), ("--concurrency", "²"), ("--ttl", "१s"), ()],
)
def test_an_impossible_policy(laneway: Command, arguments: tuple[str, ...]) -> None:
    """An impossible policy is a usage error of one line."""
    result = laneway("policy", "set", "push.*", *arguments, code=2)
    assert result.stderr.startswith("laneway: ")
    assert result.stderr.count("\n") == 1


def test_show_speaks_of_units_and_of_who_set_what(laneway: Command) -> None:
    """
    Durations, rates and sizes as people write them, the layer and pattern of each; JSON has
    seconds.
    """
    with Laneway(laneway.url, program="shop") as app:
        app.policy(
            "push.*", rate="30/m", lease="90s", backoff="5s", max_backlog="10GB", dead_ttl="14d"
        )
        app.publish("push.acme", 1)
    laneway(
        "policy",
        "set",
        "push.acme",
        "--serial",
        "hold",
        "--paused",
        "no",
        "--merge",
        "all",
        "--merge-limit",
        "5000",
        "--dedupe",
        "1h30m",
    )
    code = "code push.* (shop)"
    shown = {
        line.split("  ")[0]: line
        for line in laneway("policy", "show", "push.acme").stdout.splitlines()
    }
    for name, value, source in (
        ("rate", "30/min", code),
        ("lease", "1 min 30 s", code),
        ("backoff", "5 s", code),
        ("max_backlog", "10 GB", code),
        ("dead_ttl", "14 d", code),
        ("serial", "hold", "operator push.acme"),
        ("paused", "no", "operator push.acme"),
        ("merge_limit", "5,000", "operator push.acme"),
        ("dedupe", "1 h 30 min", "operator push.acme"),
        ("retries", "16", "default"),
        ("max_body", "1 MiB", "default"),
    ):
        assert [part.strip() for part in shown[name].split("  ") if part] == [name, value, source]
    assert "retries" not in laneway("policy", "show", "push.acme", "--set").stdout
    only_set = laneway.json("policy", "show", "push.acme", "--set")["policy"]
    assert only_set["rate"] == 0.5
    assert "retries" not in only_set
    policy = laneway.json("policy", "show", "push.acme")["policy"]
    assert (policy["lease"], policy["dead_ttl"], policy["dedupe"], policy["rate"]) == (
        90,
        14 * 86_400,
        5400,
        0.5,
    )
    assert "lease 1 min 30 s" in laneway("policy", "list").stdout


def test_backoff_in_words() -> None:
    """What a default and a mapping mean."""
    assert (
        setting_in_words("backoff", {"base": 1.0, "factor": 2.0, "cap": 3600.0, "jitter": True})
        == "1 s, times 2 at each attempt, at most 1 h; drawn between 0 and that"
    )
    assert (
        setting_in_words("backoff", {"base": 5.0, "factor": 1.0, "cap": 5.0, "jitter": False})
        == "5 s"
    )
    assert [exact_duration(each) for each in (0, 0.25, 1, 90, 3600, 1209600, 90061.5)] == [
        "0 s",
        "250 ms",
        "1 s",
        "1 min 30 s",
        "1 h",
        "14 d",
        "1 d 1 h 1 min 1.5 s",
    ]


@pytest.mark.parametrize("name", sorted(FIELDS))
def test_set_knows_the_choices(name: str) -> None:
    """Choices and kinds of the options are those that the settings take."""
    kind = option_type(get_type_hints(PolicyOptions)[name])
    read = FIELDS[name][0]
    if isinstance(kind, click.Choice):
        for choice in kind.choices:
            read(value_of(name, choice))
        with pytest.raises(ValueError, match="expected"):
            read("no such choice")
    elif isinstance(kind, Flag):
        assert read(kind.convert("yes", None, None)) is True
    else:
        with pytest.raises((ValueError, TypeError)):
            read(object())


@pytest.mark.parametrize(
    ("topic", "reason"),
    [("", "topic: expected a name, got ''"), ("push.*", "this is a pattern; name one topic")],
)
def test_the_policy_of_what_is_no_topic(laneway: Command, topic: str, reason: str) -> None:
    """`policy show` refuses it; a pattern's settings are in `policy list`."""
    assert reason in laneway("policy", "show", topic, code=2).stderr


def test_a_wrong_choice_is_refused(laneway: Command) -> None:
    """The error lists the choices, before the store is opened."""
    assert (
        "'first', 'last', 'all'" in laneway("policy", "set", "a", "--merge", "lst", code=2).stderr
    )
    assert "expected yes or no" in laneway("policy", "set", "a", "--paused", "maybe", code=2).stderr


def test_the_types_are_those_of_the_settings() -> None:
    """`PolicyOptions` names what `FIELDS` reads, no more and no less."""
    assert set(PolicyOptions.__optional_keys__) == set(FIELDS)
    assert set(TaskKeywords.__optional_keys__) == {*FIELDS, *TASK_OPTIONS} - {"bind"}


def test_copy_and_compare_namespaces(laneway: Command) -> None:
    """Tried in sandbox, brought to online: diff has exit code 1 until they are the same."""
    laneway("-n", "sandbox", "policy", "set", "push.*", "--rate", "50/s")
    laneway("-n", "online", "policy", "set", "mail.*", "--tier", "low")
    laneway("-n", "sandbox", "policy", "diff", "online", code=1)
    laneway("-n", "sandbox", "policy", "copy", "online")
    assert "push.*" in laneway("-n", "online", "policy", "list").stdout


def test_gates(laneway: Command) -> None:
    """A gate is set and listed; one that limits nothing is a wrong call."""
    laneway("gate", "set", "stripe", "--rate", "100/s", "--concurrency", "20")
    [gate] = laneway.json("gate", "list")
    assert (gate["name"], gate["rate"], gate["concurrency"]) == ("stripe", 100, 20)
    assert re.search(r"^stripe +100 +\S+ +20 +0 +0$", laneway("gate", "list").stdout, re.MULTILINE)
    laneway("gate", "set", "nothing", code=2)
    laneway("gate", "set", "stripe", "--rate", "100/s", "--max-cost", "50")
    assert laneway.json("gate", "list")[0]["max_cost"] == 50
    assert laneway("gate", "reset", "stripe").stdout == "gate stripe is reset\n"
    unknown = laneway("gate", "reset", "strips", code=2)
    assert 'there is no gate "strips"; `laneway gate list` lists them' in unknown.stderr
    wrong = laneway("gate", "set", "stripe", "--rate", "x", "--concurrency", "2", code=2)
    assert "gate stripe: rate: expected a number above 0" in wrong.stderr
    star = laneway("gate", "set", "g*", "--rate", "1", code=2)
    assert 'gate g*: expected the name of one gate, without "*"' in star.stderr
    laneway("gate", "set", "eu", "--concurrency", "5")
    laneway("policy", "set", "charge.*", "--gate", "stripe,eu")
    shown = laneway.json("policy", "show", "charge.acme")["policy"]["gate"]
    assert shown == ["stripe", "eu"]
    assert "stripe, eu" in laneway("policy", "show", "charge.acme").stdout
    undefined = laneway("policy", "set", "charge.*", "--gate", "nowhere", code=2)
    assert "laneway gate set 'nowhere' --rate" in undefined.stderr
    refused = laneway("policy", "set", "charge.*", "--gate", "stripe,stripe", code=2)
    assert "expected a gate's name, or 1 to 8 different names" in refused.stderr


def test_tiers(laneway: Command) -> None:
    """Set, listed with who set them, removed unless they are used, and reset."""
    with Laneway(laneway.url, tiers={"high": 6, "mid": 3, "low": 1}) as app:
        app.policy("push.*", tier="low")
        app.publish("push.acme", 1)
    laneway("tier", "set", "high", "7")
    laneway("tier", "set", "gold", "strict", "--fair-by", "time", "--reserve", "0.25")
    laneway("tier", "set", "gold", "strict")
    found = {row["tier"]: row for row in laneway.json("tier", "list")}
    assert (found["high"]["share"], found["high"]["set_by"]) == ("7", "operator")
    assert (found["mid"]["note"], found["gold"]["fair_by"]) == ("default", "time")
    assert (found["gold"]["reserve"], found["mid"]["reserve"]) == ("0.25", "0")
    refused = laneway("tier", "set", "high", "6", "--reserve", "1", code=2).stderr
    assert "tiers: high: expected reserve to be a part" in refused
    assert "before all others" in laneway("tier", "list").stdout
    assert "policy push.* names it" in laneway("tier", "remove", "low", code=2).stderr
    laneway("tier", "set", "high", "much", code=2)
    laneway("tier", "remove", "gold")
    laneway("tier", "remove", "gold", code=1)
    laneway("tier", "reset", "high")
    laneway("tier", "reset", code=1)
    assert [row["share"] for row in laneway.json("tier", "list")] == ["6", "3", "1"]


def test_pause_and_resume(laneway: Command) -> None:
    """A paused topic delivers nothing, a resumed one does."""
    laneway("publish", "push.acme", "1")
    laneway("pause", "push.*")
    with Laneway(laneway.url) as app:
        assert app.lease(1) == []
    laneway("resume", "push.*")
    with Laneway(laneway.url) as app:
        assert len(app.lease(1)) == 1
        app.policy("push.*", paused=True)
        app.publish("push.acme", 2)
        assert app.lease(1) == []
        laneway("resume", "push.*")
        assert len(app.lease(1)) == 1, "although the code pauses them"


def test_resume_of_what_was_not_paused(laneway: Command) -> None:
    """A misspelled name is noticed."""
    laneway("publish", "push.acme", "1")
    laneway("pause", "push.*")
    assert laneway("resume", "psh.*").stdout == "psh.* was not paused\n"
    assert laneway("resume", "push.acme").stdout == "push.acme is no longer paused\n"


def test_a_disabled_endpoint_is_not_resumed_but_enabled(
    laneway: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who resumes its topic is told so; a topic that is paused in addition is named."""
    monkeypatch.setenv(KEY_VARIABLE, new_key())
    with Laneway(laneway.url) as app:
        app.endpoint("push.acme", url="https://acme.example/").disable()
        app.publish("push.acme", 1)
        assert (
            "`laneway endpoint enable push.acme`" in laneway("resume", "push.acme", code=1).stderr
        )
        assert "its endpoint was disabled" in laneway("explain", "push.acme").stdout
        laneway("pause", "push.acme")
        printed = laneway("endpoint", "enable", "push.acme").stdout
        assert "the topic is paused: `laneway resume push.acme`" in printed
        laneway("resume", "push.acme")
        assert len(app.lease(1)) == 1


@pytest.mark.parametrize("option", ["--url", "-u"])
def test_the_url_of_an_endpoint_is_not_an_option(laneway: Command, option: str) -> None:
    """`--url` names the store; an endpoint's URL there is an error that shows what to type."""
    url = "https://acme.example/hooks"
    printed = laneway("endpoint", "set", "push.acme", option, url, code=2).stderr
    assert "the endpoint's URL is an argument: main endpoint set TOPIC URL" in printed
    assert printed.count("\n") == 1


def test_doctor(laneway: Command) -> None:
    """A sound store is exit code 0; the dump has no bodies."""
    laneway("publish", "a", '"secret"')
    assert all(check["ok"] for check in laneway.json("doctor"))
    assert "ok" in laneway("doctor", "--repair").stdout
    assert "secret" not in laneway("doctor", "--dump").stdout


def test_a_store_that_cannot_be_used(laneway: Command, tmp_path: Path) -> None:
    """A missing or damaged file is exit code 3, and looking creates none."""
    laneway("topics", code=3)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "laneway.db").write_bytes(b"this is no database" * 1000)
    assert "laneway.db" in laneway("doctor", code=3).stderr
    assert "laneway.db" in laneway("publish", "a", "1", code=3).stderr


def test_bench_of_the_repository(laneway: Command) -> None:
    """
    In the repository a benchmark can be named; a name that does not exist, or names together with a
    measurement of costs, are refused.
    """
    assert "there are: " in laneway("bench", "nothing", code=2).stderr
    assert "rates" in laneway("bench", "nothing", code=2).stderr
    assert "take no names" in laneway("bench", "rates", "--json", code=2).stderr


def test_bench_runs_what_the_repository_has(
    laneway: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Without names all of it, else those named, in the size asked for; the worst exit code is the
    command's.
    """
    calls: list[tuple[list[str], object]] = []

    def run(command: list[str], *, cwd: object, check: bool) -> object:
        calls.append((command[1:], cwd))
        return SimpleNamespace(returncode=len(calls) - 1)

    monkeypatch.setattr("subprocess.run", run)
    laneway("bench")
    laneway("bench", "rates", "limited", "--size", "full", code=2)
    assert [command for command, _ in calls] == [
        ["-m", "bench.all", "--quick"],
        ["-m", "bench.rates"],
        ["-m", "bench.limited"],
    ]
    monkeypatch.setattr("laneway.cli.bench._repository", lambda: None)
    assert "repository" in laneway("bench", "rates", code=2).stderr


def test_topic_groups(laneway: Command) -> None:
    """An operator sets a group's weight and limits and resets them; wrong values are explained."""
    laneway("policy", "set", "*", "--group", "customer.{1}")
    laneway("topic-group", "set", "customer.acme", "--weight", "5", "--rate", "100/s")
    [group] = laneway.json("topic-group", "list")
    assert (group["name"], group["weight"], group["rate"]) == ("customer.acme", 5, 100)
    laneway("topic-group", "set", "customer.acme", code=2)
    assert "weight from 0.01" in laneway("topic-group", "set", "g", "--weight", "0", code=2).stderr
    refused = laneway("topic-group", "set", "g", "--weight", "1", "--burst", "3", code=2)
    assert '"burst" has no meaning without "rate"' in refused.stderr
    assert "customer.{1}" in laneway("policy", "set", "*", "--group", "{x}", code=2).stderr
    laneway("publish", "push.acme", "1")
    assert laneway.json("topics")[0]["group"] == "customer.acme"
    message = laneway("publish", "alone", "1").stdout.split()[0]
    assert 'it has no group: "alone"' in laneway("explain", message, "--topic", "alone").stdout
    laneway("topic-group", "reset", "customer.acme")
    assert laneway.json("topic-group", "list")[0]["weight"] == 1
