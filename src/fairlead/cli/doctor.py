"""`fairlead doctor`: is the store healthy?"""

from __future__ import annotations

import platform
import sqlite3
import sys
from importlib.metadata import version

import click

from fairlead.cli.session import STATE_SAYS_NO, Session, json_option, pass_session, print_json


@click.command()
@click.argument("url", required=False)
@click.option("--repair", is_flag=True, help="Mend what does not agree.")
@click.option("--dump", is_flag=True, help="Print all that helps when it is ill, bodies left out, as JSON.")
@json_option
@pass_session
def doctor(session: Session, url: str | None, *, repair: bool, dump: bool, as_json: bool) -> None:
    """Check that the store is sound and that its parts agree."""
    chosen = Session(url or session.url, session.namespace)
    app = chosen.app()
    engine = app.engine
    checks = engine.doctor(repair=repair)
    if dump:
        snapshot = engine.snapshot() if checks[0].ok else {}
        for message in snapshot.get("messages", []):
            message["body"], message["bodies"] = f"{len(message['body'])} bytes", None
        about = {"fairlead": version("fairlead"), "python": sys.version, "sqlite": sqlite3.sqlite_version, "platform": platform.platform()}
        print_json({"about": about, "url": app.url, "namespace": app.namespace, "checks": checks, "snapshot": snapshot})
    elif as_json:
        print_json(checks)
    else:
        for check in checks:
            click.echo(f"{'ok  ' if check.ok else 'ILL '} {check.name}: {check.detail}" + (f"; {check.mend}" if check.mend else ""))
    if not all(check.ok for check in checks):
        raise SystemExit(STATE_SAYS_NO)
