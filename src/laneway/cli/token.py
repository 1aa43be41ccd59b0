"""`laneway token`: who may use the HTTP API."""

from __future__ import annotations

import click

from laneway.cli.session import Session, json_option, pass_session, print_json, say, show_list
from laneway.presenting import moment

EXAMPLES = """\b
Examples:
  laneway token create shop --scope publish
  laneway token create billing --scope consume --topic 'invoice.*' --expires 90d
  laneway token create grafana --scope read
"""


@click.group()
def token() -> None:
    """Create, list and revoke tokens of the HTTP API (`laneway serve`)."""


@token.command("create", short_help="Create a token, and print it.", epilog=EXAMPLES)
@click.argument("name")
@click.option(
    "--scope",
    multiple=True,
    required=True,
    help="publish, consume, read, bodies, operate, endpoints or admin; may be repeated.",
)
@click.option(
    "--topic", multiple=True, help="Only topics of this pattern; may be repeated. [default: all]"
)
@click.option("--expires", help="When it expires, such as 90d from now. [default: never]")
@click.option("--rate", help="Requests per second, such as 100/s. [default: no limit]")
@json_option
@pass_session
def create(
    session: Session,
    name: str,
    *,
    scope: tuple[str, ...],
    topic: tuple[str, ...],
    expires: str | None,
    rate: str | None,
    as_json: bool,
) -> None:
    """
    Create a token with the given scopes, and print it. It is not stored and not shown again.

    As soon as there is one, a gateway that needed no login answers no request without a token.
    """
    from laneway.gateway.login import tokens

    token_id, text, _ = tokens.create(
        session.engine(create=True), name, scope, topics=topic or None, expires=expires, rate=rate
    )
    if as_json:
        print_json({"id": token_id, "token": text})
    else:
        say(text)


@token.command("generate")
def generate() -> None:
    """
    Print a new token for a file of `laneway serve --token-file`.

    It needs no store: a gateway that starts with the file accepts the token for everything.
    """
    from laneway.gateway.login import tokens

    say(tokens.new_text()[2])


@token.command("list")
@click.option("--limit", type=click.IntRange(1, 10_000), default=200, show_default=True)
@click.option("--after", default="", help="Continue after this id.")
@json_option
@pass_session
def list_tokens(session: Session, *, limit: int, after: str, as_json: bool) -> None:
    """List the tokens by id, without their secrets."""
    from laneway.gateway.login import tokens

    rows = [
        {
            "id": token_id,
            "name": found.name,
            "scopes": found.scopes,
            "topics": found.topics,
            "rate": found.rate,
            "created": moment(found.created_us),
            "expires": moment(found.expires_us),
            "last_used": moment(found.last_used_us),
        }
        for token_id, found in tokens.listed(session.engine(), limit=limit, after=after)
    ]
    show_list(
        rows,
        ("id", "name", "scopes", "topics", "expires", "last used"),
        lambda row: (
            row["id"],
            row["name"],
            ", ".join(row["scopes"]),
            ", ".join(row["topics"] or ("*",)),
            row["expires"],
            row["last_used"],
        ),
        as_json=as_json,
        empty="there are no tokens: `laneway token create NAME --scope SCOPE` creates one",
    )


@token.command("revoke")
@click.argument("token_id", metavar="ID")
@pass_session
def revoke(session: Session, token_id: str) -> None:
    """Revoke a token by its id. Gateways refuse it within a second."""
    from laneway.gateway.login import tokens

    found = tokens.revoke(session.engine(), token_id)
    say(f'token {token_id} ("{found.name}") is revoked')
