"""`Endpoint`: a program's view of the address that a topic's messages are sent to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, get_args

import msgspec

from laneway import units
from laneway.admin import subscriptions as admin_subscriptions
from laneway.arguments import choice, whole
from laneway.awaitable import async_variant
from laneway.engines.base import FullEngine
from laneway.policy import check_pattern
from laneway.push import delivery_log, replay as replays, secret_store, table
from laneway.push.address_guard import of_process
from laneway.push.delivery_log import AttemptPage
from laneway.push.replay import ReplayResult
from laneway.push.table import Record
from laneway.runtime.runtime import Noun, Runtime
from laneway.subscriptions import is_copy, split

if TYPE_CHECKING:
    from laneway.push.trial import TrialResult


class EndpointInfo(msgspec.Struct, kw_only=True):
    """
    An endpoint, without its secrets. Times are Unix seconds, or None.

    - `topic`: whose messages are sent; of a subscription, like `push.acme#crm`.
    - `url`, `description`, `timeout`, `connect_timeout`, `events`, `content`, `template`,
      `dead_on`, `duplicate_ok`, `verify_tls`, `proxy`, `http2`, `allow_private`, `allow_http`,
      `topic_header`, `method`, `log`, `metadata`: its settings.
    - `headers`: by name; the values of those that look like secrets are `"…"`.
    - `secrets`: the ends of the secrets that sign now, the newest first; for ed25519 the public
      keys.
    - `state`: `"healthy"`, `"failing"`, `"busy"` (it asks for pauses), `"open"` (its breaker),
      `"probing"` or `"disabled"`.
    - `disabled`: why it is disabled. `attention`: why somebody should look at it.
    - `failing_since`, `failures`, `last_failure`: since the last success, about.
    - `busy_since`, `busy`: since when it answers 429 or 503, and how many in a row.
    """

    topic: str
    url: str
    state: str
    description: str
    events: list[str]
    content: str
    template: Any
    headers: dict[str, str]
    secrets: list[str]
    timeout: float
    connect_timeout: float
    dead_on: list[int]
    duplicate_ok: bool
    verify_tls: bool
    proxy: str | None
    http2: str
    allow_private: bool
    allow_http: bool
    topic_header: bool
    method: str
    log: str
    metadata: dict[str, str]
    disabled: str | None
    attention: str | None
    failing_since: float | None
    failures: int
    last_failure: str | None
    busy_since: float | None
    busy: int
    created: float
    changed: float
    version: int


STATES: tuple[table.State, ...] = get_args(table.State)


def info_of(topic: str, record: Record) -> EndpointInfo:
    """An endpoint without its secrets."""
    condition = record.condition
    same = {
        name: getattr(record, name)
        for name in EndpointInfo.__struct_fields__
        if name in table.CHECKS and name != "headers"
    }
    return EndpointInfo(
        **same,
        topic=topic,
        url=record.url,
        state=table.state_of(record) or "healthy",
        headers={**record.headers, **dict.fromkeys(record.sealed, "…")},
        secrets=[each.hint for each in table.live_secrets(record, table.now())],
        disabled=record.disabled,
        attention=condition.attention or None,
        failing_since=_seconds(condition.failing_since_us),
        failures=condition.failures,
        last_failure=condition.text or None,
        busy_since=_seconds(condition.busy_since_us),
        busy=condition.busy,
        created=record.created_us / units.SECOND,
        changed=record.changed_us / units.SECOND,
        version=record.version,
    )


def _seconds(moment_us: int) -> float | None:
    return moment_us / units.SECOND if moment_us else None


class Endpoint(Noun):
    """
    The endpoint of one topic: the address of its messages. `app.endpoint(topic)` creates it.

    `secret`: the text of a secret that this call created, `whsec_…`, which is not shown again;
    for an ed25519 key, the public key, `whpk_…`.
    Every method has an async variant with an `a` in front. Raises Refused without an endpoint.
    """

    def __init__(self, runtime: Runtime, topic: str, secret: str | None = None) -> None:
        super().__init__(runtime)
        self.topic = topic
        self.secret = secret

    def __repr__(self) -> str:
        return f"<Endpoint {self.topic}>"  # never the secret

    def info(self) -> EndpointInfo:
        """Read the endpoint's settings and condition."""
        return info_of(self.topic, table.get(self._runtime.engine, self.topic))

    def rotate(self, secret: str | None = None) -> str:
        """
        Add a new secret, `secret` or a random one. The old ones continue to sign for 24 hours.
        Returns the new secret's text, which is not shown again; of `"ed25519"`, which creates a key
        pair, the public key.
        """
        keys, now_us, new = _secrets(self._runtime), table.now(), ""

        def rotated(record: Record) -> Record:
            nonlocal new
            record, new = table.rotated(self.topic, record, keys, now_us, secret)
            return record

        table.change(self._runtime.engine, self.topic, rotated)
        return new

    def disable(self, reason: str = "by hand") -> None:
        """Send nothing more; the topic's messages wait (their ttl runs)."""
        table.disable(self._runtime.engine, self.topic, reason)

    def enable(self, *, now: bool = False) -> None:
        """
        Send again: one message as a probe, then the others.

        Raises Refused if it was enabled, and disabled again, within the last five minutes, unless
        `now` is set, for an endpoint that was repaired.
        """
        table.enable(self._runtime.engine, self.topic, is_repaired=now)

    def remove(self) -> bool:
        """Remove the endpoint. Returns whether it existed. The topic's messages stay and wait."""
        return table.remove(self._runtime.engine, self.topic)

    def test(self) -> TrialResult:
        """
        Send a test request now. It ignores the topic's rate and breaker, but not the address guard.
        Returns what was answered. Raises Refused after six within a minute. Needs the extra `push`.
        """
        from laneway.push.trial import send_test  # noqa: PLC0415  # only this needs it

        return send_test(self._runtime.engine, self._runtime.url, self.topic)

    def attempts(
        self,
        *,
        limit: int = 50,
        after: str | None = None,
        since: float | None = None,
        until: float | None = None,
        result: str | None = None,
        status: int | str | None = None,
        message_id: str | None = None,
        key: str | None = None,
    ) -> AttemptPage:
        """
        Search the delivery log: requests and answers, the newest first.

        Arguments: `limit`: at most 1,000. `after`: `next` of the page before. `since`,
        `until`: Unix seconds. `result`: `"acked"`, `"retried"`, `"dead"`, `"backed_off"` or
        `"released"`. `status`: a status of HTTP, a class such as `"5xx"`, or an error such as
        `"timeout"`. `message_id`, `key`: of the message. Raises UsageError.
        """
        return delivery_log.attempts(
            self._runtime.engine,
            [self.topic],
            limit=limit,
            after=after,
            since=since,
            until=until,
            result=result,
            status=status,
            message_id=message_id,
            key=key,
        )

    def replay(self, message_id: str) -> str:
        """
        Send a message again, with the same `webhook-id`. Returns the id of the new message; a dead
        letter is put back, and keeps its id.

        Raises Refused if it still waits, if its body is no longer kept, or without an endpoint.
        """
        table.get(self._runtime.engine, self.topic)
        return replays.replay_one(self._runtime.engine, self.topic, message_id)

    def replay_many(
        self,
        *,
        since: float | None = None,
        until: float | None = None,
        result: str | None = None,
        limit: int = 1_000,
        rate: float | str | None = None,
        dry_run: bool = False,
        after: str | None = None,
    ) -> ReplayResult:
        """
        Send many messages of the delivery log again: the newest `limit`, in the order in which they
        were sent. Returns how many, and where to continue.

        Arguments: `since`, `until`: of their last attempts, Unix seconds. `result`: only those that
        were `"acked"`, or are `"dead"`. `rate`: messages a second, such as `"10/s"`, or None for
        all immediately. `dry_run`: only count. `after`: `next` of the last call. Raises UsageError,
        and Refused without an endpoint.
        """
        table.get(self._runtime.engine, self.topic)
        return replays.replay_many(
            self._runtime.engine,
            self.topic,
            since=since,
            until=until,
            result=result,
            limit=limit,
            rate=rate,
            dry_run=dry_run,
            after=after,
        )

    atest = async_variant(test)
    aattempts = async_variant(attempts)
    areplay = async_variant(replay)
    areplay_many = async_variant(replay_many)
    ainfo = async_variant(info)
    arotate = async_variant(rotate)
    adisable = async_variant(disable)
    aenable = async_variant(enable)
    aremove = async_variant(remove)


def set_endpoint(
    runtime: Runtime, topic: str, fields: Mapping[str, Any], *, is_trusted: bool = True
) -> Endpoint:
    """
    Create or change a topic's endpoint, or check that it exists if no fields are given.
    `is_trusted`: see `table.changed`.
    """
    engine = runtime.engine
    table.check_endpoint_topic(topic)
    if not fields:
        table.get(engine, topic)
        return Endpoint(runtime, topic)
    (endpoint,) = set_each(runtime, [(topic, fields)], is_trusted=is_trusted)
    return endpoint


def set_each(
    runtime: Runtime, endpoints: Iterable[tuple[str, Mapping[str, Any]]], *, is_trusted: bool = True
) -> Iterator[Endpoint]:
    """
    Create or change many endpoints; yields those that are set before an error is raised.
    `is_trusted`: see `table.changed`.
    """
    engine, secrets = runtime.engine, _secrets(runtime)
    changes = table.set_many(engine, endpoints, secrets, of_process(), is_trusted=is_trusted)
    for topic, secret in changes:
        if is_copy(topic):
            _subscribe(engine, topic)
        yield Endpoint(runtime, topic, secret)


def list_endpoints(
    engine: FullEngine, patterns: Sequence[str], *, limit: int, after: str, state: str | None
) -> tuple[list[EndpointInfo], str | None]:
    """
    A page of the endpoints that one of the patterns covers, by topic, and the topic after which the
    next page begins, or None at the end.
    """
    wanted = None if state is None else choice("endpoints", "state", state, STATES)
    whole("endpoints", "limit", limit, most=10_000)
    found: dict[str, Record] = {}
    following: list[str] = []
    for pattern in patterns:
        page, end = table.listed(
            engine, pattern=check_pattern(pattern), limit=limit, after=after, state=wanted
        )
        found |= page
        following += [end] if end is not None else []
    topics = sorted(found)[:limit]
    is_cut = len(found) > len(topics)
    return [info_of(topic, found[topic]) for topic in topics], (
        topics[-1] if is_cut else min(following, default=None)
    )


def _subscribe(engine: FullEngine, topic: str) -> None:
    """Declare the subscription whose topic has an endpoint, unless a policy does already."""
    base, name = split(topic)
    if all(each.name != name for each in engine.policy_of(base).subscriptions):
        settings = admin_subscriptions.settings_of("shared", None, None)
        for changed, fields in admin_subscriptions.changes(engine, base, name, settings):
            engine.policy_set("code", changed, fields)


def _secrets(runtime: Runtime) -> secret_store.SecretStore:
    return secret_store.of_process(runtime.url)
