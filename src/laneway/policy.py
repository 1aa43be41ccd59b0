"""
Policies: their fields and checks, and which pattern decides.

A policy is stored as the fields that were set (a `dict` of JSON values), by layer and pattern.
`PolicyTable` resolves them for one topic, field by field. The operator's layer overrides the
code's; in a layer the most specific pattern decides. `Resolved` is what engines use: it has every
field, with times in microseconds.
"""

from __future__ import annotations

import math
import re
from collections.abc import (
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,  # the command line reads the hints
)
from typing import Any, Literal, NamedTuple, TypedDict

import msgspec

from laneway import subscriptions, units
from laneway.errors import BadMessage, BadPolicy
from laneway.headers import MAX_COST
from laneway.printable import meant_or_known
from laneway.subscriptions import SEPARATOR, Kind, Subscription, is_unicode
from laneway.tiers import (
    USUAL,
    Tier as Tier,  # noqa: PLC0414  # users import it from here
    Tiers,
)
from laneway.topic_groups import is_group

Layer = Literal["code", "operator"]
"""Who set a policy. The operator's layer overrides the code's."""

OnFull = Literal["refuse", "block", "drop_oldest"]
"""What happens to a publish above a backlog limit."""

MAX_STEMS = 20_000
"""Most topic prefixes for which a `PolicyTable` caches the patterns that cover them."""

MAX_TOPIC_BYTES = 255
MAX_KEY_BYTES = 512
MAX_PARTITIONS = 1024
MAX_BUCKETS = 65_536
MAX_FACTOR = 1000
MAX_DELAYS = 100
MAX_GATES = 8
GATE_SEPARATOR = "\x1f"
"""Between the names of several gates in `Resolved.gate`; no name contains it."""

WEIGHTS = (0.01, 1000.0)
FOREVER = -1
"""
The value of `Resolved.dedupe` if ids stay known forever, and of `time_limit` if unlimited.
"""
KEPT_FOREVER = units.MAX_SECONDS * units.SECOND
"""
The value of `Resolved.dead_ttl` if dead letters are kept forever; engines add it to a timestamp.
"""
DEFAULT_TIME_LIMIT = 30 * 60.0
"""
Seconds that a handler may take in a topic with `serial` or `merge`, where no time limit is set: one
that hangs would block its key forever. RabbitMQ waits equally long for an acknowledgment.
"""
DEFAULT_MOST = 64
"""The largest limit of an adaptive concurrency, if none is set."""
AUTO = -1
"""The value of `Resolved.concurrency` if the limit adapts to the destination."""

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
"""Control characters, 8-bit ones (C1) included: terminals interpret both."""


class Backoff(msgspec.Struct, frozen=True):
    """
    The delay before a message's next attempt: `base` · `factor`^(attempt - 1), at most `cap`.

    - `base`, `cap`: seconds, 0 … 100 years. `factor`: 1 … 1,000.
    - `jitter`: draw the delay evenly between 0 and that value ("full jitter"), so that
      messages that failed together are not retried together.
    - `delays`: instead of the three, the delay after each failure in seconds; the last one repeats.
      With `jitter` each is drawn within ±20 %.
    """

    base: float = 1.0
    factor: float = 2.0
    cap: float = 3600.0
    jitter: bool = True
    delays: tuple[float, ...] = ()

    def delay_us(self, attempt: int, random: float) -> int:
        """
        Return the delay after failure number `attempt` (from 1), in microseconds.

        `random`: a number in 0 … 1, for the jitter.
        """
        if self.delays:
            delay = self.delays[min(attempt, len(self.delays)) - 1]
            return round(delay * (0.8 + 0.4 * random if self.jitter else 1.0) * units.SECOND)
        exponent = min(attempt - 1, 200)
        try:
            delay = min(self.base * self.factor**exponent, self.cap)
        except OverflowError:
            delay = self.cap if self.base else 0.0
        return round(delay * (random if self.jitter else 1.0) * units.SECOND)


def default_burst(rate: float) -> float:
    """
    Return the default burst of a rate (per second): one permit, plus the permits of 50 ms.

    With it, deliveries that are up to 50 ms late do not lower the rate.
    """
    return 1 + rate / 20


COST_SECONDS = 60
"""
Without `max_cost`, a message may cost at most what its rates produce in this time, which is the
longest that other messages wait for it.
"""


def largest_cost(rate: float | None, burst: float, max_cost: int | None) -> int:
    """
    Return the largest cost of a message under a limit: `max_cost` if it is set, else what the rate
    produces in `COST_SECONDS`, or the burst if that is more.
    """
    if max_cost is not None:
        return max_cost
    if rate is None:
        return MAX_COST
    of_rate = math.floor(rate * COST_SECONDS + 1e-9)
    return min(MAX_COST, max(1, of_rate, math.floor(burst)))


class Resolved(msgspec.Struct, frozen=True, gc=False):
    """
    The policy that holds for one topic, with all fields. Times are microseconds, `rate` is per
    second. `FIELDS` explains what each field means.
    """

    rate: float | None = None
    burst: int | None = None
    concurrency: int | None = None
    min_concurrency: int = 1
    max_concurrency: int = DEFAULT_MOST
    weight: float = 1.0
    tier: str = USUAL
    pool: str = "default"
    lease: int = 60 * units.SECOND
    time_limit: int | None = None
    """None: not set, see `seconds_allowed`; `FOREVER`: no limit."""
    retries: int = 16
    backoff: Backoff = Backoff()
    ttl: int | None = None
    on_expiry: str = "dead"
    dead_ttl: int = 14 * 86_400 * units.SECOND
    on_unhandled: int | None = None
    serial: str | None = None
    key_concurrency: int | None = None
    key_rate: float | None = None
    gate: str | None = None
    """The topic's gates; several are joined by `GATE_SEPARATOR`, see `gate_names`."""
    group: str | None = None
    merge: str | None = None
    merge_limit: int = 1000
    window: int | None = None
    debounce: bool = False
    max_wait: int | None = None
    edge: str = "trailing"
    max_body: int = 1 << 20
    max_cost: int | None = None
    dedupe: int | None = None
    max_backlog: int | None = None
    max_backlog_bytes: int | None = None
    on_full: OnFull = "refuse"
    partitions: int = 1
    buckets: int | None = None
    buckets_pattern: str | None = None
    delivery: str = "at_least_once"
    paused: bool = False
    own_backlog: bool = True
    history: bool = False
    subscriptions: tuple[Subscription, ...] = ()
    """The subscriptions that get a copy of the topic's messages, by name."""

    consumed_by: str | None = None
    """
    For a subscription's topic: the pattern's exclusive or failover subscription that it belongs to,
    such as `orders.*#audit`. Its only consumer gets the messages, from the pool of that name.
    """

    names_tier: bool = False
    """Whether a policy names the tier. Otherwise it is the default tier, which may change."""

    # Derived once, because each visit of a lane needs them

    largest_cost: int = MAX_COST
    """What a message of the topic may cost by its policy; its gates may allow less."""
    limited: bool = False
    """Whether the topic has a rate, a concurrency, a gate or limits per key."""
    key_limited: bool = False
    """Whether messages with a key have limits per key."""
    key_burst: float = 1.0
    """The burst of each key's rate: the `default_burst`."""
    key_limits: str = ""
    """The limits per key as text, for comparisons; empty without limits."""
    shared: Gate | None = None
    """
    The rate and concurrency that the topic's partitions share: they use a gate of the topic with
    these limits. None if the topic has one lane, which has the limits itself.
    """
    lane_rate: float = 0.0
    """The rate of each lane; 0 if it is not limited, or `shared`."""
    lane_burst: float = 1.0
    """The burst of that rate, at least 1; by default its `default_burst`."""
    lane_concurrency: int | None = None
    """
    The concurrency of each lane, or None if it is not limited, or `shared`. The maximum if it
    adapts.
    """
    adapts: bool = False
    """Whether the concurrency adapts to the destination."""
    lane_adapts: bool = False
    """Whether the concurrency adapts and each lane has its own limit."""
    is_copied: bool = False
    """Whether a message may have copies, or is not stored itself."""
    limits_backlog: bool = False
    """Whether a publish may be refused because the backlog is full."""
    appends: bool = False
    """
    Whether a message without options is only appended to its topic's only lane: no merging, expiry,
    copies or refusals.
    """

    def ttl_us(self, own: int | None) -> int | None:
        """
        How long a message may wait, or None if it never expires. `own`: the ttl that its publisher
        set, if any.
        """
        return own if own is not None else self.ttl

    def expires_us(self, own_ttl: int | None, since_us: int) -> int | None:
        """When a message expires whose ttl begins at `since_us`, or None if it never does."""
        ttl = self.ttl_us(own_ttl)
        return None if ttl is None else since_us + ttl

    def seconds_allowed(self, own: float | None) -> float | None:
        """
        How long a handler may take in seconds: the shorter one of its own time limit and the
        policy's, or `DEFAULT_TIME_LIMIT` if neither is set and it could block a key. Returns None
        if it is unlimited.
        """
        if self.time_limit is not None and self.time_limit != FOREVER:
            limit = self.time_limit / units.SECOND
            return limit if own is None else min(own, limit)
        is_default = own is None and self.time_limit is None
        may_block_key = self.serial is not None or self.merge is not None
        return DEFAULT_TIME_LIMIT if is_default and may_block_key else own

    def __post_init__(self) -> None:
        derive = msgspec.structs.force_setattr
        derive(
            self,
            "limited",
            self.rate is not None
            or self.concurrency is not None
            or self.gate is not None
            or self.key_concurrency is not None
            or self.key_rate is not None,
        )
        if self.key_concurrency is not None or self.key_rate is not None:
            derive(self, "key_limited", True)  # a value, not an option
            derive(self, "key_burst", default_burst(self.key_rate or 0.0))
            derive(self, "key_limits", f"{self.key_concurrency or 0} {self.key_rate or 0!r}")
        adapts = self.concurrency == AUTO
        if adapts:
            derive(self, "adapts", True)  # a value, not an option
            most = max(self.min_concurrency, self.max_concurrency)
            shared = Gate(self.rate, self.burst, most, least=self.min_concurrency)
        else:
            shared = Gate(self.rate, self.burst, self.concurrency)
        derive(
            self,
            "largest_cost",
            largest_cost(shared.rate, shared.effective_burst, self.max_cost),
        )
        if self.partitions > 1:
            derive(self, "shared", shared if shared.is_limited else None)
        elif shared.is_limited:
            derive(self, "lane_rate", shared.rate or 0.0)
            derive(self, "lane_burst", max(1.0, shared.effective_burst))
            derive(self, "lane_concurrency", shared.concurrency)
            derive(self, "lane_adapts", adapts)
        is_one_lane = self.partitions == 1 and self.buckets is None
        is_copied = bool(self.subscriptions) or not self.own_backlog
        derive(self, "is_copied", is_copied)
        derive(
            self,
            "limits_backlog",
            self.max_backlog is not None or self.max_backlog_bytes is not None,
        )
        derive(
            self,
            "appends",
            is_one_lane
            and self.merge is None
            and self.ttl is None
            and not (self.limits_backlog or is_copied),
        )


def _expected(what: str) -> Callable[[object], BadPolicy]:
    return lambda got: BadPolicy(f"expected {what}, got {got!r}")


def _integer(low: int, high: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise _expected(f"a whole number from {low:,} to {high:,}")(value)
        return value

    return read


def _concurrency(value: Any) -> int | str:
    if value == "auto" and isinstance(value, str):
        return value
    try:
        return _integer(1, 1_000_000)(value)
    except BadPolicy:
        error = _expected('a whole number from 1 to 1,000,000, or "auto"')(value)
        if value == 0 and not isinstance(value, bool):
            error = BadPolicy(f"{error}; `laneway pause` (paused) stops deliveries")
        raise error from None


def _choice(*allowed: str) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if value not in allowed or not isinstance(value, str):
            raise _expected("one of " + ", ".join(f'"{name}"' for name in allowed))(value)
        return value

    return read


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _expected("true or false")(value)
    return value


def _word(value: Any) -> str:
    if (
        not isinstance(value, str)
        or not value
        or len(value) > 100
        or CONTROL.search(value)
        or not is_unicode(value)
    ):
        raise _expected("a name of 1 to 100 characters without control characters")(value)
    return value


def _gate(value: Any) -> str | list[str]:
    """One gate's name, or a list of names; a list of one is that name."""
    if not isinstance(value, (list, tuple)):
        return _word(value)
    names = [_word(name) for name in value]
    if not names or len(names) > MAX_GATES or len(set(names)) < len(names):
        raise _expected(f"a gate's name, or 1 to {MAX_GATES} different names")(value)
    return names if len(names) > 1 else names[0]


def gate_names(gate: str | Sequence[str] | None) -> list[str]:
    """Return the names of a policy's gates: of the field `gate`, or of `Resolved.gate`."""
    if gate is None:
        return []
    return gate.split(GATE_SEPARATOR) if isinstance(gate, str) else list(gate)


def _group(value: Any) -> str:
    if not isinstance(value, str) or not is_group(value):
        raise _expected(
            "a group's name, or a template of the topic's parts counted from 0, such as"
            ' "customer.{1}"'
        )(value)
    return _word(value)


def _duration(low: float = 0.0, *, zero: bool = False) -> Callable[[Any], float]:
    def read(value: Any) -> float:
        number = units.seconds(value)
        if number < low or (number == 0 and not zero) or number > 100 * 365 * 86_400:
            raise _expected(f"a duration above {low:g} seconds")(value)
        return number

    return read


def _weight(value: Any) -> float:
    low, high = WEIGHTS
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise _expected(f"a weight from {low:g} to {high:g}")(value)
    return float(value)


def _serial(value: Any) -> str:
    return "hold" if value is True else _choice("hold", "yield")(value)


def _duration_or_forever(value: Any) -> float | str:
    if value in ("forever", float("inf")):
        return "forever"
    try:
        return _duration()(value)
    except ValueError as error:
        raise BadPolicy(f'{error}; "forever" is allowed, too') from error


def _backlog(value: Any) -> int | str:
    if units.is_size(value):
        units.size(value)
        return str(value)
    try:
        return _integer(1, 1 << 60)(value)
    except BadPolicy:
        what = f'a whole number from 1 to {1 << 60:,}, or a size like "10MB"'
        raise _expected(what)(value) from None


def _backoff(value: Any) -> Any:
    """A `Backoff`, its fields as a mapping, a list of delays, or a fixed delay."""
    if isinstance(value, Backoff):
        backoff = value
    elif isinstance(value, dict):
        try:
            backoff = msgspec.convert(value, Backoff, strict=False)
        except msgspec.ValidationError as error:
            raise BadPolicy(str(error)) from error
        unknown = set(value) - set(Backoff.__struct_fields__)
        if unknown:
            raise _expected("the fields base, factor, cap, jitter, delays")(sorted(unknown))
    elif isinstance(value, (list, tuple)):
        backoff = Backoff(delays=tuple(_duration(zero=True)(delay) for delay in value))
        if not backoff.delays:
            raise _expected("at least one delay")(value)
    else:
        fixed = _duration(zero=True)(value)
        backoff = Backoff(base=fixed, factor=1.0, cap=max(fixed, 0.0), jitter=False)
    if not (
        0 <= backoff.base <= units.MAX_SECONDS
        and 1 <= backoff.factor <= MAX_FACTOR
        and 0 <= backoff.cap <= units.MAX_SECONDS
    ):  # nor NaN
        raise _expected(f"base and cap from 0 to 100 years and a factor from 1 to {MAX_FACTOR:,}")(
            value
        )
    if len(backoff.delays) > MAX_DELAYS or not all(
        0 <= delay <= units.MAX_SECONDS for delay in backoff.delays
    ):
        raise _expected(f"at most {MAX_DELAYS} delays from 0 to 100 years")(value)
    fields: dict[str, Any] = msgspec.to_builtins(backoff)
    if backoff.delays:
        fields["delays"] = list(backoff.delays)  # as JSON has it
    else:
        del fields["delays"]
    return fields


class Field(NamedTuple):
    """
    A field of a policy, and what other parts of the system need to know about it.

    - `check`: checks a value and returns it as a JSON value.
    - `meaning`: may end with "; default X".
    - `unit`: the number's unit; engines store durations in microseconds.
    - `forever`: the engines' value for the duration "forever".
    - `needs`: the field without which it has no meaning.
    - `effect`: `"holds"` if the field may hold back or refuse messages, `"ends"` if it may end
      waiting messages. `laneway explain` names such a field.
    - `in_route`: clients need it to write a message, see `laneway.engines.sharded.routes`.
    - `in_lua`: its names in `policies.lua`; None for its own name; () if the script does not read
      it.
    - `lua_flag`: the script has a flag instead: whether the field has this value.
    """

    check: Callable[[Any], Any]
    meaning: str
    unit: Literal["duration", "rate", "bytes"] | None = None
    forever: int | None = None
    needs: str | None = None
    effect: Literal["holds", "ends"] | None = None
    in_route: bool = False
    in_lua: tuple[str, ...] | None = None
    lua_flag: str | None = None


FIELDS: dict[str, Field] = {
    "rate": Field(
        units.rate,
        'deliveries per second: 50, "50/s", "600/m"',
        unit="rate",
        effect="holds",
        in_lua=("rate", "auto_burst"),
    ),
    "burst": Field(
        _integer(1, 1_000_000),
        "maximum number of deliveries in one burst after a pause; default: 1 + a twentieth of "
        "the rate",
        needs="rate",
        in_lua=("set_burst",),
    ),
    "concurrency": Field(
        _concurrency,
        'maximum number of concurrent leases; "auto": a limit that adapts to the destination',
        effect="holds",
    ),
    "min_concurrency": Field(
        _integer(1, 1_000_000), 'with concurrency "auto": the lowest limit; default 1'
    ),
    "max_concurrency": Field(
        _integer(1, 1_000_000), 'with concurrency "auto": the highest limit; default 64'
    ),
    "weight": Field(_weight, "share of the deliveries in its tier; default 1"),
    "tier": Field(_word, "service class; default: the default tier"),
    "pool": Field(_word, "pool of workers that serves the topic; default default", effect="holds"),
    "lease": Field(
        _duration(),
        "time to settle a lease; in a worker, at most its heartbeat timeout; default 60 s",
        unit="duration",
    ),
    "time_limit": Field(
        _duration_or_forever,
        (
            'the maximum time that a handler may take; a worker then stops it; "forever": no limit;'
            f" default {DEFAULT_TIME_LIMIT / 60:g} min with serial or merge, else no limit"
        ),
        unit="duration",
        forever=FOREVER,
        in_lua=(),
    ),
    "retries": Field(_integer(0, 1_000_000), "attempts after the first; default 16"),
    "backoff": Field(
        _backoff,
        (
            'delay between attempts: a Backoff, its fields, a list like "5s,5m,2h", or a fixed'
            " duration; default 1 s … 1 h, jitter"
        ),
    ),
    "ttl": Field(
        _duration(),
        "how long a message may wait before it expires; default forever",
        unit="duration",
        effect="ends",
        in_route=True,
    ),
    "on_expiry": Field(
        _choice("dead", "drop"),
        "make an expired message a dead letter (dead) or delete it (drop); default dead",
        in_lua=("drop_expired",),
        lua_flag="drop",
    ),
    "on_unhandled": Field(
        _duration(),
        "how long a message waits for a handler before it is a dead letter; default: it waits",
        unit="duration",
        effect="ends",
    ),
    "dead_ttl": Field(
        _duration_or_forever,
        (
            'how long dead letters are kept; "forever": until somebody redrives or drops them;'
            " default 14 days"
        ),
        unit="duration",
        forever=KEPT_FOREVER,
    ),
    "serial": Field(
        _serial,
        (
            'one message of a key at a time, in order: "hold" (or true): a retry keeps its place;'
            ' "yield": the next message of the key may pass it'
        ),
        in_route=True,
    ),
    "key_concurrency": Field(
        _integer(1, 1_000_000),
        "maximum number of concurrent leases of one key; messages without a key are not limited",
        effect="holds",
    ),
    "key_rate": Field(
        units.rate,
        'deliveries of each key per second: 5, "5/s", "60/m"; not with serial',
        unit="rate",
        effect="holds",
    ),
    "gate": Field(
        _gate, "name of a limit that several topics share, or a list of names", effect="holds"
    ),
    "group": Field(
        _group,
        'topics that compete as one: a name, or a template of the topic\'s parts: "customer.{1}"',
        effect="holds",
    ),
    "merge": Field(
        _choice("first", "last", "all"),
        "a message joins a waiting one of its key; the first, the last, or all bodies are kept",
        in_route=True,
    ),
    "merge_limit": Field(
        _integer(2, 100_000),
        'maximum number of bodies that merge="all" collects; default 1,000',
        needs="merge",
    ),
    "window": Field(
        _duration(),
        "a merged message is due this long after the first of its key",
        unit="duration",
        needs="merge",
    ),
    "debounce": Field(_flag, "start the window again with each message of the key", needs="window"),
    "max_wait": Field(
        _duration(),
        "with debounce: a message is due at most this long after the first; default ten windows",
        unit="duration",
        needs="debounce",
    ),
    "edge": Field(
        _choice("trailing", "leading"),
        "trailing: due at the window's end; leading: the first immediately, then at most one in "
        "each window",
        in_lua=("leading",),
        lua_flag="leading",
    ),
    "max_body": Field(
        units.size, "maximum size of a body; default 1 MiB", unit="bytes", in_route=True, in_lua=()
    ),
    "max_cost": Field(
        _integer(1, MAX_COST),
        "maximum cost of a message; default: what its rate produces in 60 s, but at least its "
        "burst",
    ),
    "dedupe": Field(
        _duration_or_forever,
        'how long the id of a finished message is known, and publishing it a duplicate; "forever"',
        unit="duration",
        forever=FOREVER,
    ),
    "max_backlog": Field(
        _backlog,
        'maximum number that may wait: a count, or a size like "10GB"',
        effect="holds",
        in_route=True,
        in_lua=("max_backlog", "max_backlog_bytes"),
    ),
    "on_full": Field(
        _choice("refuse", "block", "drop_oldest"),
        "what a publish above max_backlog does; default refuse",
    ),
    "partitions": Field(
        _integer(1, MAX_PARTITIONS),
        "lanes that share a topic, by the CRC32 of the key, and its limits; default 1",
    ),
    "buckets": Field(
        _integer(1, MAX_BUCKETS),
        "lanes that all topics of the pattern share, by the CRC32 of their names",
    ),
    "delivery": Field(
        _choice("at_least_once", "at_most_once"),
        "at_most_once: acked at delivery and never retried; default at_least_once",
        in_lua=("at_most_once",),
        lua_flag="at_most_once",
    ),
    "paused": Field(_flag, "accept messages and deliver none", effect="holds"),
    "own_backlog": Field(
        _flag,
        "false: only the topic's subscriptions get its messages; default true",
        effect="holds",
        in_route=True,
        in_lua=(),
    ),
    "history": Field(
        _flag,
        "of one topic: app.history.read shows its figures apart from its pattern's; default false",
    ),
}
"""
Every policy field.

The only definition of the fields: validation, units, records of engines, the CLI's help and
docs/reference/policy.md derive from it.
"""


DISABLED = "endpoint_disabled"
"""
A field that is True while the topic's endpoint is disabled. The topic is then paused, whatever its
field `paused` is. Nothing else sets it.
"""


class PolicyOptions(TypedDict, total=False):
    """
    The fields as keyword arguments of `app.policy` and `@app.task`, for type checkers. `FIELDS`
    explains each; None removes a field.
    """

    rate: float | str | None
    burst: int | None
    concurrency: int | Literal["auto"] | None
    min_concurrency: int | None
    max_concurrency: int | None
    weight: float | None
    tier: str | None
    pool: str | None
    lease: units.Duration | None
    time_limit: units.Duration | None
    retries: int | None
    backoff: Backoff | dict[str, Any] | Sequence[units.Duration] | units.Duration | None
    ttl: units.Duration | None
    on_expiry: Literal["dead", "drop"] | None
    dead_ttl: units.Duration | None
    on_unhandled: units.Duration | None
    serial: Literal["hold", "yield"] | bool | None
    key_concurrency: int | None
    key_rate: float | str | None
    gate: str | Sequence[str] | None
    group: str | None
    merge: Literal["first", "last", "all"] | None
    merge_limit: int | None
    window: units.Duration | None
    debounce: bool | None
    max_wait: units.Duration | None
    edge: Literal["trailing", "leading"] | None
    max_body: int | str | None
    max_cost: int | None
    dedupe: units.Duration | None
    max_backlog: int | str | None
    on_full: OnFull | None
    partitions: int | None
    buckets: int | None
    delivery: Literal["at_least_once", "at_most_once"] | None
    paused: bool | None
    own_backlog: bool | None
    history: bool | None


def check_topic(name: str) -> str:
    """
    Return `name` if it is valid as a topic's name, or as that of a subscription's topic
    (`orders#audit`). Raises BadMessage.
    """
    if isinstance(name, str) and SEPARATOR in name:
        base, subscription = subscriptions.split(name)
        try:
            subscriptions.check_name(subscription)
        except BadPolicy as error:
            raise BadMessage(
                f'topic {name!r:.80}: "#" stands between a topic and its subscription, like'
                f" orders#audit; {error}"
            ) from error
        _check_name(base)
        return name  # a topic of any length has subscriptions, by its pattern
    return _check_name(name)


def check_publish_topic(name: str) -> str:
    """Return `name` if messages can be published to a topic of this name. Raises BadMessage."""
    if isinstance(name, str) and SEPARATOR in name:
        raise BadMessage(
            f'topic {name!r:.80}: "#" is not allowed in a topic\'s name, it stands before the name'
            " of a subscription; publish to the topic, and its subscriptions get a copy"
        )
    return _check_name(name)


def _check_name(name: str) -> str:
    if not isinstance(name, str) or not name:
        raise BadMessage(f"topic: expected a name, got {name!r}")
    if CONTROL.search(name):
        raise BadMessage(
            f"topic {name!r:.80}: control characters are not allowed in a topic's name; remove them"
        )
    if len(name) > MAX_TOPIC_BYTES or len(name.encode(errors="replace")) > MAX_TOPIC_BYTES:
        raise BadMessage(
            f"topic {name[:40]!r}…: the name has {len(name.encode(errors='replace')):,} bytes in"
            f" UTF-8, at most {MAX_TOPIC_BYTES} are allowed"
        )
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise BadMessage(
            f"topic {name!r}: the name is not valid Unicode ({error.reason})"
        ) from error
    if name == "*" or name.endswith(".*"):
        raise BadMessage(f"topic {name!r}: this is a pattern; name one topic")
    if "*" in name:  # no policy could name it, so it could not be paused
        raise BadMessage(
            f'topic {name!r}: "*" stands for many topics in patterns; a topic\'s own name has none'
        )
    return name


def check_pattern(pattern: str) -> str:
    """
    Return `pattern` if it is valid: a topic's name, a dotted prefix with `*` at its end, or `*`.

    Raises BadPolicy.
    """
    if pattern == "*":
        return pattern
    if isinstance(pattern, str) and SEPARATOR in pattern and "*" in pattern:
        raise BadPolicy(
            f'policy {pattern!r:.80}: "#" and "*" cannot be combined here; name one subscription,'
            " like orders#audit"
        )
    stem = pattern[:-2] if isinstance(pattern, str) and pattern.endswith(".*") else pattern
    if isinstance(stem, str) and "*" in stem:
        raise BadPolicy(
            f'policy {pattern!r:.80}: "*" may only stand alone or at the end of a dotted prefix,'
            ' like "push.*"'
        )
    try:
        check_topic(stem)
    except BadMessage as error:
        raise BadPolicy(f"policy {pattern!r:.80}: {error}") from error
    return pattern


def check_policy_pattern(pattern: str) -> str:
    """
    Return `pattern` if a policy may have it: a pattern as in `check_pattern`, or all subscriptions
    with one name under a pattern, such as `orders.*#audit`. Raises BadPolicy.
    """
    if not isinstance(pattern, str) or not _is_copies_pattern(pattern):
        return check_pattern(pattern)
    base, name = subscriptions.split(pattern)
    check_pattern(base)
    try:
        subscriptions.check_name(name)
    except BadPolicy as error:
        raise BadPolicy(f"policy {pattern!r:.80}: {error}") from error
    return pattern


def check_fields(pattern: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """
    Check a policy's fields and return them as JSON values. None stays and removes the field.

    Raises BadPolicy, which names the pattern, the field and what was expected.
    """
    check_policy_pattern(pattern)
    checked: dict[str, Any] = {}
    for name, value in fields.items():
        if name.startswith(subscriptions.FIELD):
            checked[name] = _check_subscription(pattern, name, value)
            continue
        if name == DISABLED and value in (True, None) and not is_pattern(pattern):
            checked[name] = value
            continue
        if name not in FIELDS:
            hint = meant_or_known(name[:80], FIELDS)
            raise BadPolicy(f'policy {pattern}: unknown setting "{name:.80}"{hint}')
        if value is None:
            checked[name] = None
            continue
        try:
            checked[name] = FIELDS[name].check(value)
        except (ValueError, TypeError, OverflowError) as error:
            raise BadPolicy(f"policy {pattern}: {name}: {error}") from error
    _check_place(pattern, checked)
    return checked


def _check_place(pattern: str, checked: Mapping[str, Any]) -> None:
    """Raise BadPolicy for a field that has no meaning for this pattern or topic."""
    if checked.get("buckets") is not None and SEPARATOR in pattern:
        raise BadPolicy(
            f"policy {pattern}: buckets fold topics together, and the topics of subscriptions have"
            " lanes of their own; set buckets on a pattern of topics"
        )
    # Older stores may have it for the subscription of one topic, where it has no effect.
    if checked.get("own_backlog") is not None and _is_copies_pattern(pattern):
        raise BadPolicy(
            f"policy {pattern}: own_backlog is a setting of topics, and a subscription always keeps"
            " its copies; set it on a topic or a pattern of topics"
        )
    if checked.get("history") is not None and is_pattern(pattern):
        raise BadPolicy(
            f"policy {pattern}: history counts one topic apart, and a pattern's topics are counted"
            " together in any case; set it on a topic"
        )
    if checked.get("buckets") is not None and not is_pattern(pattern):
        raise BadPolicy(
            f"policy {pattern}: buckets fold many topics together; set them on a pattern like"
            f' "{pattern}.*"'
        )


def _check_subscription(pattern: str, field: str, value: Any) -> dict[str, Any] | None:
    if value is None:
        return None
    name = field.removeprefix(subscriptions.FIELD)
    if SEPARATOR in pattern:
        raise BadPolicy(
            f"subscription {name} of {pattern}: a subscription has no subscriptions; subscribe to"
            f" {subscriptions.base_of(pattern)}"
        )
    try:
        return subscriptions.check_field(field, value)
    except (BadPolicy, ValueError, OverflowError) as error:
        raise BadPolicy(f"subscription {name} of {pattern}: {error}") from error


def check_changes(
    changes: Iterable[tuple[str, Mapping[str, Any]]],
) -> list[tuple[str, dict[str, Any]]]:
    """Check (pattern, fields) pairs as `check_fields` does; equal fields are checked once."""
    checked: dict[Any, dict[str, Any]] = {}
    found = []
    for pattern, fields in changes:
        try:
            key = (
                is_pattern(pattern),
                SEPARATOR in pattern,
                *((name, value, type(value)) for name, value in fields.items()),
            )
            known = checked.get(key)
        except TypeError:  # a value that cannot be a key
            found.append((pattern, check_fields(pattern, fields)))
            continue
        if known is None:
            known = checked[key] = check_fields(pattern, fields)
        else:
            check_policy_pattern(pattern)
        found.append((pattern, known))
    return found


def prefixes(topic: str) -> list[str]:
    """
    Return the topic and the patterns that match it, the most specific first. For a subscription's
    topic, the patterns that name the subscription, such as `orders.*#audit`, precede those of its
    source topic.
    """
    base, separator, name = topic.partition(SEPARATOR)
    found: list[str] = []
    end = len(base)
    while (end := base.rfind(".", 0, end)) >= 0:
        found.append(base[: end + 1] + "*")
    found.append("*")
    if separator:
        return [topic, *(subscriptions.topic_of(pattern, name) for pattern in found), *found]
    return [topic, *found]


def handling_patterns(topic: str) -> list[str]:
    """
    Return the patterns by which a handler gets the topic's messages, the most specific first. For a
    subscription's topic, patterns with the subscription's name, such as `orders.*#audit`, precede
    those for any subscription, such as `orders.*#*`.
    """
    if SEPARATOR not in topic:
        return prefixes(topic)
    base, name = subscriptions.split(topic)
    patterns = prefixes(base)
    return [
        subscriptions.topic_of(pattern, each)
        for each in (name, subscriptions.ANY)
        for pattern in patterns
    ]


def level_of(topic: str) -> str:
    """Return the pattern of the topics on the same level."""
    stem, dot, _ = topic.rpartition(".")
    return f"{stem}.*" if dot else topic


def matches(pattern: str, topic: str) -> bool:
    """
    Return whether the pattern covers the topic. A pattern of topics also covers their
    subscriptions. A pattern such as `orders.*#audit` covers only the subscriptions of that name.
    """
    if pattern in ("*", topic):
        return True
    if pattern.endswith(".*"):
        return topic.startswith(pattern[:-1])
    if not _is_copies_pattern(pattern) or SEPARATOR not in topic:
        return False
    covering, name = subscriptions.split(pattern)
    base, its_name = subscriptions.split(topic)
    return name == its_name and matches(covering, base)


Layers = dict[str, dict[str, Any]]
"""
The fields that are set for one pattern or topic, by layer.

`"operator"` and `"code"` decide. If programs have declared policies, each program has a layer
`program:NAME`, and `"run"` contains the fields that were set at run time. `"code"` is then the
union of these; `"run"` overrides the declarations.
"""

PROGRAM = "program:"
"""
The prefix of the layers of programs. `program:` itself is the layer of code that declares policies
without a program's name.
"""

RUN = "run"


def is_pattern(name: str) -> bool:
    """Return whether the name is a pattern that covers many topics, not a single topic's name."""
    return name == "*" or (
        isinstance(name, str) and (name.endswith(".*") or _is_copies_pattern(name))
    )


def _is_copies_pattern(name: str) -> bool:
    """Whether it stands for the subscriptions of many topics, such as `orders.*#audit`."""
    return "*#" in name


def change_layers(name: str, layers: Layers, layer: str, fields: Mapping[str, Any]) -> Layers:
    """
    Return the layers of a pattern or topic after a change of one layer.

    `layer`: `"operator"`, `"code"` (set at run time) or `program:NAME`. `fields`: checked; None
    removes a field. Raises BadPolicy if another program declares another value.
    """
    if DISABLED in fields and layer != "code":
        raise BadPolicy(
            f"policy {name}: {DISABLED} is no setting; `laneway endpoint enable` and `disable`"
            " change it"
        )
    stood = sources(layers)
    if layer.startswith(PROGRAM):
        _refuse_another_program(name, stood, layer, fields)
        stood[PROGRAM] = {
            field: value for field, value in stood.get(PROGRAM, {}).items() if field not in fields
        }
    stood[layer] = {
        field: value
        for field, value in {**stood.get(layer, {}), **fields}.items()
        if value is not None
    }
    return with_code({where: values for where, values in stood.items() if values})


def _refuse_another_program(
    name: str, layers: Layers, layer: str, fields: Mapping[str, Any]
) -> None:
    for other, theirs in layers.items() if layer != PROGRAM else ():
        if not other.startswith(PROGRAM) or other in (PROGRAM, layer):
            continue
        for field, value in fields.items():
            if value is not None and field in theirs and theirs[field] != value:
                program = f'"{layer[len(PROGRAM) :]}"'
                both = f"{theirs[field]!r}, {program} {value!r}"
                raise BadPolicy(
                    f'policy {name}: {field}: the program "{other[len(PROGRAM) :]}" declares'
                    f" {f'another one than {program}' if isinstance(value, dict) else both};"
                    " let one of them declare it, or both the same"
                )


def sources(layers: Layers) -> Layers:
    """Return the layers as they were set: "code" contains only what was set at run time."""
    if not any(layer.startswith(PROGRAM) for layer in layers):
        return dict(layers)
    found = {layer: fields for layer, fields in layers.items() if layer not in ("code", RUN)}
    return {**found, "code": layers[RUN]} if RUN in layers else found


def with_code(found: Layers) -> Layers:
    """Return the layers as they are stored; the opposite of `sources`."""
    programs = sorted(layer for layer in found if layer.startswith(PROGRAM))
    if not programs:
        return found
    run = found.get("code", {})
    code = {field: value for layer in programs for field, value in found[layer].items()} | run
    kept = {layer: fields for layer, fields in found.items() if layer != "code"}
    return {**kept, "code": code, **({RUN: run} if run else {})}


def owner(layers: Layers, field: str) -> str | None:
    """Return the program that declares a field, or None if it was set at run time or not at all."""
    if field in layers.get(RUN, {}):
        return None
    declaring = [layer for layer in layers if layer.startswith(PROGRAM) and field in layers[layer]]
    return max(declaring)[len(PROGRAM) :] if declaring else None


def own_rows(page: Iterable[tuple[str, Layers]]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield (layer, topic, fields) for each layer of each topic."""
    for topic, layers in page:
        for layer in sorted(layers):
            yield layer, topic, layers[layer]


def engine_values(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Convert checked fields to the units of `Resolved`: microseconds, bytes."""
    values = dict(fields)
    for name, value in fields.items():
        field = FIELDS.get(name)
        if field is not None and field.unit == "duration":
            values[name] = (
                field.forever if value == "forever" else max(1, round(value * units.SECOND))
            )
    if "backoff" in values:
        values["backoff"] = msgspec.convert(values["backoff"], Backoff, strict=False)
    if values.get("concurrency") == "auto":
        values["concurrency"] = AUTO
    if "gate" in values:
        values["gate"] = GATE_SEPARATOR.join(gate_names(values["gate"]))
    if isinstance(values.get("max_backlog"), str):
        values["max_backlog_bytes"] = units.size(values.pop("max_backlog"))
    return values


class PolicyTable:
    """
    The policies of a namespace's patterns; resolves the policy of a topic.

    Topics that are covered by the same patterns share one `Resolved`, so each of a million topics
    costs a few lookups and no memory. Engines store the policies of single topics themselves;
    `own_of` reads one. A table may contain policies of single topics too, like those of patterns.
    """

    def __init__(
        self, tiers: Mapping[str, Tier] | None = None, own_of: Callable[[str], Layers] | None = None
    ) -> None:
        self.tiers = tiers if isinstance(tiers, Tiers) else Tiers(tiers) if tiers else Tiers.usual()
        self._layers: dict[str, Layers] = {}
        self._own_of = own_of
        self._resolved: dict[tuple[tuple[str, ...], str], Resolved] = {}
        """By covering patterns and `copy_kind`."""
        self._stems: dict[str, tuple[str, ...]] = {}
        """
        A cache: the patterns that cover the topics with a dotted prefix, or their subscriptions
        with one name.
        """
        self._consumed: frozenset[str] | None = None
        """A cache: the names that patterns declare as exclusive or failover subscriptions."""

    def load(self, rows: Iterable[tuple[str, str, dict[str, Any]]]) -> None:
        """Replace all policies by (layer, pattern, fields) rows of checked fields."""
        self._layers = {}
        for layer, pattern, fields in rows:
            self._layers.setdefault(pattern, {})[layer] = fields
        self._forget()

    def copy(self) -> PolicyTable:
        """Return an independent copy of the table."""
        copy = PolicyTable(self.tiers)
        copy._layers = dict(self._layers)
        return copy

    def all_layers(self) -> dict[str, Layers]:
        """Return the fields that are set for each pattern and topic."""
        return dict(self._layers)

    def differences(self, before: PolicyTable) -> list[tuple[str, str, dict[str, Any] | None]]:
        """
        Return the (layer, pattern, fields) that differ from another table, sorted. The value of a
        field that is no longer set is None.
        """
        old, new = before._layers, self._layers
        names = {name for name, layers in old.items() if new.get(name) is not layers}
        names.update(name for name in new if name not in old)
        return sorted(
            (
                (layer, name, self.layers(name).get(layer))
                for name in names
                for layer in before.layers(name).keys() | self.layers(name).keys()
                if before.layers(name).get(layer) != self.layers(name).get(layer)
            ),
            key=lambda row: row[:2],
        )

    def put(self, layer: str, pattern: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        """
        Set checked fields (None removes one). Returns the fields that the pattern now sets in that
        layer.
        """
        layers = change_layers(pattern, self._layers.get(pattern, {}), layer, fields)
        self.add(pattern, layers)
        return sources(layers).get(layer, {})

    def add(self, name: str, layers: Layers) -> None:
        """Replace all layers of a pattern or topic; empty layers remove it."""
        if layers:
            self._layers[name] = layers
        else:
            self._layers.pop(name, None)
        self._forget()

    def _forget(self) -> None:
        self._resolved.clear()
        self._stems.clear()
        self._consumed = None

    def forget_resolved(self) -> None:
        """Clear the cache of resolved policies, after the tiers changed."""
        self._resolved.clear()

    def rows(self) -> list[tuple[str, str, dict[str, Any]]]:
        """Return (layer, pattern, fields) of the layers "operator" and "code", sorted."""
        return [row for row in self.stored_rows() if row[0] in ("operator", "code")]

    def stored_rows(self) -> list[tuple[str, str, dict[str, Any]]]:
        """Return (layer, pattern, fields) of all layers, as stores keep them, sorted."""
        found = [
            (layer, pattern, dict(fields))
            for pattern, layers in self._layers.items()
            for layer, fields in layers.items()
        ]
        return sorted(found, key=lambda row: row[:2])

    def source_rows(self) -> list[tuple[str, str, dict[str, Any]]]:
        """
        Return (layer, pattern, fields) as they were set: each program's layer, and "code" for
        fields that were set at run time.
        """
        found = [
            (layer, pattern, fields)
            for pattern, layers in self._layers.items()
            for layer, fields in sources(layers).items()
        ]
        return sorted(found, key=lambda row: row[:2])

    def layers(self, pattern: str) -> Layers:
        """Return the fields that are set for exactly this pattern or topic."""
        return self._layers.get(pattern, {})

    def names_under(self, pattern: str) -> list[str]:
        """Return the pattern, and the patterns and topics in the policy table that it covers."""
        if pattern.endswith(".*"):
            stem = pattern[:-1]
            return sorted({pattern, *(name for name in self._layers if name.startswith(stem))})
        return sorted({pattern, *(name for name in self._layers if matches(pattern, name))})

    def subscription_patterns(self) -> set[str]:
        """
        Return the patterns, such as `orders.*#audit`, for which a subscription's policy may differ
        from its topic's: each pattern of topics, combined with each subscription name that has a
        policy by pattern, or a single consumer, at this pattern or a wider one. They may have no
        policy themselves.
        """
        names: dict[str, set[str]] = {}
        for pattern, layers in self._layers.items():
            if _is_copies_pattern(pattern):
                base, name = subscriptions.split(pattern)
                names.setdefault(base, set()).add(name)
            elif is_pattern(pattern):
                names.setdefault(pattern, set()).update(_consumed_in(layers))
        return {
            subscriptions.topic_of(pattern, name)
            for pattern in (names if any(names.values()) else ())
            for above in prefixes(pattern)
            for name in names.get(above, ())
        }

    def covering(self, topic: str) -> tuple[str, ...]:
        """Return the patterns with a policy that cover the topic, the most specific first."""
        if not self._layers:
            return ()
        base, separator, name = topic.partition(SEPARATOR)
        stem = base.rpartition(".")[0] + separator + name
        patterns = self._stems.get(stem)
        if patterns is None:
            if len(self._stems) >= MAX_STEMS:
                self._stems.clear()
            patterns = self._stems[stem] = tuple(
                pattern for pattern in prefixes(topic)[1:] if pattern in self._layers
            )
        return (topic, *patterns) if topic in self._layers and topic not in patterns else patterns

    def pattern_of(self, topic: str) -> str:
        """
        Return the most specific pattern that covers the topic or the subscription's topic, or `"*"`
        if none does.
        """
        names = self.covering(subscriptions.base_of(topic))
        return next((name for name in names if is_pattern(name)), "*")

    def copy_kind(self, topic: str) -> str:
        """
        Return what a topic's policy depends on besides its covering patterns: "" for a topic; for a
        subscription's topic, the exclusive or failover subscription of patterns that it belongs to,
        if any.
        """
        _, separator, name = topic.partition(SEPARATOR)
        return name if separator and name in self._consumed_names() else separator

    def _consumed_names(self) -> frozenset[str]:
        if self._consumed is None:
            self._consumed = frozenset(
                name
                for pattern, layers in self._layers.items()
                if is_pattern(pattern)
                for name in _consumed_in(layers)
            )
        return self._consumed

    def pattern_consumers(self) -> dict[str, Kind]:
        """
        Return the exclusive and failover subscriptions of patterns, such as `orders.*#audit`, with
        their kinds.
        """
        found: dict[str, Kind] = {}
        for name in sorted(self._consumed_names()):
            for pattern in filter(is_pattern, self._layers):
                consumption = self.consumption(pattern, name)
                if consumption is not None and consumption[1] == pattern:
                    found[subscriptions.topic_of(pattern, name)] = consumption[0]
        return found

    def consumption(self, topic: str, name: str) -> tuple[Kind, str] | None:
        """
        Return the kind and the pattern of the exclusive or failover subscription of this name whose
        pattern covers a topic or pattern, or None if none does.
        """
        if name not in self._consumed_names():
            return None
        patterns = [pattern for pattern in self.covering(topic) if is_pattern(pattern)]
        declared = self._merge(self._sets(patterns)).get(subscriptions.FIELD + name)
        if declared is None or declared[0]["kind"] == "shared":
            return None
        return declared[0]["kind"], declared[2]

    def resolve(self, topic: str) -> Resolved:
        """
        Return the policy that holds for a topic.

        If a change of a pattern leaves a topic's fields without the fields that they need, they
        have no effect (docs/specification.md, "Changes"). A tier that does not exist becomes the
        default.
        """
        own = self._own_of(topic) if self._own_of is not None else None
        if own:
            return self.resolve_own(topic, own)
        return self._of(self.covering(topic), topic)

    def resolve_patterns(self, topic: str) -> Resolved:
        """Return the policy that a topic would have without a policy of its own."""
        patterns = tuple(pattern for pattern in self.covering(topic) if is_pattern(pattern))
        return self._of(patterns, topic)

    def _of(self, covering: tuple[str, ...], topic: str) -> Resolved:
        key = (covering, self.copy_kind(topic))
        found = self._resolved.get(key)
        if found is None:
            own_name = bool(covering) and not is_pattern(covering[0])
            found = self._resolved[key] = self._build(
                topic, self._merge(self._sets(covering)), own_name=own_name
            )
        return found

    def resolve_own(self, topic: str, own: Layers) -> Resolved:
        """
        Return the policy of a topic with these layers of its own. The answer is not cached.
        """
        merged = self._merge(self._sets_with(topic, own))
        return self._build(topic, merged, own_name=True)

    def check(self, name: str, own: Layers | None = None, *, as_stored: bool = False) -> Resolved:
        """
        Return the policy of a pattern, or of a topic with these layers of its own.

        Raises BadPolicy for a tier that does not exist, too many subscriptions, and fields that
        contradict each other, unless they come from another store (`as_stored`).
        """
        sets = self._sets_with(name, own) if own else self._sets(self.covering(name))
        merged = self._merge(sets)
        own_name = bool(sets) and not is_pattern(sets[0][0])
        policy = self._build(name, merged, own_name=own_name)
        self._check_known(name, policy, merged)
        if not as_stored:
            self._check_together(name, policy, merged, own_name=own_name)
        return policy

    def why(self, topic: str, own: Layers | None = None) -> dict[str, tuple[Any, str, str]]:
        """
        Return (value, layer, pattern) for each field that is set, by field.

        `own`: layers of the topic to use instead of the stored ones.
        """
        if own is None and self._own_of is not None:
            own = self._own_of(topic)
        found = self._merge(
            self._sets_with(topic, own) if own else self._sets(self.covering(topic))
        )
        base, name = subscriptions.split(topic)
        if name and (consumption := self.consumption(base, name)) is not None:
            pool = subscriptions.consumer_pool(subscriptions.topic_of(consumption[1], name))
            found["pool"] = (pool, *found[subscriptions.FIELD + name][1:])
        return found

    def owner(self, pattern: str, field: str) -> str | None:
        """
        Return the program that declares a field of the pattern or topic, or None if none does.
        """
        layers = self._layers.get(pattern) or (
            self._own_of(pattern) if self._own_of is not None and not is_pattern(pattern) else {}
        )
        return owner(layers, field)

    def _sets(self, covering: Iterable[str]) -> list[tuple[str, Layers]]:
        return [(pattern, self._layers[pattern]) for pattern in covering]

    def _sets_with(self, topic: str, own: Layers) -> list[tuple[str, Layers]]:
        return [
            (topic, own),
            *self._sets(pattern for pattern in self.covering(topic) if pattern != topic),
        ]

    @staticmethod
    def _merge(sets: list[tuple[str, Layers]]) -> dict[str, tuple[Any, str, str]]:
        merged: dict[str, tuple[Any, str, str]] = {}
        for layer in ("operator", "code"):
            for pattern, layers in sets:
                for name, value in layers.get(layer, {}).items():
                    merged.setdefault(name, (value, layer, pattern))
        return merged

    def _build(
        self, topic: str, merged: dict[str, tuple[Any, str, str]], *, own_name: bool
    ) -> Resolved:
        is_copy = SEPARATOR in topic
        values: dict[str, Any] = {name: value for name, (value, _, _) in merged.items()}
        declared = sorted(name for name in values if name.startswith(subscriptions.FIELD))
        read = [self._subscription(name, values.pop(name), merged[name][2]) for name in declared]
        if is_copy:
            values.pop("own_backlog", None)
            base, name = subscriptions.split(topic)
            if (consumption := self.consumption(base, name)) is not None:
                # No policy can take its messages away from the single consumer.
                values["consumed_by"] = subscriptions.topic_of(consumption[1], name)
                values["pool"] = subscriptions.consumer_pool(values["consumed_by"])
        elif read:
            values["subscriptions"] = tuple(read)
        if values.pop(DISABLED, None):
            values["paused"] = True
        _drop_ineffective(values)
        values = engine_values(values)
        if "buckets" in values:
            if own_name or is_copy:
                del values["buckets"]
            else:
                values["buckets_pattern"] = merged["buckets"][2]
        names_tier = values.get("tier") in self.tiers
        if not names_tier:
            values["tier"] = self.tiers.default
        return Resolved(**values, names_tier=names_tier)

    def _subscription(self, field: str, value: dict[str, Any], declared_by: str) -> Subscription:
        """
        A subscription as it is declared. A topic's own subscription gets the kind of the pattern's
        subscription with that name, if that one has a single consumer.
        """
        found = subscriptions.read(field, value)
        if is_pattern(declared_by):
            return found
        consumption = self.consumption(declared_by, found.name)
        return msgspec.structs.replace(found, kind=consumption[0]) if consumption else found

    def _check_known(
        self, name: str, policy: Resolved, merged: dict[str, tuple[Any, str, str]]
    ) -> None:
        """Raise BadPolicy for a tier that does not exist, and for too many subscriptions."""
        tier, _, declared_by = merged.get("tier", (None, "", name))
        if tier is not None and tier not in self.tiers:
            raise BadPolicy(
                f'policy {declared_by}: tier "{tier}" does not exist; the namespace has'
                f" {', '.join(self.tiers)}"
            )
        if len(policy.subscriptions) > subscriptions.MAX_SUBSCRIPTIONS:
            raise BadPolicy(
                f"policy {name}: expected at most {subscriptions.MAX_SUBSCRIPTIONS:,} subscriptions"
                f" of a topic, got {len(policy.subscriptions):,}; remove some, or let their readers"
                " share one"
            )

    def _check_together(
        self,
        name: str,
        policy: Resolved,
        merged: dict[str, tuple[Any, str, str]],
        *,
        own_name: bool,
    ) -> None:
        values = {field: value for field, (value, _, _) in merged.items()}

        def refuse(field: str, text: str) -> BadPolicy:
            return BadPolicy(f"policy {merged[field][2] if field in merged else name}: {text}")

        for field in ("min_concurrency", "max_concurrency"):
            if field in values and not policy.adapts:
                raise refuse(
                    field, f'"{field}" has no meaning without concurrency="auto"; set both'
                )
        least, largest = (values.get(f"{end}_concurrency") for end in ("min", "max"))
        if policy.adapts and (least or 1) > (largest or DEFAULT_MOST):
            raise refuse(
                "min_concurrency",
                f"min_concurrency {least} is above max_concurrency {largest or DEFAULT_MOST};"
                " lower the first or raise the second",
            )
        if "buckets" in values and not own_name and policy.partitions > 1:
            raise refuse("buckets", "buckets and partitions cannot be combined; remove one of them")
        for field, needed in _needs(values):
            if values[field] is not False and not values.get(needed):
                raise refuse(field, f'"{field}" has no meaning without "{needed}"; set both')
        if values.get("edge") == "leading" and not values.get("window"):
            raise refuse("edge", '"edge" has no meaning without "window"; set both')
        if values.get("edge") == "leading" and values.get("debounce"):
            raise refuse(
                "edge", 'edge="leading" and debounce contradict each other; remove one of them'
            )
        for field in KEY_LIMITS:
            if field in values and "serial" in values:
                raise refuse(
                    field,
                    f'"{field}" and "serial" cannot be combined: serial delivers one message of a'
                    " key at a time; remove one of them",
                )
        if values.get("delivery") == "at_most_once" and values.get("serial") == "yield":
            raise refuse(
                "serial", 'serial="yield" is about retries, and at_most_once has none; use "hold"'
            )


def _consumed_in(layers: Layers) -> set[str]:
    """The names that are declared there as exclusive or failover subscriptions."""
    return {
        field.removeprefix(subscriptions.FIELD)
        for layer in ("operator", "code")
        for field, value in layers.get(layer, {}).items()
        if field.startswith(subscriptions.FIELD) and value.get("kind", "shared") != "shared"
    }


KEY_LIMITS = ("key_concurrency", "key_rate")
"""The limits per key; `serial` is stronger."""


def _needs(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The fields that are set and have no meaning without another field, in their order."""
    return [
        (name, field.needs)
        for name, field in FIELDS.items()
        if field.needs is not None and name in values
    ]


def _drop_ineffective(values: dict[str, Any]) -> None:
    """
    Remove or adapt fields that contradict each other. Each was valid when it was set; a later
    change of another pattern made the combination invalid.
    """
    for field, needed in _needs(values):
        if not values.get(needed):
            del values[field]
    if values.get("edge") == "leading" and (not values.get("window") or values.get("debounce")):
        del values["edge"]
    if values.get("delivery") == "at_most_once" and values.get("serial") == "yield":
        values["serial"] = "hold"
    if "serial" in values:
        for field in KEY_LIMITS:
            values.pop(field, None)
    if values.get("concurrency") == "auto":
        if "min_concurrency" in values or "max_concurrency" in values:
            least = values.get("min_concurrency", 1)
            values["max_concurrency"] = max(values.get("max_concurrency", DEFAULT_MOST), least)
        return
    values.pop("min_concurrency", None)
    values.pop("max_concurrency", None)


def _limit(name: str, check: Callable[[Any], Any], value: Any) -> Any:
    """Return the checked value of a limit, or None. Raises ValueError, which names the limit."""
    try:
        return None if value is None else check(value)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{name}: {error}") from error


class Gate(msgspec.Struct, frozen=True):
    """
    A limit that several topics share: a gate, or the settings of a topic group.

    `rate`: deliveries per second, or None if unlimited. `burst`: permits available together after a
    pause; default: `default_burst`. `concurrency`: maximum number of concurrent leases, or None if
    unlimited. `weight`: for topic groups only; default 1. `max_cost`: for gates only; default: see
    `largest_cost`.

    Only for the limits that a topic's partitions share: `least`: the concurrency adapts, between
    this and `concurrency`. `out_of`: the whole limit at the time it was divided, if `concurrency`
    is a shard's part of it; else None.

    Only for a shard's part: `start`, `finish`, `left`: see `laneway.engines.sharded.grants.Grant`.
    """

    rate: float | None = None
    burst: float | None = None
    concurrency: int | None = None
    weight: float | None = None
    least: int | None = None
    out_of: int | None = None
    max_cost: int | None = None
    start: float = 0.0
    finish: float = 0.0
    left: int | None = None

    @staticmethod
    def of(
        name: str,
        rate: float | str | None,
        burst: int | None,
        concurrency: int | None,
        max_cost: int | None = None,
    ) -> Gate:
        """Create a gate from checked arguments of `app.gate`. Raises BadPolicy."""
        try:
            if "*" in _word(name):
                raise _expected('the name of one gate, without "*"')(name)
            return Gate(
                _limit("rate", units.rate, rate),
                _limit("burst", _integer(1, 1_000_000), burst),
                _limit("concurrency", _integer(1, 1_000_000), concurrency),
                max_cost=_limit("max_cost", _integer(1, MAX_COST), max_cost),
            )
        except (ValueError, TypeError) as error:
            raise BadPolicy(f"gate {name}: {error}") from error

    @staticmethod
    def of_group(
        name: str,
        rate: float | str | None,
        burst: int | None,
        concurrency: int | None,
        weight: float | None,
    ) -> Gate:
        """Create a topic group's settings from arguments of `app.topic_group`. Raises BadPolicy."""
        try:
            if (
                not isinstance(name, str)
                or not name
                or CONTROL.search(name)
                or not is_unicode(name)
            ):
                raise _expected("a group's name")(name)
            if burst is not None and rate is None:
                raise BadPolicy('"burst" has no meaning without "rate"; set both')
            return Gate(
                _limit("rate", units.rate, rate),
                _limit("burst", _integer(1, 1_000_000), burst),
                _limit("concurrency", _integer(1, 1_000_000), concurrency),
                _limit("weight", _weight, weight),
            )
        except (ValueError, TypeError) as error:
            raise BadPolicy(f"topic group {name}: {error}") from error

    def over(self, other: Gate) -> Gate:
        """Return these settings, completed with those of `other`."""
        rated = self if self.rate is not None else other
        return Gate(
            rated.rate,
            rated.burst,
            self.concurrency if self.concurrency is not None else other.concurrency,
            self.weight if self.weight is not None else other.weight,
        )

    @property
    def is_limited(self) -> bool:
        """Whether it has a rate or a concurrency."""
        return self.rate is not None or self.concurrency is not None

    @property
    def effective_burst(self) -> float:
        """The burst that is set, or `default_burst`."""
        return self.burst if self.burst is not None else default_burst(self.rate or 0.0)

    @property
    def largest_cost(self) -> int:
        """The maximum cost of a message."""
        return largest_cost(self.rate, self.effective_burst, self.max_cost)
