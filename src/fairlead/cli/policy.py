"""`fairlead policy`: what holds for topics, and changing it as the operator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import msgspec

from fairlead.cli.session import STATE_SAYS_NO, Session, json_option, leave, pass_session, print_json, say, table
from fairlead.policy import FIELDS

if TYPE_CHECKING:
    from collections.abc import Callable

NUMBERS = ("burst", "concurrency", "retries", "merge_limit", "partitions", "buckets")


@click.group()
def policy() -> None:
    """Show and change the settings of topics, by name or pattern."""


@policy.command("list")
@json_option
@pass_session
def list_policies(session: Session, *, as_json: bool) -> None:
    """Every policy that the code or an operator has set."""
    rows = session.engine().policies().rows()
    if as_json:
        print_json([{"layer": layer, "pattern": pattern, "fields": fields} for layer, pattern, fields in rows])
        return
    table(("layer", "pattern", "settings"), [(layer, pattern, _text(fields)) for layer, pattern, fields in rows], empty="no policies are set")


@policy.command("show")
@click.argument("topic")
@click.option("--why", is_flag=True, help="Which layer and pattern each setting comes from.")
@json_option
@pass_session
def show(session: Session, topic: str, *, why: bool, as_json: bool) -> None:
    """What holds for TOPIC."""
    book = session.engine().policies()
    reasons = book.why(topic)
    resolved = msgspec.to_builtins(book.resolve(topic))
    if as_json:
        sources = {name: {"layer": layer, "pattern": pattern} for name, (_, layer, pattern) in reasons.items()}
        print_json({"topic": topic, "policy": resolved, "why": sources})
        return
    rows = []
    for name in FIELDS:
        value, layer, pattern = reasons.get(name, (None, "default", ""))
        shown = value if layer != "default" else _default(resolved.get(name))
        rows.append((name, shown, f"{layer} {pattern}".strip()) if why else (name, shown))
    table(("setting", "value", "from") if why else ("setting", "value"), [tuple(map(str, row)) for row in rows], empty="")


def _default(value: Any) -> str:
    return "-" if value is None else str(value)


def _settings(command: Callable[..., None]) -> Callable[..., None]:
    """An option for every setting there is."""
    for name, (_, meaning) in reversed(FIELDS.items()):
        command = click.option(f"--{name.replace('_', '-')}", name, help=meaning[0].upper() + meaning[1:] + ".")(command)
    return command


@policy.command("set", short_help="Set an operator's policy of PATTERN.")
@click.argument("pattern")
@_settings
@click.option("--unset", multiple=True, metavar="SETTING", help="No longer set this one; may be given again.")
@pass_session
def set_policy(session: Session, /, pattern: str, *, unset: tuple[str, ...], **options: str | None) -> None:
    """Set an operator's policy of PATTERN: it stands above the code's, and acts on what waits already."""
    fields = {name: _value(name, text) for name, text in options.items() if text is not None}
    fields.update(dict.fromkeys(unset))
    if not fields:
        raise click.UsageError("nothing to set; name a setting, like --rate 50/s")
    now = session.engine(create=True).policy_set("operator", pattern, fields)
    say(f"{pattern}: {_text(now) or 'nothing set'}")


def _value(name: str, text: str) -> Any:
    if name in NUMBERS and text.lstrip("-").isdigit():
        return int(text)
    if name == "max_backlog" and text.isdigit():
        return int(text)
    if name == "max_body" and text.isdigit():
        return int(text)
    if name == "weight":
        try:
            return float(text)
        except ValueError:
            return text
    if name in ("paused", "debounce"):
        return {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}.get(text.lower(), text)
    if name == "serial" and text.lower() == "true":
        return True
    if name == "backoff" and text.startswith("{"):
        try:
            return msgspec.json.decode(text)
        except msgspec.DecodeError as error:
            raise click.BadParameter(f"not JSON: {error}", param_hint="--backoff") from error
    return text


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
    return " ".join(f"{name}={value}" for name, value in fields.items())
