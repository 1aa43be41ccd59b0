"""Every command of `laneway`, and a call of each."""

from __future__ import annotations

from collections.abc import Iterator

import click

from laneway.cli.main import main

CALLS: dict[str, list[list[str]]] = {
    "init": [["{hostile}"], ["{name}"]],
    "dev": [["{hostile}", "--port", "0"]],
    "worker": [
        ["{program}", "--burst"],
        ["no_such_module:app"],
        ["{url}"],
        ["{program}", "--burst", "--processes", "2"],
    ],
    "push": [["{hostile}"], ["no_such_module:app"]],
    "endpoint set": [["{topic}", "{hostile}"], ["{hostile}", "https://example.com/{hostile}"]],
    "endpoint load": [["{hostile}"]],
    "endpoint show": [["{topic}"], ["{hostile}", "--json"]],
    "endpoint list": [[], ["--json"]],
    "endpoint test": [["{hostile}"]],
    "endpoint rotate": [["{hostile}"]],
    "endpoint enable": [["{hostile}"]],
    "endpoint disable": [["{topic}"], ["{hostile}"]],
    "endpoint remove": [["{hostile}"]],
    "message retry": [["{hostile}"], ["{id}"]],
    "message dead": [["{hostile}"]],
    "message drop": [["{hostile}"]],
    "message cancel": [["{hostile}"]],
    "message release": [["{hostile}"]],
    "back-off": [["push.none", "1s"], ["{topic}", "{hostile}"]],
    "drain": [["{hostile}"]],
    "stacks": [["{hostile}"]],
    "publish": [["{topic}", "1", "--key", "{name}"], ["{topic}", "not json"], ["push.*", "1"]],
    "topics": [[], ["--order", "name"], ["--json"], ["push.{hostile}*"]],
    "peek": [["{topic}"], ["{topic}", "--json"], ["{hostile}"]],
    "top": [["--once", "--every", "0.1"], ["--json", "--every", "0.1"]],
    "policy list": [[], ["--json"]],
    "policy show": [["{topic}"], ["{topic}", "--why"], ["{topic}", "--json"]],
    "policy set": [
        ["{topic}", "--rate", "5/s"],
        ["{topic}", "--rate", "{hostile}"],
        ["{topic}", "--gate", "g"],
        ["push.*#audit", "--rate", "5/s"],
        ["push.*#{hostile}", "--rate", "5/s"],
    ],
    "policy reset": [["{topic}"], ["{hostile}"]],
    "policy copy": [["other"]],
    "policy diff": [["other"], ["other", "--json"]],
    "subscription list": [["{topic}"], ["{hostile}", "--json"], ["push.*"], ["*", "--json"]],
    "subscription add": [
        ["push.*", "audit", "--where", "type=a*"],
        ["{topic}", "{hostile}"],
        ["{topic}", "x", "--where", "{hostile}"],
    ],
    "subscription remove": [["{topic}", "{hostile}"], ["{hostile}", "audit"]],
    "gate list": [[], ["--json"]],
    "gate set": [["g", "--rate", "5/s"], ["g"]],
    "gate reset": [["g"], ["{hostile}"]],
    "schedules list": [[], ["--json"]],
    "schedules add": [
        ["nightly", "--every", "1h", "--topic", "push.n"],
        ["{name}", "--cron", "{hostile}", "--topic", "x"],
    ],
    "schedules remove": [["{hostile}"]],
    "schedules pause": [["nightly"]],
    "schedules resume": [["nightly"]],
    "job show": [
        ["{id}"],
        ["{dead}", "--topic", "{topic}"],
        ["{dead}", "--topic", "{topic}", "--json"],
    ],
    "job watch": [
        ["{id}", "--timeout", "0.05"],
        ["{dead}", "--topic", "{topic}", "--timeout", "0.05"],
    ],
    "job cancel": [["{hostile}"]],
    "job requeue": [["{hostile}"]],
    "shard list": [[], ["--json"]],
    "shard move": [["1", "{hostile}"], ["{hostile}", "host:5432"]],
    "outbox create": [["{hostile}"], ["sqlite:///none/no.db"]],
    "outbox status": [["{hostile}"], ["sqlite:///none/no.db", "--json"]],
    "outbox forward": [["{hostile}"], ["sqlite:///none/no.db", "--drain"]],
    "spool status": [["{hostile}"], ["no such file", "--json"]],
    "spool drain": [["{hostile}"], ["no such file", "--timeout", "1s"]],
    "election list": [[], ["--json"]],
    "election show": [["{hostile}"], ["index", "--json"]],
    "election step-down": [["{hostile}"], ["index", "--wait", "{hostile}"]],
    "pause": [["push.paused"], ["{name}"]],
    "resume": [["push.paused"]],
    "dead list": [[], ["--json"]],
    "dead show": [
        ["{dead}", "--topic", "{topic}"],
        ["{dead}", "--topic", "{topic}", "--json"],
        ["{hostile}"],
    ],
    "dead redrive": [["{hostile}"], []],
    "dead drop": [["{hostile}", "--yes"]],
    "explain": [["{id}"], ["{dead}", "--topic", "{topic}"], ["{id}", "--json"], ["{hostile}"]],
    "purge": [["{hostile}", "--yes"], ["push.none", "--yes"]],
    "config show": [[], ["--json"]],
    "doctor": [[], ["--json"], ["--dump"], ["{url}"]],
    "exporter": [["--once"], ["--port", "{hostile}"], ["--address", "{hostile}"]],
    "serve": [["--bind", "{hostile}"], ["{hostile}"]],
    "history": [[], ["{hostile}"], ["--by", "pattern", "--json"], ["--tier", "{hostile}"]],
    "token create": [["{hostile}"], ["{name}", "--scope", "{hostile}"]],
    "token revoke": [["{hostile}"]],
    "topic-group set": [["{hostile}", "--weight", "2"]],
    "migrate": [["{url}", "{elsewhere}"], ["{elsewhere}", "{url}"], ["{url}"]],
    "demo": [["--engine", "{hostile}"]],
    "bench": [["--size", "{hostile}"], ["{hostile}"]],
    "capacity": [
        ["--topics", "{hostile}"],
        [*["--topics", "9", "--rate", "9", "--workers", "9", "--costs", "{hostile}"]],
    ],
}
"""Words in braces are filled in. A command that is not here is called without arguments."""


def commands(group: click.Group = main, before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every command, with the groups that it is in."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, (*before, name))
        else:
            yield *before, name


def calls(**words: str) -> list[list[str]]:
    """A few calls of every command, and of one that there is not."""
    found = [["{hostile}"], ["{url}", "top"], ["policy", "{hostile}"], ["top", "{url}"]]
    for command in commands():
        found += [[*command, *call] for call in CALLS.get(" ".join(command), [[]])]
    return [[word.format_map(words) if "{" in word else word for word in call] for call in found]
