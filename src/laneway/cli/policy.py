"""`laneway policy`: the settings of topics, and the operator's changes to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import click
import msgspec

from laneway import headers as control, programs
from laneway.admin.policies import every_policy
from laneway.cli.session import (
    REFUSED,
    Session,
    exit_with,
    json_option,
    pass_session,
    print_json,
    say,
    table,
)
from laneway.policy import FIELDS, PROGRAM, Layer, PolicyOptions, PolicyTable, check_topic, matches
from laneway.presenting import (
    DURATIONS,
    exact_size,
    setting_in_seconds,
    setting_in_words,
    settings_in_words,
)
from laneway.units import counted

EXAMPLES = """\b
Examples:
  laneway policy set 'push.*' --rate 50/s --concurrency 10
  laneway policy set push.acme --weight 2 --lease 2m --dead-ttl 30d
  laneway policy set 'push.*' --unset rate
"""


METAVARS = {
    **dict.fromkeys(DURATIONS, "DURATION"),
    "rate": "RATE",
    "key_rate": "RATE",
    "backoff": "DURATION|LIST|JSON",
    "max_body": "SIZE",
    "concurrency": "COUNT|auto",
    "max_backlog": "COUNT|SIZE",
    "tier": "TIER",
    "pool": "POOL",
    "gate": "GATE[,GATE...]",
}


class Flag(click.ParamType):  # type: ignore[type-arg]  # generic in newer versions of click only
    """yes or no; also true and false, on and off."""

    name = "flag"

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        return "[yes|no]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> bool:
        words = {"yes": True, "true": True, "on": True, "no": False, "false": False, "off": False}
        if isinstance(value, bool):
            return value
        found = words.get(value.lower())
        return (
            found
            if found is not None
            else self.fail(f"expected yes or no, got {value!r}", param, ctx)
        )


def setting_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add an option for every setting, of the type that `PolicyOptions` declares."""
    types = get_type_hints(PolicyOptions)
    for name, field in reversed(FIELDS.items()):
        meaning = field.meaning
        text = meaning if "_" in meaning.split()[0] else meaning[0].upper() + meaning[1:]
        command = click.option(
            f"--{name.replace('_', '-')}",
            name,
            type=option_type(types.get(name)),
            metavar=METAVARS.get(name),
            help=f"{text}.",
        )(command)
    return command


def option_type(hint: Any) -> Any:
    """
    How click parses a setting: a choice, yes or no, or a number. The setting itself parses other
    text.
    """
    kinds = [kind for kind in get_args(hint) or (hint,) if kind is not NoneType]
    choices = [choice for kind in kinds if get_origin(kind) is Literal for choice in get_args(kind)]
    if choices and int not in kinds:
        return click.Choice([*choices, "true"] if bool in kinds else choices)
    if kinds == [bool]:
        return Flag()
    if kinds in ([int], [float]):
        return kinds[0]
    return str


def value_of(name: str, text: Any) -> Any:
    """The value of an option in the form that the setting takes."""
    if not isinstance(text, str):
        return text
    if name in ("max_backlog", "max_body", "concurrency"):
        number = control.whole(text)
        if number is not None:
            return number
    if text == "true":
        return True
    if name in ("backoff", "gate") and text.startswith(("{", "[")):
        try:
            return msgspec.json.decode(text)
        except msgspec.DecodeError as error:
            raise click.BadParameter(f"not JSON: {error}", param_hint=f"--{name}") from error
    if name in ("backoff", "gate") and "," in text:
        return [part.strip() for part in text.split(",")]
    return text


@click.group()
def policy() -> None:
    """Show and change the settings of topics, by name or pattern."""


@policy.command("list")
@click.argument("pattern", default="*")
@click.option(
    "--owner",
    metavar="PROGRAM",
    help=(
        "Only the policies that this program's code declares; `operator` or `code` (set at run"
        " time) for the others."
    ),
)
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=1000,
    show_default=True,
    help="Maximum number of policies to list; patterns come first, then topics.",
)
@json_option
@pass_session
def list_policies(
    session: Session, pattern: str, *, owner: str | None, limit: int, as_json: bool
) -> None:
    """
    List the policies of PATTERN and of all patterns and topics that it covers, and who set them.
    """
    engine = session.engine()
    versions = {name: record.version for name, record in programs.records(engine).items()}
    found = (
        row
        for row in every_policy(engine)
        if matches(pattern, row[1]) and owner in (None, row[0], row[0].removeprefix(PROGRAM))
    )
    rows = list(islice(found, limit + 1))
    if as_json:
        print_json(
            [
                {**source(layer, versions), "pattern": name, "fields": fields}
                for layer, name, fields in rows[:limit]
            ]
        )
        return
    shown = [
        (name, f"{by['layer']}{_whose(by)}", settings_in_words(fields))
        for layer, name, fields in rows[:limit]
        if (by := source(layer, versions))
    ]
    table(("pattern", "set by", "settings"), shown, empty="no policies are set")
    if len(rows) > limit:
        say(f"there are more than {limit:,}; see all with --limit, or name a pattern")


def source(layer: str, versions: Mapping[str, str | None]) -> dict[str, str | None]:
    """Who set a policy: the layer; for declared policies also the program and its version."""
    if not layer.startswith(PROGRAM):
        return {"layer": layer}
    name = layer.removeprefix(PROGRAM)
    return {"layer": "code", "program": name, "version": versions.get(name)}


def _whose(found: Mapping[str, str | None]) -> str:
    """The program that declares a policy, as text after the layer."""
    if "program" not in found:
        return ", at run time" if found.get("layer") == "code" else ""
    program = found["program"] or "before programs had names"
    return f" ({' '.join(filter(None, (program, found['version'])))})"


@policy.command("show", epilog="Example: laneway policy show push.acme --set")
@click.argument("topic")
@click.option(
    "--set", "only_set", is_flag=True, help="Only settings that were set, without defaults."
)
@click.option("--why", is_flag=True, hidden=True, expose_value=False, help="Always shown.")
@json_option
@pass_session
def show(session: Session, topic: str, *, only_set: bool, as_json: bool) -> None:
    """
    Show the settings of TOPIC, and which layer and pattern set each. With --json durations are
    seconds.
    """
    check_topic(topic)
    engine = session.engine()
    policies = engine.policies()
    reasons = policies.why(topic)
    versions = {name: record.version for name, record in programs.records(engine).items()}
    sources = {
        name: _source_of(policies, name, layer, pattern, versions)
        for name, (_, layer, pattern) in reasons.items()
    }
    resolved = msgspec.to_builtins(policies.resolve(topic))
    values = {
        name: setting_in_seconds(name, resolved.get(name))
        for name in (*FIELDS, "max_backlog_bytes")
    }
    if as_json:
        why = {
            name: {**sources[name], "pattern": pattern} for name, (_, _, pattern) in reasons.items()
        }
        shown = (
            {name: value for name, value in values.items() if name in why} if only_set else values
        )
        print_json({"topic": topic, "policy": shown, "why": why})
        return
    if values["max_backlog"] is None and values["max_backlog_bytes"] is not None:
        values["max_backlog"] = exact_size(values["max_backlog_bytes"])
    rows = []
    for name in FIELDS:
        _, layer, pattern = reasons.get(name, (None, "default", ""))
        if layer != "default" or not only_set:
            rows.append(
                (
                    name,
                    setting_in_words(name, values[name]),
                    f"{layer} {pattern}{_whose(sources.get(name, {}))}".strip(),
                )
            )
    table(("setting", "value", "set by"), rows, empty=f"nothing is set for {topic}")


def _source_of(
    policies: PolicyTable,
    field: str,
    layer: str,
    pattern: str,
    versions: Mapping[str, str | None],
) -> dict[str, str | None]:
    program = policies.owner(pattern, field) if layer == "code" else None
    return source(layer if program is None else PROGRAM + program, versions)


@policy.command("set", short_help="Set an operator's policy of PATTERN.", epilog=EXAMPLES)
@click.argument("pattern")
@setting_options
@click.option(
    "--unset",
    multiple=True,
    metavar="SETTING",
    help="Remove this setting from the policy; may be repeated.",
)
@pass_session
def set_policy(
    session: Session, /, pattern: str, *, unset: tuple[str, ...], **options: Any
) -> None:
    """
    Set an operator's policy of PATTERN. It overrides the code's and applies to waiting messages
    too.
    """
    fields = {name: value_of(name, text) for name, text in options.items() if text is not None}
    fields.update(dict.fromkeys(unset))
    if not fields:
        raise click.UsageError("nothing to set; name a setting, like --rate 50/s")
    now = session.engine_for(pattern, create=True).policy_set("operator", pattern, fields)
    say(f"{pattern}: {settings_in_words(now) or 'nothing set'}")


@policy.command("reset", short_help="Remove the operator's policy of PATTERN.")
@click.argument("pattern")
@click.option(
    "--layer",
    type=click.Choice(("operator", "code")),
    default="operator",
    show_default=True,
    help="code: remove what programs set at run time; what their code declares applies again.",
)
@pass_session
def reset(session: Session, pattern: str, *, layer: Layer) -> None:
    """Remove the operator's policy of PATTERN; the code's holds again."""
    whose = "the operator" if layer == "operator" else "no program at run time"
    engine = session.engine_for(pattern) if layer == "operator" else session.engine()
    if not engine.policy_reset(layer, pattern):
        exit_with(
            f"policy {pattern}: {whose} has set {'nothing' if layer == 'operator' else 'anything'}"
            " for it",
            REFUSED,
        )
    say(f"{pattern}: the {'operator' if layer == 'operator' else 'code'}'s settings are removed")


@policy.command("copy", short_help="Copy policies and gates to another namespace.")
@click.argument("to_namespace")
@pass_session
def copy(session: Session, to_namespace: str) -> None:
    """
    Copy all policies and gates of this namespace (-n) to another, such as from sandbox to online.
    """
    here, source = session.app(), session.namespace
    session.namespace = to_namespace
    number = here.policies.copy(session.app(create=True))
    say(f"{counted(number, 'policy', 'policies')} copied from {source} to {to_namespace}")


@policy.command("diff", short_help="Compare with another namespace.")
@click.argument("other_namespace")
@json_option
@pass_session
def diff(session: Session, other_namespace: str, *, as_json: bool) -> None:
    """List how the policies of another namespace differ from this one's; exit code 1 if they do."""
    differences = session.app().policies.compare(Session(session.url, other_namespace).app())
    if as_json:
        print_json(
            [
                dict(zip(("layer", "pattern", "setting", "here", "there"), each, strict=True))
                for each in differences
            ]
        )
    else:
        rows = [tuple("-" if cell is None else str(cell) for cell in each) for each in differences]
        table(
            ("layer", "pattern", "setting", session.namespace, other_namespace),
            rows,
            empty="no differences",
        )
    if differences:
        raise SystemExit(REFUSED)
