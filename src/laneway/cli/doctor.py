"""`laneway doctor`: check a store."""

from __future__ import annotations

import platform
import sqlite3
import sys
from importlib.metadata import version

import click

from laneway.admin import subscriptions, workers
from laneway.cli.session import REFUSED, Session, json_option, pass_session, print_json, say
from laneway.engines import check_server
from laneway.engines.base import Check
from laneway.errors import NoNamespace
from laneway.printable import redacted, without_passwords


@click.command(short_help="Check the store, and repair it.")
@click.argument("url", required=False)
@click.option("--repair", is_flag=True, help="Repair inconsistent counters and indexes.")
@click.option(
    "--dump", is_flag=True, help="Print a full report without bodies as JSON, for a bug report."
)
@json_option
@pass_session
def doctor(session: Session, url: str | None, *, repair: bool, dump: bool, as_json: bool) -> None:
    """Check the store: the file or server, and that its counters and indexes agree."""
    session.url = url or session.url
    app = session.app()
    checks = check_server(app.url)
    if not all(check.ok for check in checks):
        _print(checks, as_json=as_json or dump)
        raise SystemExit(REFUSED)
    try:
        engine = app.engine
    except NoNamespace as error:  # the server was checked before a namespace exists on it
        checks.append(
            Check("namespace", ok=True, detail=str(error).partition("; ")[0], available=False)
        )
        _print(checks, as_json=as_json or dump)
        return
    checks += [
        check for check in engine.doctor(repair=repair) if not (checks and check.name == "server")
    ]
    if all(check.ok for check in checks):  # else the list may not be readable
        checks += [workers.check(engine), *subscriptions.check(engine)]
    if dump:
        snapshot = engine.snapshot() if all(check.ok for check in checks[:1]) else {}
        for message in snapshot.get("messages", []):
            message["body"], message["bodies"] = f"{len(message['body'])} bytes", None
        about = {
            "laneway": version("laneway"),
            "python": sys.version,
            "sqlite": sqlite3.sqlite_version,
            "platform": platform.platform(),
        }
        print_json(
            {
                "about": about,
                "url": redacted(app.url),
                "namespace": app.namespace,
                "checks": checks,
                "snapshot": snapshot,
            }
        )
    else:
        _print(checks, as_json=as_json)
    if not all(check.ok for check in checks):
        raise SystemExit(REFUSED)


def _print(checks: list[Check], *, as_json: bool) -> None:
    if as_json:
        print_json(checks)
        return
    for check in checks:
        say(
            without_passwords(
                f"{_word(check)} {check.name}: {check.detail}"
                + (f"; {check.advice}" if check.advice else "")
            )
        )


def _word(check: Check) -> str:
    return "FAIL" if not check.ok else "ok  " if check.available else "no  "
