"""`fairlead policy`: what holds for topics, and changing it as the operator."""

from __future__ import annotations

from itertools import islice
from typing import Any

import click
import msgspec

from fairlead.cli.session import STATE_SAYS_NO, Session, json_option, leave, pass_session, print_json, say, table
from fairlead.cli.settings import in_seconds, setting_options, size, value_of, words
from fairlead.namespaces import every_policy
from fairlead.policy import FIELDS, matches

EXAMPLES = """\b
Examples:
  fairlead policy set 'push.*' --rate 50/s --concurrency 10
  fairlead policy set push.acme --weight 2 --lease 2m --dead-ttl 30d
  fairlead policy set 'push.*' --unset rate
"""


@click.group()
def policy() -> None:
    """Show and change the settings of topics, by name or pattern."""


@policy.command("list")
@click.argument("pattern", default="*")
@click.option("--limit", type=click.IntRange(1), default=1000, show_default=True, help="At most so many; patterns come first, then topics.")
@json_option
@pass_session
def list_policies(session: Session, pattern: str, *, limit: int, as_json: bool) -> None:
    """Policies that the code or an operator has set, of PATTERN and all that it covers."""
    found = (row for row in every_policy(session.engine()) if matches(pattern, row[1]))
    rows = list(islice(found, limit + 1))
    if as_json:
        print_json([{"layer": layer, "pattern": name, "fields": fields} for layer, name, fields in rows[:limit]])
        return
    table(("layer", "pattern", "settings"), [(layer, name, _text(fields)) for layer, name, fields in rows[:limit]], empty="no policies are set")
    if len(rows) > limit:
        say(f"there are more than {limit:,}; see all with --limit, or name a pattern")


@policy.command("show", epilog="Example: fairlead policy show push.acme --set")
@click.argument("topic")
@click.option("--set", "only_set", is_flag=True, help="Only what somebody has set, without the defaults.")
@click.option("--why", is_flag=True, hidden=True, expose_value=False, help="Always shown.")
@json_option
@pass_session
def show(session: Session, topic: str, *, only_set: bool, as_json: bool) -> None:
    """What holds for TOPIC, and which layer and pattern set it. With --json durations are seconds."""
    book = session.engine().policies()
    reasons = book.why(topic)
    resolved = msgspec.to_builtins(book.resolve(topic))
    values = {name: in_seconds(name, resolved.get(name)) for name in (*FIELDS, "max_backlog_bytes")}
    if as_json:
        sources = {name: {"layer": layer, "pattern": pattern} for name, (_, layer, pattern) in reasons.items()}
        print_json({"topic": topic, "policy": values, "why": sources})
        return
    if values["max_backlog"] is None and values["max_backlog_bytes"] is not None:
        values["max_backlog"] = size(values["max_backlog_bytes"])
    rows = []
    for name in FIELDS:
        _, layer, pattern = reasons.get(name, (None, "default", ""))
        if layer != "default" or not only_set:
            rows.append((name, words(name, values[name]), f"{layer} {pattern}".strip()))
    table(("setting", "value", "set by"), rows, empty=f"nobody has set anything for {topic}")


@policy.command("set", short_help="Set an operator's policy of PATTERN.", epilog=EXAMPLES)
@click.argument("pattern")
@setting_options
@click.option("--unset", multiple=True, metavar="SETTING", help="No longer set this one; may be given again.")
@pass_session
def set_policy(session: Session, /, pattern: str, *, unset: tuple[str, ...], **options: Any) -> None:
    """Set an operator's policy of PATTERN: it stands above the code's, and acts on what waits already."""
    fields = {name: value_of(name, text) for name, text in options.items() if text is not None}
    fields.update(dict.fromkeys(unset))
    if not fields:
        raise click.UsageError("nothing to set; name a setting, like --rate 50/s")
    now = session.engine(create=True).policy_set("operator", pattern, fields)
    say(f"{pattern}: {_text(now) or 'nothing set'}")


@policy.command("reset", short_help="Remove the operator's policy of PATTERN.")
@click.argument("pattern")
@pass_session
def reset(session: Session, pattern: str) -> None:
    """Remove the operator's policy of PATTERN; the code's holds again."""
    if not session.engine().policy_reset("operator", pattern):
        leave(f"policy {pattern}: the operator has set nothing for it", STATE_SAYS_NO)
    say(f"{pattern}: the operator's settings are removed")


@policy.command("copy", short_help="Copy policies and gates to another namespace.")
@click.argument("to_namespace")
@pass_session
def copy(session: Session, to_namespace: str) -> None:
    """Copy all policies and gates of this namespace (-n) to another: try in sandbox, bring to online."""
    there = Session(session.url, to_namespace).app(create=True)
    number = session.app().copy_policies(there)
    say(f"{number:,} policies copied from {session.namespace} to {to_namespace}")


@policy.command("diff", short_help="Compare with another namespace.")
@click.argument("other_namespace")
@json_option
@pass_session
def diff(session: Session, other_namespace: str, *, as_json: bool) -> None:
    """Where the policies of this namespace (-n) and another differ; exit code 1 if they do."""
    differences = session.app().compare_policies(Session(session.url, other_namespace).app())
    if as_json:
        print_json([dict(zip(("layer", "pattern", "setting", "here", "there"), each, strict=True)) for each in differences])
    else:
        rows = [tuple("-" if cell is None else str(cell) for cell in each) for each in differences]
        table(("layer", "pattern", "setting", session.namespace, other_namespace), rows, empty="no differences")
    if differences:
        raise SystemExit(STATE_SAYS_NO)


def _text(fields: dict[str, Any]) -> str:
    return ", ".join(f"{name} {words(name, value)}" for name, value in fields.items())
