"""Policies, gates and tiers."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec

from laneway import arguments
from laneway.admin.policies import layers_of, operator_fields
from laneway.engines.base import FullEngine
from laneway.errors import BadPolicy
from laneway.gateway import receipts
from laneway.gateway.call import Call
from laneway.gateway.http import Response
from laneway.gateway.login.shared_key import shared_key
from laneway.gateway.problems import Problem
from laneway.gateway.schema import (
    DryRunAnswer,
    FieldAnswer,
    GateAnswer,
    GateBody,
    GatesAnswer,
    NamesQuery,
    PoliciesAnswer,
    PoliciesQuery,
    PolicyAnswer,
    PolicyChange,
    PolicyDetails,
    TierBody,
    TiersAnswer,
    TierSettingAnswer,
    TopicGroupAnswer,
    TopicGroupBody,
    TopicGroupsAnswer,
)
from laneway.gateway.wire import encode, moment_or_none
from laneway.policy import (
    PROGRAM,
    Gate,
    PolicyTable,
    change_layers,
    check_fields,
    check_policy_pattern,
    is_pattern,
    matches,
    sources,
)
from laneway.subscriptions import base_of
from laneway.tiers import Tier, check_tiers

SHARED = ("gate", "group", "pool", "tier")
"""Policy fields that name what topics share: limits, workers, a share of deliveries."""

TOPICS_AT_ONCE = 1000
MAX_TIERS = 1000
"""Most tiers that are listed."""

MAX_LISTED = 10_000
"""The maximum number of topics in which a dry run counts those with waiting messages."""


def field_answers(policies: PolicyTable, name: str) -> dict[str, FieldAnswer]:
    """The fields that are set for a topic, with their sources."""
    return {field: FieldAnswer(*source) for field, source in policies.why(name).items()}


def show_policy(call: Call) -> Response:
    """
    Show what is set for a pattern or topic, and what holds for it.

    The header `ETag` is the version of the operator's fields, for `If-Match`.
    """
    engine, pattern = call.engine, call.pattern
    layers = layers_of(engine, pattern)
    effective = field_answers(engine.policies(), _example(pattern))
    details = PolicyDetails(pattern, sources(layers), effective)
    return Response(200, encode(details), headers=[_etag(layers.get("operator", {}))])


def _etag(fields: Mapping[str, Any]) -> tuple[bytes, bytes]:
    content = msgspec.json.encode(fields, order="deterministic")
    return b"etag", b'"%s"' % hashlib.sha256(content).hexdigest()[:16].encode()


def set_policy(call: Call) -> Response:
    """
    Set the operator's policy of a pattern or topic: these fields and no others.

    It overrides what code declares and applies to waiting messages too. With `If-Match`, it is
    changed only if the operator's fields are still those of that `ETag`.
    """
    before = _before(call)
    return _change(call, before, {**dict.fromkeys(before), **call.body})


def change_policy(call: Call) -> Response:
    """
    Change some fields of the operator's policy of a pattern or topic; null removes a field.

    As PUT, but the fields that are not named stay.
    """
    return _change(call, _before(call), call.body)


def reset_policy(call: Call) -> Response:
    """Remove the operator's policy of a pattern or topic; the code's holds again."""
    before = _before(call)
    if not before:
        raise Problem("not-found", f"policy {call.pattern}: the operator has set nothing for it")
    return _change(call, before, dict.fromkeys(before))


def _before(call: Call) -> dict[str, Any]:
    """The operator's fields before a change; raises Problem unless they are those of `If-Match`."""
    before = operator_fields(call.engine, call.pattern)
    _check_match(call, before)
    return before


def _change(call: Call, before: dict[str, Any], changes: Mapping[str, Any]) -> Response:
    pattern = call.pattern
    _check_shared(call, before, changes)
    if call.query.dry_run:
        return _dry_run(call, pattern, before, changes)
    after = call.engine.policy_set("operator", pattern, changes) if changes else dict(before)
    return change_answer(pattern, before, after)


def _dry_run(
    call: Call, pattern: str, before: dict[str, Any], changes: Mapping[str, Any]
) -> Response:
    """What a change would set, and what would hold then. Raises BadPolicy as the change does."""
    engine, table = call.engine, call.engine.policies()
    name = _example(pattern)
    fields = check_fields(pattern, changes)
    held = field_answers(table, name)
    if is_pattern(pattern):
        after = table.put("operator", pattern, fields)
        table.check(pattern)
        effective = table.why(name)
    else:
        own = change_layers(pattern, engine.policy_own(pattern), "operator", fields)
        after = sources(own).get("operator", {})
        table.check(pattern, own)
        effective = table.why(name, own)
    count, is_cut = _waiting_topics(call, pattern)
    effects = DryRunAnswer(
        count, is_cut, held, {field: FieldAnswer(*source) for field, source in effective.items()}
    )
    change = PolicyChange(pattern, after, before, dry_run=True, effects=effects)
    return Response(200, encode(change), headers=[_etag(after)])


def _example(pattern: str) -> str:
    """A topic for which a pattern is the most specific one."""
    if not is_pattern(pattern):
        return pattern
    return pattern.replace("*", "", 1) if pattern[0] != "*" else pattern


def _waiting_topics(call: Call, pattern: str) -> tuple[int, bool]:
    """How many topics of a pattern have waiting messages, and whether there may be more."""
    if not is_pattern(pattern):
        return int(call.engine.topic_stats(pattern).waiting > 0), False
    count, listed, after = 0, 0, None
    listed_by = base_of(pattern)
    while page := call.engine.topic_list(pattern=listed_by, limit=TOPICS_AT_ONCE, after=after):
        count += sum(topic.waiting > 0 and matches(pattern, topic.topic) for topic in page)
        listed += len(page)
        if len(page) < TOPICS_AT_ONCE:
            break
        if listed >= MAX_LISTED:
            return count, True
        after = page[-1].topic
    return count, False


def _check_match(call: Call, before: Mapping[str, Any]) -> None:
    wanted, etag = call.request.header(b"if-match"), _etag(before)[1].decode()
    if wanted is not None and wanted.strip() not in ("*", etag):
        raise Problem(
            "conflict",
            f"the policy has changed since it was read: If-Match is {wanted[:80]}, its ETag is"
            f" {etag}; read it again",
        )


def _check_shared(call: Call, before: Mapping[str, Any], changes: Mapping[str, Any]) -> None:
    """Raise Problem if a caller with some topics only changes what they share with others."""
    if call.caller.sees_all:
        return
    for name in SHARED:
        if name in changes and changes[name] != before.get(name):
            raise Problem(
                "forbidden",
                f'the token "{call.caller.name}" is for topics {", ".join(call.caller.patterns)};'
                f" {name} is shared with other topics, so it takes a token for all of them",
            )


def change_answer(pattern: str, before: dict[str, Any], after: dict[str, Any]) -> Response:
    """The answer to a change of the operator's fields of a pattern."""
    change = PolicyChange(pattern, after, before)
    return Response(200, encode(change), headers=[_etag(after)], undo=(pattern, before))


# Gates


def list_gates(call: Call) -> GatesAnswer:
    """List the gates: limits that several topics share."""
    page, following = _page(call.query, call.engine.gate_list())
    return GatesAnswer(
        [GateAnswer(**_limits(gate)) for gate in page], following, following is not None
    )


def show_gate(call: Call) -> GateAnswer:
    """Show a gate: its limits, and what is leased through it."""
    name = call.parameters["name"]
    for each in call.engine.gate_list():
        if each["name"] == name:
            return GateAnswer(**_limits(each))
    raise Problem("not-found", f'there is no gate "{name[:80]}"')


def _page(
    query: NamesQuery, listed: Sequence[Mapping[str, Any]]
) -> tuple[Sequence[Mapping[str, Any]], str | None]:
    """A page of what is listed by name, and the name behind which the next one begins."""
    after = query.after or ""
    rows = [each for each in listed if each["name"] > after]
    page = rows[: query.limit]
    return page, page[-1]["name"] if len(rows) > len(page) else None


def set_gate(call: Call) -> GateAnswer:
    """Define or change a gate, for the operator. It overrides the code's."""
    body: GateBody = call.body
    name = call.parameters["name"]
    if body.rate is None and body.concurrency is None:
        raise BadPolicy(f"gate {name[:80]}: expected a rate, a concurrency or both")
    gate = Gate.of(name, body.rate, body.burst, body.concurrency, body.max_cost)
    call.engine.gate_set(name, gate, layer="operator")
    return show_gate(call)


def reset_gate(call: Call) -> GateAnswer:
    """Open a gate that owes permits: its rate has the whole burst again. Its leases stay."""
    call.engine.gate_reset(call.parameters["name"])
    return show_gate(call)


def _limits(gate: Mapping[str, Any]) -> dict[str, Any]:
    names = ("name", "rate", "burst", "concurrency", "max_cost", "leased", "waiting")
    return {
        **{name: gate[name] for name in names},
        "next_permit": moment_or_none(gate["next_permit_us"]),
    }


# Topic groups


def list_groups(call: Call) -> TopicGroupsAnswer:
    """List the topic groups that have settings: topics that compete as one."""
    return _groups(call, call.query)


def _groups(call: Call, query: NamesQuery) -> TopicGroupsAnswer:
    page, following = _page(query, call.engine.topic_group_list())
    return TopicGroupsAnswer(
        [TopicGroupAnswer(**_limits(group), weight=group["weight"]) for group in page],
        following,
        following is not None,
    )


def set_group(call: Call) -> TopicGroupsAnswer:
    """
    Set the weight, rate and concurrency of a topic group, for the operator, as a whole.

    Each setting overrides the code's. Without settings the code's hold again.
    """
    body: TopicGroupBody = call.body
    name = call.parameters["name"]
    settings = Gate.of_group(name, body.rate, body.burst, body.concurrency, body.weight)
    call.engine.topic_group_set(name, settings, layer="operator")
    return _groups(call, NamesQuery())


def reset_group(call: Call) -> TopicGroupsAnswer:
    """Remove the operator's settings of a topic group; the code's hold again."""
    name = call.parameters["name"]
    Gate.of_group(name, None, None, None, None)  # checks the name
    call.engine.topic_group_set(name, Gate(), layer="operator")
    return _groups(call, NamesQuery())


# Tiers


def list_tiers(call: Call) -> TiersAnswer:
    """List the tiers with their shares, and who set them."""
    layers = call.engine.tier_layers()
    found = layers.in_force()
    return TiersAnswer(
        [
            TierSettingAnswer(
                name,
                tier.share,
                tier.fair_by,
                tier.reserve,
                "operator" if name in layers.operator else "code",
                name == found.default,
            )
            for name, tier in islice(found.items(), MAX_TIERS)
        ],
        truncated=len(found) > MAX_TIERS,
    )


def set_tier(call: Call) -> TiersAnswer:
    """Add or change a tier, for the operator. Every process uses it from its next lease on."""
    body: TierBody = call.body
    name = arguments.name("tier", "the name", call.parameters["name"])
    before = call.engine.tier_layers().in_force().get(name, Tier())
    by = body.fair_by or before.fair_by
    reserve = before.reserve if body.reserve is None else body.reserve
    call.engine.tier_set("operator", check_tiers({name: Tier(body.share, by, reserve)}))  # type: ignore[arg-type]  # it is checked there
    return list_tiers(call)


def reset_tier(call: Call) -> TiersAnswer:
    """Remove the operator's setting of a tier; the code's holds again."""
    name = arguments.name("tier", "the name", call.parameters["name"])
    if not call.engine.tier_reset(name):
        raise Problem("not-found", f"tier {name[:80]}: the operator has not set it")
    return list_tiers(call)


# The list of policies, page by page: those of patterns, then those of single topics


PAGE = 1000
"""Topics that are read in one call."""

SIGNATURE_BYTES = 12
SCANNED = 10_000
"""Most policies that one request compares with its pattern."""

Row = tuple[str, str, dict[str, Any]]
"""Pattern or topic, layer, fields."""


class _Place(msgspec.Struct, array_like=True, frozen=True):
    """
    A place in the list: behind a layer's policy of a name. `page`: where the page of topics begins
    that has it, for the engine, or None if it is a pattern's.
    """

    page: str | None = None
    name: str = ""
    layer: str = ""


_read = msgspec.json.Decoder(_Place).decode


def list_policies(call: Call) -> PoliciesAnswer:
    """
    List the policies that a pattern covers: those of patterns, then those of topics.

    A request compares at most 10,000; `next` continues after them.
    """
    query: PoliciesQuery = call.query
    pattern = check_policy_pattern(query.pattern)
    after = _Place() if query.after is None else _place_of(call.engine, query.after)
    found: list[PolicyAnswer] = []
    last = None
    for scanned, (row, place) in enumerate(_rows(call.engine, pattern, after)):
        if len(found) == query.limit or scanned == SCANNED:
            assert last is not None
            return PoliciesAnswer(found, _cursor(call.engine, last), truncated=True)
        last = place
        name, layer, fields = row
        if matches(pattern, name) and call.caller.covers(name):
            found.append(_answer(name, layer, fields))
    return PoliciesAnswer(found, None, truncated=False)


def _rows(engine: FullEngine, pattern: str, after: _Place) -> Iterator[tuple[Row, _Place]]:
    """The policies behind a place, each with its own."""
    if not is_pattern(pattern) and "*" not in pattern:  # of one topic
        rows = [
            (pattern, layer, fields)
            for layer, fields in sources(engine.policy_own(pattern)).items()
        ]
        yield from _behind(rows, None, after)
        return
    if after.page is None:
        rows = [(name, layer, fields) for layer, name, fields in engine.policies().source_rows()]
        yield from _behind(rows, None, after)
    page: str | None = after.page or ""
    while page is not None:
        topics, following = engine.policy_own_list(page, PAGE)
        rows = [
            (topic, layer, fields)
            for topic, layers in topics
            for layer, fields in sources(layers).items()
        ]
        yield from _behind(rows, page, after if after.page == page else _Place())
        page = following


def _behind(rows: list[Row], page: str | None, after: _Place) -> Iterator[tuple[Row, _Place]]:
    rows.sort(key=lambda row: row[:2])
    for row in rows:
        if row[:2] > (after.name, after.layer):
            yield row, _Place(page, row[0], row[1])


def _cursor(engine: FullEngine, place: _Place) -> str:
    content = msgspec.json.encode(place)
    return base64.urlsafe_b64encode(_signature(engine, content) + content).decode()


def _place_of(engine: FullEngine, cursor: str) -> _Place:
    """
    The place of a cursor. It is signed, because its content for a page is the engine's own.
    """
    try:
        signed = base64.urlsafe_b64decode(cursor)
    except (ValueError, binascii.Error):
        signed = b""
    signature, content = signed[:SIGNATURE_BYTES], signed[SIGNATURE_BYTES:]
    if not hmac.compare_digest(signature, _signature(engine, content)):
        raise Problem(
            "bad-request", f"query: after: expected `next` of another page, got {cursor[:80]!r}"
        )
    return _read(content)


def _signature(engine: FullEngine, content: bytes) -> bytes:
    key = shared_key(engine, receipts.KEY)
    return hmac.digest(key, b"policies\0" + content, "sha256")[:SIGNATURE_BYTES]


def _answer(name: str, layer: str, fields: dict[str, Any]) -> PolicyAnswer:
    if layer.startswith(PROGRAM):
        return PolicyAnswer(name, "code", fields, layer.removeprefix(PROGRAM))
    return PolicyAnswer(name, layer, fields)
