"""`laneway migrate FROM TO`: move a namespace to another store."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable

import click
from msgspec.structs import replace

from laneway import Laneway
from laneway.admin.policies import batches, copy_programs, every_policy, set_policies
from laneway.cli.session import Session, json_option, pass_session, print_json, say
from laneway.cluster.term_store import copy_terms
from laneway.engines.base import ExportedMessage, FullEngine, LogEntry, RecordKind, Records
from laneway.errors import UsageError
from laneway.history.records import RINGS, Row, decode
from laneway.printable import redacted
from laneway.push.delivery_log import KEEP_US, LATE_US, MOST_SEARCHED, max_bytes_of
from laneway.units import counted

PAGE = 500
LOOK_AGAIN = 0.2
"""Seconds between two checks of the remaining leases."""


@click.command(short_help="Move a namespace to another store.")
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.option("--to-namespace", help="The namespace in TO, if it differs.")
@click.option(
    "--wait/--no-wait",
    default=True,
    show_default=True,
    help="Wait for leased messages to end; otherwise they stay in FROM, and the exit code is 1.",
)
@json_option
@pass_session
def migrate(
    session: Session,
    source: str,
    target: str,
    *,
    to_namespace: str | None,
    wait: bool,
    as_json: bool,
) -> None:
    """
    Move all policies, gates, messages, dead letters, finished ids, term numbers, tokens,
    endpoints, the last batches of spools and the history from one store to another, like

        laneway migrate sqlite:///laneway.db valkey://localhost

    Workers and publishers of the old store may continue meanwhile; restart them with the new URL
    when you are ready. A message is never lost: after an interruption, the same command resumes.
    """
    with Laneway(source, namespace=session.namespace, create=False) as old:
        tiers = old.engine.tier_layers()
        with Laneway(
            target,
            namespace=to_namespace or session.namespace,
            tiers=tiers.code,
            default_tier=tiers.default,
        ) as new:
            if are_same(old.engine, new.engine):
                raise UsageError(
                    f"migrate: {redacted(target)} is the same namespace of the same store as"
                    f" {redacted(source)}; name another store, or another --to-namespace"
                )
            new.engine.tier_set("operator", tiers.operator)
            counts = move(
                old.engine, new.engine, lambda text: None if as_json else say(text), wait=wait
            )
    if as_json:
        print_json(counts)
    if counts["still leased"]:
        raise SystemExit(1)


def are_same(old: FullEngine, new: FullEngine) -> bool:
    """
    Whether two engines keep the same namespace. URLs do not tell: a file may have several paths,
    and a server several names. A record is written by one and read by the other.
    """
    name = f"migrating-{secrets.token_hex(8)}"
    record = b'"for a moment"'
    new.record_swap("gateway", name, None, record)
    try:
        return old.record_read("gateway", [name]) != [None]
    finally:
        new.record_swap("gateway", name, record, None)


def move(
    old: FullEngine, new: FullEngine, tell: Callable[[str], None], *, wait: bool
) -> dict[str, int]:
    """Move everything; each step can be repeated."""
    counts = {
        "gates": 0,
        "policies": 0,
        "elections": 0,
        "rows of history": 0,
        "tokens": 0,
        "endpoints": 0,
        "attempts in the delivery log": 0,
        "finished ids": 0,
        "spools": 0,
        "messages": 0,
        "dead letters": 0,
        "still leased": 0,
    }
    for name, layer, gate in old.gate_layers():
        new.gate_set(name, gate, layer=layer)
        counts["gates"] += 1
    counts["policies"] = set_policies(new, every_policy(old))
    copy_programs(old, new)
    counts["elections"] = copy_terms(old, new)
    counts["rows of history"] = copy_rows(old, new)
    copy_records(old, new, "copying")
    counts["tokens"] = copy_records(old, new, "token")
    copy_records(old, new, "endpoint_state")
    counts["endpoints"] = copy_records(old, new, "endpoint")
    counts["attempts in the delivery log"] = copy_delivery_log(old, new)
    tell(
        f"{counted(counts['policies'], 'policy', 'policies')}, {counted(counts['gates'], 'gate')},"
        f" {counted(counts['elections'], 'election')}, {counted(counts['tokens'], 'token')},"
        f" {counted(counts['endpoints'], 'endpoint')}"
    )
    for page in batches(old.finished_ids()):
        new.import_finished(page)
        counts["finished ids"] += len(page)
    tell(counted(counts["finished ids"], "finished id"))
    _move_messages(old, new, counts, tell, wait=wait)
    forwarded = list(old.spool_batches())
    new.import_spool_batches(forwarded)
    counts["spools"] = len({each.spool for each in forwarded})
    tell(f"{counted(counts['spools'], 'spool')}: what was forwarded last is known")
    return counts


def _move_messages(
    old: FullEngine,
    new: FullEngine,
    counts: dict[str, int],
    tell: Callable[[str], None],
    *,
    wait: bool,
) -> None:
    reported = time.monotonic()
    while True:
        while exported_messages := old.export(PAGE):
            now_us, old_us = new.overview().now_us, old.overview().now_us
            new.import_([_on_clock(each, now_us, old_us) for each in exported_messages])
            old.confirm_export(exported_messages)
            dead = sum(exported.death is not None for exported in exported_messages)
            counts["messages"] += len(exported_messages) - dead
            counts["dead letters"] += dead
            if time.monotonic() - reported >= 1.0:
                reported = time.monotonic()
                tell(f"{_moved(counts)} so far, {old.overview().waiting:,} to go")
        leased = old.overview().leased
        if not leased or not wait:
            break
        if time.monotonic() - reported >= 1.0:
            reported = time.monotonic()
            tell(f"waiting for {counted(leased, 'leased message')}")
        time.sleep(LOOK_AGAIN)
        old.tick()
    counts["still leased"] = leased
    tell(
        f"{_moved(counts)} moved"
        + (f"; {leased:,} {'is' if leased == 1 else 'are'} still leased" if leased else "")
    )


def _on_clock(message: ExportedMessage, now_us: int, old_us: int) -> ExportedMessage:
    """
    The message with times of the new store's clock, if the old store's is ahead (`old_us`): what
    is ready there is ready here, and what was published there since then has its delay left.
    """
    if message.published_us > now_us:
        ahead = old_us - now_us
        return replace(
            message,
            published_us=now_us,
            since_us=message.since_us - ahead,
            expires_us=None if message.expires_us is None else message.expires_us - ahead,
        )
    if now_us < message.since_us <= old_us:
        return replace(message, since_us=now_us)
    return message


def _moved(counts: dict[str, int]) -> str:
    return (
        f"{counted(counts['messages'], 'message')},"
        f" {counted(counts['dead letters'], 'dead letter')}"
    )


# What a store has outside the queue: records, the history, and the delivery log

COPIED = "copied"
"""The record that `copy_rows` writes, so that two of them do not write concurrently."""


def copy_records(old: Records, new: Records, kind: RecordKind) -> int:
    """Copy the records of a kind, except existing ones. Returns the number of records."""
    count, after = 0, ""
    while page := old.records(kind, after=after):
        new.record_swap_many(kind, [(name, None, record) for name, record in page])
        count += len(page)
        after = page[-1][0]
    return count


def copy_rows(old: FullEngine, new: FullEngine) -> int:
    """
    Copy the rows for which the other store has none of the same time or a later one. Can be
    repeated. Returns how many were copied.
    """
    count = 0
    for seconds, number in RINGS.items():
        names = [f"{seconds}:{place}" for place in range(number)]
        for first in range(0, number, PAGE):
            page = names[first : first + PAGE]
            found: dict[str, bytes] = {}
            pairs = zip(page, old.history_read(page), new.history_read(page), strict=True)
            for name, theirs, ours in pairs:
                row, known = decode(theirs, Row), decode(ours, Row)
                is_later = known is not None and row is not None and known.at_us >= row.at_us
                if theirs is not None and row is not None and not is_later:
                    found[name] = theirs
            if found:
                (before,) = new.history_read([COPIED])
                if new.history_write(COPIED, before, {**found, COPIED: page[0].encode()}):
                    count += len(found)
    return count


def copy_delivery_log(old: FullEngine, new: FullEngine) -> int:
    """
    Copy the newest 10,000 entries, unless the new store has some already. Returns how many.
    """
    if new.delivery_log_read(limit=1):
        return 0
    found: list[LogEntry] = []
    before: int | None = None
    while len(found) < MOST_SEARCHED:
        page = old.delivery_log_read(limit=PAGE, before=before)
        if not page:
            break
        found += [entry for _, entry in page]
        before = page[-1][0]
    found.reverse()
    for start in range(0, len(found), PAGE):
        entries = found[start : start + PAGE]
        new.delivery_log_append(
            entries,
            keep_us=KEEP_US,
            max_bytes=max_bytes_of(new),
            from_us=max(entries[0].at_us - LATE_US, 0),
        )
    return len(found)
