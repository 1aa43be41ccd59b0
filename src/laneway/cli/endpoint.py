"""`laneway endpoint`: where messages are pushed to."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click
import msgspec

from laneway import units
from laneway.cli.attempts import attempts, replay
from laneway.cli.session import (
    Session,
    json_option,
    pass_session,
    print_json,
    say,
    show_list,
)
from laneway.presenting import duration, moment

if TYPE_CHECKING:
    from laneway.push.endpoint import Endpoint, EndpointInfo

ED25519 = "ed25519"

EXAMPLES = """\b
Examples:
  laneway endpoint set push.acme https://acme.example/hooks
  laneway endpoint set push.acme --timeout 5s --event 'order.*'
  laneway endpoint set 'push.acme#crm' https://crm.example/in --header 'x-region: eu'
  laneway endpoint list 'push.*' --state disabled
"""


@click.group()
def endpoint() -> None:
    """Create, show and change endpoints: where `laneway push` sends messages."""


@endpoint.command("set", short_help="Create or change an endpoint.", epilog=EXAMPLES)
@click.argument("topic")
@click.argument("url", required=False)
@click.option("--timeout", help="For the whole request, such as 5s. [default: 15 s]")
@click.option("--connect-timeout", help="For the connection. [default: 5 s]")
@click.option("--event", "events", multiple=True, help="Only these event types; may be repeated.")
@click.option("--header", "headers", multiple=True, help="'NAME: VALUE'; may be repeated.")
@click.option("--content", help="body, standard, cloudevents or cloudevents-binary.")
@click.option(
    "--template", help="JSON in which texts like $.order are replaced by the body's fields."
)
@click.option("--dead-on", type=int, multiple=True, help="HTTP statuses that are final.")
@click.option("--description", help="A description.")
@click.option("--proxy", help="A proxy for its requests.")
@click.option("--ca", type=click.File(), help="A file with the certificate to trust, in PEM.")
@click.option("--method", help="POST, PUT or PATCH. [default: POST]")
@click.option("--http2", help="auto or never. [default: auto]")
@click.option(
    "--log", help="What the delivery log records: failures, sample or all. [default: sample]"
)
@click.option("--metadata", multiple=True, help="'NAME=VALUE'; may be repeated.")
@click.option("--allow-private/--no-allow-private", default=None, help="Allow private addresses.")
@click.option("--allow-http/--no-allow-http", default=None, help="Allow a URL without TLS.")
@click.option("--verify-tls/--no-verify-tls", default=None, help="Verify its certificate.")
@click.option("--duplicate-ok/--no-duplicate-ok", default=None, help="Treat HTTP 409 as success.")
@click.option("--topic-header/--no-topic-header", default=None, help="Send webhook-topic.")
@click.option(
    "--ed25519", is_flag=True, help="Sign with a new ed25519 key, and show its public key."
)
@click.option(
    "--secret-file", type=click.File(), help="Use the secret in this file (- for standard input)."
)
@click.option(
    "--reset",
    multiple=True,
    metavar="SETTING",
    help="Restore the default of this setting; may be repeated.",
)
@json_option
@pass_session
def set_(session: Session, /, topic: str, *, as_json: bool, **given: Any) -> None:
    """
    Create or change a topic's endpoint. What is not named stays as it is.

    A new endpoint gets a secret, which is printed once: give it to the receiver. It is stored
    encrypted by LANEWAY_SECRETS_KEY; `laneway endpoint key` prints a new key.
    """
    _print_endpoint(session.app(create=True).endpoint(topic, **_settings(given)), as_json=as_json)


def _settings(given: dict[str, Any]) -> dict[str, Any]:
    """The settings that the options name."""
    settings: dict[str, Any] = dict.fromkeys(given.pop("reset"))
    if (secret_file := given.pop("secret_file")) is not None:
        settings["secret"] = secret_file.read().strip()
    if given.pop("ed25519"):
        settings["secret"] = ED25519
    if (template := given.pop("template")) is not None:
        try:
            settings["template"] = msgspec.json.decode(template)
        except msgspec.DecodeError as error:
            raise click.UsageError(f"--template: expected JSON: {error}") from error
    if given["ca"] is not None:
        given["ca"] = given["ca"].read()
    for name, separator in (("headers", ":"), ("metadata", "=")):
        if pairs := given.pop(name):
            settings[name] = dict(_pair(name, each, separator) for each in pairs)
    for name, value in given.items():
        if value is not None and value != ():
            settings[name] = list(value) if isinstance(value, tuple) else value
    return settings


def _pair(name: str, text: str, separator: str) -> tuple[str, str]:
    key, found, value = text.partition(separator)
    if not found:  # the text may be a secret
        raise click.UsageError(f"--{name.rstrip('s')}: expected NAME{separator} VALUE")
    return key.strip(), value.strip()


def _print_endpoint(endpoint: Endpoint, *, as_json: bool) -> None:
    if as_json:
        print_json({"topic": endpoint.topic, "secret": endpoint.secret})
        return
    say(f"endpoint {endpoint.topic} is set")
    if endpoint.secret is not None and endpoint.secret.startswith("whpk_"):
        say(f"its public key: {endpoint.secret}")
    elif endpoint.secret is not None:
        say(f"its secret, which is not shown again: {endpoint.secret}")


@endpoint.command("load", short_help="Create or change many endpoints.")
@click.argument("file", type=click.File("rb"), default="-")
@pass_session
def load(session: Session, file: Any) -> None:
    """
    Create or change an endpoint for each line of a file: JSON such as {"topic": "push.acme",
    "url": "https://acme.example/hooks"}. Prints a line of JSON with topic and secret for each.
    """
    for each in session.app(create=True).endpoints.set_many(_lines(file)):
        print_json({"topic": each.topic, "secret": each.secret})


def _lines(file: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, line in enumerate(file, 1):
        try:
            settings = msgspec.json.decode(line, type=dict[str, Any])
            topic = settings.pop("topic")
        except (msgspec.DecodeError, KeyError) as error:
            raise click.UsageError(
                f"line {number}: expected a JSON object with topic and url"
            ) from error
        yield topic, settings


@endpoint.command("show")
@click.argument("topic")
@json_option
@pass_session
def show(session: Session, topic: str, *, as_json: bool) -> None:
    """Show a topic's endpoint and its condition, without its secrets."""
    info = session.app().endpoint(topic).info()
    if as_json:
        print_json(info)
        return
    for name, value in msgspec.to_builtins(info).items():
        if value not in (None, [], {}, ""):
            say(f"{name.replace('_', ' '):<16} {_shown(name, value)}")


MOMENTS = frozenset({"failing_since", "busy_since", "created", "changed"})


def _shown(name: str, value: Any) -> str:
    if name in MOMENTS:
        return (
            f"{moment(round(value * units.SECOND))} ({duration(max(time.time() - value, 0.0))} ago)"
        )
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return msgspec.json.encode(value).decode() if isinstance(value, dict) else str(value)


@endpoint.command("list")
@click.argument("pattern", default="*")
@click.option("--state", help="Only healthy, failing, busy, open, probing or disabled ones.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True)
@click.option("--after", default="", help="Continue after this topic.")
@json_option
@pass_session
def list_(
    session: Session, pattern: str, *, state: str | None, limit: int, after: str, as_json: bool
) -> None:
    """List endpoints by topic, with their condition."""
    rows = session.app().endpoints.list(pattern, limit=limit, after=after, state=state)
    show_list(
        rows,
        ("topic", "state", "url", "why"),
        _row,
        as_json=as_json,
        empty=f"no endpoint of {pattern} is {state}"
        if state
        else f"no endpoint matches {pattern}; `laneway endpoint set` creates one",
    )


def _row(info: EndpointInfo) -> tuple[str, ...]:
    why = info.disabled or info.attention or info.last_failure or ""
    return info.topic, info.state, info.url, why


@endpoint.command("test")
@click.argument("topic")
@json_option
@pass_session
def test(session: Session, topic: str, *, as_json: bool) -> None:
    """
    Send a test request to an endpoint now, and show the answer. The exit code is 1 if it failed.

    It goes past the topic's rate and breaker, but through the address guard; 6 a minute.
    """
    result = session.app().endpoint(topic).test()
    if as_json:
        print_json(result)
    else:
        say(f"{'ok' if result.ok else 'failed'}: {result.text}")
        for name, milliseconds in result.milliseconds.items():
            if milliseconds:  # it came as far as that
                say(f"  {name:<10} after {milliseconds:.1f} ms")
        for name, value in result.headers.items():
            say(f"  {name}: {value}")
        if result.body:
            say(result.body)
    if not result.ok:
        raise SystemExit(1)


@endpoint.command("rotate")
@click.argument("topic")
@click.option("--ed25519", is_flag=True, help="An ed25519 key; its public key is printed.")
@pass_session
def rotate(session: Session, topic: str, *, ed25519: bool) -> None:
    """Create a new secret, and print it once. The old one also signs for 24 hours."""
    say(session.app().endpoint(topic).rotate(ED25519 if ed25519 else None))


@endpoint.command("disable")
@click.argument("topic")
@click.option("--reason", default="by hand", show_default=True)
@pass_session
def disable(session: Session, topic: str, *, reason: str) -> None:
    """Send nothing more to an endpoint: its topic's messages wait."""
    session.app().endpoint(topic).disable(reason)
    say(f"endpoint {topic} is disabled; its topic's messages wait")


@endpoint.command("enable")
@click.argument("topic")
@click.option(
    "--now", is_flag=True, help="Even if it was enabled and disabled again within five minutes."
)
@pass_session
def enable(session: Session, topic: str, *, now: bool) -> None:
    """Send to an endpoint again: one message as a probe, then the others."""
    app = session.app()
    app.endpoint(topic).enable(now=now)
    is_paused = app.engine.policy_of(topic).paused
    resume = f"; the topic is paused: `laneway resume {shlex.quote(topic)}`" if is_paused else ""
    say(f"endpoint {topic} is enabled{resume}")


@endpoint.command("remove")
@click.argument("topic")
@pass_session
def remove(session: Session, topic: str) -> None:
    """Remove an endpoint. Its topic's messages stay, and wait."""
    was_there = session.app().endpoint(topic).remove()
    say(f"endpoint {topic} is removed" if was_there else f"endpoint {topic} did not exist")


endpoint.add_command(attempts)
endpoint.add_command(replay)


@endpoint.command("key")
def key() -> None:
    """Print a new random key for LANEWAY_SECRETS_KEY. It is stored nowhere."""
    from laneway.push.secret_store import new_key

    sys.stdout.write(new_key() + "\n")
