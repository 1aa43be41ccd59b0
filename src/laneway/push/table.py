"""
The table of endpoints: one record for each topic, in the store.

A record is read again with each batch of messages, so a change acts on the next attempt. Settings
are changed by compare and swap, and so is the condition, which senders write.
"""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, Literal, cast, get_args

import msgspec

from laneway import arguments, units
from laneway.engines.base import FullEngine, Records
from laneway.errors import BadPolicy, Refused, UsageError
from laneway.policy import DISABLED, check_topic
from laneway.printable import meant_or_known
from laneway.push import payloads, secret_store, signature
from laneway.push.address_guard import Guard, check_url, split_url
from laneway.push.notifications import notify
from laneway.subscriptions import SEPARATOR

KIND: Literal["endpoint"] = "endpoint"
STATE_KIND: Literal["endpoint_state"] = "endpoint_state"
PRESENT = b"1"
MAX_COUNTED = 10_000
"""A count of endpoints in a state ends there."""

State = Literal["healthy", "failing", "busy", "open", "probing", "disabled"]

PAGE = 500
"""Records that one call reads or changes."""

LOOKED_AT = 20
"""Endpoints for which a worker that becomes ready looks whether it has their keys."""

OLD_SECRET_US = 24 * 3_600 * units.SECOND
"""How long a secret signs along with the one that replaced it."""

MAX_SECRETS = 8
MAX_HEADERS, MAX_HEADER_BYTES = 50, 8_192
MAX_EVENTS, MAX_EVENT = 100, 200
MAX_DESCRIPTION, MAX_METADATA = 1_000, 4_096
MAX_TIMEOUT = 300.0
AGAIN_SECONDS = 300
"""An endpoint that was enabled and disabled is not enabled again within this number of seconds."""

OWN_HEADERS = frozenset(
    {"host", "content-length", "content-type", "connection", "transfer-encoding", "expect"}
    | {"keep-alive", "te", "trailer", "upgrade", "idempotency-key", "accept-encoding"}
)
"""Headers of a request that an endpoint cannot set, besides `webhook-…`."""

SECRET_WORDS = ("auth", "cookie", "key", "pass", "secret", "signature", "token", "credential")
"""A header whose name contains one of these has a secret value."""

_HEADER_NAME = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]{1,100}")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")


class Secret(msgspec.Struct, omit_defaults=True, array_like=True):
    """
    A secret: as it is stored, what is shown of it, how long it signs (µs; 0: for good), and whether
    it is an ed25519 key.
    """

    stored: str
    hint: str
    from_us: int = 0
    until_us: int = 0
    is_ed25519: bool = False


class Condition(msgspec.Struct, omit_defaults=True):
    """
    What senders know of an endpoint. Times are microseconds since 1970; 0: never, or not now.

    - `failing_since_us`: the first failure since the last success. `failures`: attempts that failed
      since then, about. `failed_us`: the last one. `text`: the last answer.
    - `opened_us`: when the breaker opened. `opens`: how often it opened or a probe failed since the
      last success.
    - `attention`: why somebody should look at the endpoint.
    - `warned_us`: when the warning was sent that it will be disabled.
    - `probing_us`: it was enabled again, and nothing has succeeded since.
    - `busy_since_us`, `busy`: when it began to answer 429 or 503, and how many in a row, once that
      is worth knowing.
    """

    failing_since_us: int = 0
    failures: int = 0
    failed_us: int = 0
    text: str = ""
    opened_us: int = 0
    opens: int = 0
    attention: str = ""
    warned_us: int = 0
    probing_us: int = 0
    busy_since_us: int = 0
    busy: int = 0


class Record(msgspec.Struct, omit_defaults=True, kw_only=True):
    """
    An endpoint as it is stored. Times are microseconds since 1970, timeouts seconds.

    `sealed`: headers with secret values, encrypted. `version` counts the changes of settings.
    `tests_us`: when test requests were sent within the last minute.
    """

    url: str = ""
    description: str = ""
    secrets: list[Secret] = []
    headers: dict[str, str] = {}
    sealed: dict[str, str] = {}
    timeout: float = 15.0
    connect_timeout: float = 5.0
    events: list[str] = []
    content: payloads.Content = "body"
    template: Any = None
    dead_on: list[int] = []
    duplicate_ok: bool = False
    verify_tls: bool = True
    ca: str | None = None
    proxy: str | None = None
    http2: Literal["auto", "never"] = "auto"
    allow_private: bool = False
    allow_http: bool = False
    topic_header: bool = False
    method: Literal["POST", "PUT", "PATCH"] = "POST"
    log: Literal["failures", "sample", "all"] = "sample"
    metadata: dict[str, str] = {}
    created_us: int = 0
    changed_us: int = 0
    version: int = 0
    disabled: str | None = None
    disabled_us: int = 0
    enabled_us: int = 0
    tests_us: list[int] = []
    condition: Condition = msgspec.field(default_factory=Condition)


read = msgspec.json.Decoder(Record).decode
write = msgspec.json.Encoder().encode


# Settings


def _text(name: str, most: int, value: Any) -> str:
    if not isinstance(value, str) or len(value) > most or not _is_clean(value):
        raise UsageError(
            f"endpoint: expected {name} to be text of at most {most:,} characters without"
            f" control characters, got {value!r:.80}"
        )
    return value


def _is_clean(text: str) -> bool:
    return all(each.isprintable() for each in text)


def _events(value: Any) -> list[str]:
    if not isinstance(value, (list, tuple)) or len(value) > MAX_EVENTS:
        raise UsageError(
            f"endpoint: expected events to be a list of at most {MAX_EVENTS} event types, got"
            f" {value!r:.80}"
        )
    for each in value:
        _text("an event type", MAX_EVENT, each)
        if not each or "*" in each[:-1]:
            raise UsageError(
                f'endpoint: expected an event type like "order.paid" or "order.*", got {each!r:.80}'
            )
    return list(value)


def _statuses(value: Any) -> list[int]:
    if not isinstance(value, (list, tuple)) or not all(
        isinstance(each, int) and not isinstance(each, bool) and 300 <= each <= 599
        for each in value
    ):
        raise UsageError(
            f"endpoint: expected dead_on to list HTTP statuses from 300 to 599, got {value!r:.80}"
        )
    return sorted(set(value))


def _headers(value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise UsageError("endpoint: expected headers to be a mapping of text by name")
    found: dict[str, str] = {}
    for name, text in value.items():
        lower = name.lower() if isinstance(name, str) else ""
        if not _HEADER_NAME.fullmatch(lower):
            raise UsageError(f"endpoint: expected the name of a header, got {name!r:.80}")
        if lower in OWN_HEADERS or lower.startswith(("webhook-", "proxy-")):
            raise UsageError(f'endpoint: the header "{lower}" cannot be set')
        if not isinstance(text, str) or not _HEADER_VALUE.fullmatch(text):  # it may be a secret
            raise UsageError(
                f'endpoint: expected the header "{lower}" to be text in Latin-1 without control'
                " characters"
            )
        found[lower] = text
    if len(found) > MAX_HEADERS or sum(map(len, [*found, *found.values()])) > MAX_HEADER_BYTES:
        raise UsageError(
            f"endpoint: expected at most {MAX_HEADERS} headers of {MAX_HEADER_BYTES:,} bytes in all"
        )
    return found


def _metadata(value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not all(
        isinstance(name, str) and isinstance(text, str) and _is_clean(name + text)
        for name, text in value.items()
    ):
        raise UsageError("endpoint: expected metadata to be a mapping of text by name")
    if sum(len(name) + len(text) for name, text in value.items()) > MAX_METADATA:
        raise UsageError(f"endpoint: expected metadata of at most {MAX_METADATA:,} characters")
    return value


def _ca(value: Any) -> str:
    if (
        not isinstance(value, str)
        or not value.isascii()
        or "-----BEGIN CERTIFICATE-----" not in value
    ):
        raise UsageError("endpoint: expected ca to be a certificate in PEM")
    if len(value) > 65_536:
        raise UsageError("endpoint: expected ca to have at most 65,536 characters")
    import ssl  # noqa: PLC0415  # few endpoints have one

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=value)
    except (ssl.SSLError, ValueError) as error:
        raise UsageError("endpoint: ca has no certificate in PEM that can be read") from error
    return value


def proxy_of(value: Any) -> str:
    """Check the URL of a proxy. Raises UsageError."""
    try:
        parts = split_url(value)
    except UsageError as error:
        raise UsageError(str(error).replace("url", "proxy")) from error
    return f"{parts.scheme}://{parts.netloc}"


_choice = partial(arguments.choice, "endpoint")
_flag = partial(arguments.flag, "endpoint")
_seconds = partial(arguments.seconds, "endpoint", least=0.1, most=MAX_TIMEOUT)

CHECKS: dict[str, Callable[[Any], Any]] = {
    "description": partial(_text, "description", MAX_DESCRIPTION),
    "headers": _headers,
    "timeout": partial(_seconds, "timeout"),
    "connect_timeout": partial(_seconds, "connect_timeout"),
    "events": _events,
    "content": partial(_choice, "content", choices=get_args(payloads.Content)),
    "template": payloads.check_template,
    "dead_on": _statuses,
    "duplicate_ok": partial(_flag, "duplicate_ok"),
    "verify_tls": partial(_flag, "verify_tls"),
    "ca": _ca,
    "proxy": proxy_of,
    "http2": partial(_choice, "http2", choices=("auto", "never")),
    "allow_private": partial(_flag, "allow_private"),
    "allow_http": partial(_flag, "allow_http"),
    "topic_header": partial(_flag, "topic_header"),
    "method": partial(_choice, "method", choices=("POST", "PUT", "PATCH")),
    "log": partial(_choice, "log", choices=("failures", "sample", "all")),
    "metadata": _metadata,
}
"""Every setting except `url` and `secret`, with its check."""

SETTINGS = ("url", "secret", *CHECKS)


def changed(
    topic: str,
    before: Record | None,
    fields: Mapping[str, Any],
    secrets: secret_store.SecretStore,
    guard: Guard,
    now_us: int,
    *,
    is_trusted: bool = True,
) -> tuple[Record, str | None]:
    """
    A topic's record after a change of settings, and what the receiver gets of a new secret. None
    resets a setting. `is_trusted`: it may say where an endpoint with `allow_private` leads, and
    which server gets secret headers. Raises UsageError, BadPolicy, Refused.
    """
    check_endpoint_topic(topic)
    record = Record(created_us=now_us) if before is None else before
    unknown = [name for name in fields if name not in SETTINGS]
    if unknown:
        hint = meant_or_known(unknown[0], SETTINGS)
        raise UsageError(f'endpoint: unknown setting "{unknown[0]:.80}"{hint}')
    values: dict[str, Any] = {
        name: getattr(Record(), name) if value is None else CHECKS[name](value)
        for name, value in fields.items()
        if name in CHECKS
    }
    if "headers" in values:
        values |= _sealed(topic, values["headers"], secrets)
    before_url, before_proxy = record.url, record.proxy
    record = msgspec.structs.replace(
        record, **values, changed_us=now_us, version=record.version + 1
    )
    url = fields.get("url", record.url)
    if not url:
        raise UsageError(f"endpoint {topic} does not exist; give url= to create it")
    record.url = check_url(
        url, guard, allow_private=record.allow_private, allow_http=record.allow_http
    ).text
    leads_elsewhere = (record.url, record.proxy) != (before_url, before_proxy)
    if record.allow_private and leads_elsewhere and not is_trusted:
        raise UsageError(
            "endpoint: allow_private was set for another url or proxy; change them by code or"
            " `laneway endpoint set`, or set allow_private to false, too"
        )
    if before is not None and "headers" not in values and not is_trusted:
        _check_sealed_stay(before, record)
    new: str | None = None
    if fields.get("secret") is not None:
        given = signature.read_key(fields["secret"])
        record.secrets = [_secret(topic, given, secrets, now_us)]
        if given.is_ed25519:
            new = given.text
    elif not record.secrets:
        generated = signature.new_key()
        record.secrets = [_secret(topic, generated, secrets, now_us)]
        new = generated.text
    return record, new


def check_endpoint_topic(topic: str) -> str:
    """Check the name of an endpoint's topic: `push.acme`, or a subscription's `push.acme#crm`."""
    try:
        check_topic(topic)
    except ValueError as error:
        raise BadPolicy(f"endpoint: {error}") from error
    return topic


def _sealed(
    topic: str, headers: dict[str, str], secrets: secret_store.SecretStore
) -> dict[str, Any]:
    """Headers apart: those that anybody may see, and encrypted ones."""
    hidden = {name: text for name, text in headers.items() if is_secret_header(name)}
    return {
        "headers": {name: text for name, text in headers.items() if name not in hidden},
        "sealed": {
            name: secrets.encrypt(text.encode("latin-1"), topic) for name, text in hidden.items()
        },
    }


def _check_sealed_stay(before: Record, after: Record) -> None:
    """Raise UsageError if secret headers that were not given again would go to another server."""
    if not before.sealed:
        return
    if _origin(after.url) != _origin(before.url):
        setting = "url"
    elif after.proxy is not None and after.proxy != before.proxy:
        setting = "proxy"
    else:
        return
    names = ", ".join(f'"{name}"' for name in sorted(before.sealed))
    raise UsageError(
        f"endpoint: the new {setting} would send secret headers to another server; give headers in"
        f" the same change, with or without {names}"
    )


def _origin(url: str) -> tuple[str, str, int]:
    parts = split_url(url)
    return parts.scheme, parts.host, parts.port


def is_secret_header(name: str) -> bool:
    """Whether the header's value is a secret, by its name."""
    return any(word in name.lower() for word in SECRET_WORDS)


def _secret(
    topic: str, key: signature.Key, secrets: secret_store.SecretStore, now_us: int
) -> Secret:
    sealed = secrets.encrypt(key.secret, topic)
    return Secret(sealed, key.hint, now_us, is_ed25519=key.is_ed25519)


def rotated(
    topic: str,
    record: Record,
    secrets: secret_store.SecretStore,
    now_us: int,
    given: str | None = None,
) -> tuple[Record, str]:
    """
    A record with a new secret, and what the receiver gets of it. The old ones sign for 24 hours.
    """
    key = signature.new_key() if given is None else signature.read_key(given)
    kept = [
        each if each.until_us else msgspec.structs.replace(each, until_us=now_us + OLD_SECRET_US)
        for each in live_secrets(record, now_us)
    ]
    newest = [_secret(topic, key, secrets, now_us), *kept][:MAX_SECRETS]
    record = msgspec.structs.replace(
        record, secrets=newest, changed_us=now_us, version=record.version + 1
    )
    return record, key.text


def live_secrets(record: Record, now_us: int) -> list[Secret]:
    """The secrets that sign now, the newest first."""
    return [each for each in record.secrets if not each.until_us or each.until_us > now_us]


def missing_key(record: Record, keys: Collection[str], now_us: int) -> str | None:
    """The name of a key that an endpoint's secrets need and that is not one of these, or None."""
    stored = [each.stored for each in live_secrets(record, now_us)] + [*record.sealed.values()]
    names = (secret_store.key_name(each) for each in stored)
    return next((name for name in names if name is not None and name not in keys), None)


# The store


def first_without_keys(engine: Records, keys: Collection[str]) -> str | None:
    """
    The key that the first endpoint lacks, if the first `LOOKED_AT` of the table all lack one, or
    None if one of them can be sent to or the table is empty.
    """
    now_us, records = now(), [read(stored) for _, stored in engine.records(KIND, limit=LOOKED_AT)]
    missing = [missing_key(record, keys, now_us) for record in records]
    return missing[0] if missing and all(missing) else None


def now() -> int:
    """Microseconds since 1970."""
    return time.time_ns() // 1_000


def find(engine: Records, topic: str) -> Record | None:
    """A topic's endpoint, or None if it has none."""
    (stored,) = engine.record_read(KIND, [topic])
    return None if stored is None else read(stored)


def get(engine: Records, topic: str) -> Record:
    """A topic's endpoint. Raises Refused if it has none."""
    record = find(engine, topic)
    if record is None:
        raise no_endpoint(topic)
    return record


def no_endpoint(topic: str) -> Refused:
    """The error of a topic without an endpoint."""
    return Refused(f"endpoint {topic} does not exist; `laneway endpoint set` creates it")


def update(
    engine: Records, topic: str, change: Callable[[Record | None], Record | None]
) -> Record | None:
    """Replace a topic's record by what `change` makes of it, however many others change it too."""
    while True:
        (stored,) = engine.record_read(KIND, [topic])
        before = None if stored is None else read(stored)
        old_state = state_of(before)
        after = change(before)
        state = state_of(after)
        # Before the record, so that it is found in its state whatever happens meanwhile.
        if state != old_state:
            _enter(engine, state, topic)
        if engine.record_swap(KIND, topic, stored, None if after is None else write(after)):
            if state != old_state:
                _enter(engine, state, topic)  # another change may have removed it
                _leave(engine, old_state, topic)
            return after


def change(engine: Records, topic: str, changed: Callable[[Record], Record]) -> Record:
    """As `update`, for an endpoint that exists. Raises Refused if it does not."""

    def change_existing(record: Record | None) -> Record:
        if record is None:
            raise no_endpoint(topic)
        return changed(record)

    return cast("Record", update(engine, topic, change_existing))


def set_many(
    engine: Records,
    changes: Iterable[tuple[str, Mapping[str, Any]]],
    secrets: secret_store.SecretStore,
    guard: Guard,
    *,
    is_trusted: bool = True,
) -> Iterator[tuple[str, str | None]]:
    """
    Set many endpoints, in batches; yields each topic with its secret if that is new. `is_trusted`:
    see `changed`. Raises UsageError, which names the topic; the batches before are set then.
    """
    stream = iter(changes)
    while page := list(islice(stream, PAGE)):
        batch: dict[str, Mapping[str, Any]] = {}
        for topic, fields in page:
            batch[topic] = {**batch.get(topic, {}), **fields}
        while batch:
            names = list(batch)
            stored = engine.record_read(KIND, names)
            now_us = now()
            swaps, new_secrets = [], {}
            for name, before in zip(names, stored, strict=True):
                try:
                    after, new_secrets[name] = changed(
                        name,
                        None if before is None else read(before),
                        batch[name],
                        secrets,
                        guard,
                        now_us,
                        is_trusted=is_trusted,
                    )
                except UsageError as error:
                    raise UsageError(f"{name}: {error}") from error
                swaps.append((name, before, write(after)))
            for name, is_set in zip(names, engine.record_swap_many(KIND, swaps), strict=True):
                if is_set:
                    del batch[name]
                    yield name, new_secrets[name]


# States. All but "healthy" have an index: a record without content, "disabled push.acme".


def state_of(record: Record | None) -> State | None:
    """An endpoint's state, or None without an endpoint."""
    if record is None:
        return None
    condition = record.condition
    if record.disabled is not None:
        return "disabled"
    if condition.opened_us:
        return "open"
    if condition.probing_us:
        return "probing"
    if condition.busy_since_us:
        return "busy"
    return "failing" if condition.failing_since_us else "healthy"


def troubles(engine: Records, topics: Sequence[str]) -> dict[str, str]:
    """By topic: what is wrong with its endpoint, such as "fails: HTTP 500"."""
    found: dict[str, str] = {}
    for topic, stored in zip(topics, engine.record_read(KIND, topics), strict=True):
        record = None if stored is None else read(stored)
        state = state_of(record)
        if record is None or state in ("healthy", "probing"):
            continue
        condition = record.condition
        found[topic] = (
            f"disabled: {record.disabled}"
            if state == "disabled"
            else f"{'asks for pauses' if state == 'busy' else 'fails'}: {condition.text}"
        )
    return found


def _enter(engine: Records, state: State | None, topic: str) -> None:
    if state not in (None, "healthy"):
        engine.record_swap(STATE_KIND, f"{state} {topic}", None, PRESENT)


def _leave(engine: Records, state: State | None, topic: str) -> None:
    if state in (None, "healthy"):
        return
    engine.record_swap(STATE_KIND, f"{state} {topic}", PRESENT, None)
    if state_of(find(engine, topic)) == state:  # it is again, by another change
        _enter(engine, state, topic)


def count(engine: Records, state: State, *, pattern: str = "*", most: int = MAX_COUNTED) -> int:
    """How many endpoints of a pattern have a state (not "healthy"), up to `most`."""
    own, prefix = _span(pattern)
    known = engine.record_read(STATE_KIND, [f"{state} {own}"]) if own != prefix else []
    names = engine.records(STATE_KIND, limit=most, after=f"{state} {prefix}")
    count = sum(name.startswith(f"{state} {prefix}") for name, _ in names)
    return min(most, count + len(known) - known.count(None))


def _span(pattern: str) -> tuple[str, str]:
    """A topic that a pattern covers, and the prefix of all others."""
    if pattern.endswith("*"):
        return pattern[:-1], pattern[:-1]
    return pattern, f"{pattern}{SEPARATOR}"


def _page(
    engine: Records, state: State | None, limit: int, after: str
) -> Iterator[tuple[str, Record | None]]:
    """A page of all endpoints, or of the index of a state: None for one that has left it."""
    if state in (None, "healthy"):
        for topic, stored in engine.records(KIND, limit=limit, after=after):
            yield topic, _in_state(stored, state)
        return
    prefix = f"{state} "
    names = engine.records(STATE_KIND, limit=limit, after=prefix + after)
    topics = [name.removeprefix(prefix) for name, _ in names if name.startswith(prefix)]
    for topic, found in zip(topics, engine.record_read(KIND, topics), strict=True):
        record = _in_state(found, state)
        if record is None:
            _leave(engine, state, topic)
        yield topic, record


def _in_state(stored: bytes | None, state: State | None) -> Record | None:
    record = None if stored is None else read(stored)
    return record if state is None or state_of(record) == state else None


def listed(
    engine: Records,
    *,
    pattern: str = "*",
    limit: int = 100,
    after: str = "",
    state: State | None = None,
    most: int = 10_000,
) -> tuple[list[tuple[str, Record]], str | None]:
    """
    The endpoints of a pattern by topic, and the topic after which the next page begins, or None at
    the end. At most `most` records are read: only "healthy" ones are searched for.
    """
    own, prefix = _span(pattern)
    found: list[tuple[str, Record]] = []
    scanned = 0
    if own and after < own and (record := find(engine, own)) is not None:
        found += [(own, record)] if state in (None, state_of(record)) else []
    after = max(after, own, prefix)
    while len(found) < limit and scanned < most:
        page = list(_page(engine, state, min(PAGE, max(limit, 50)), after))
        for topic, each in page:
            if not topic.startswith(prefix):
                return found, None
            after, scanned = topic, scanned + 1
            if each is not None:
                found.append((topic, each))
                if len(found) == limit:
                    return found, topic
        if not page:
            return found, None
    return found, after


# Switching off and on


def pause(engine: FullEngine, topic: str) -> None:
    """
    Keep the messages of a disabled endpoint's topic waiting. Who pauses and resumes the topic does
    not change that.
    """
    engine.policy_set("code", topic, {DISABLED: True})


def resume(engine: FullEngine, topic: str) -> None:
    """End `pause`."""
    engine.policy_set("code", topic, {DISABLED: None})


def disable(engine: FullEngine, topic: str, reason: str = "by hand") -> Record:
    """Disable an endpoint: its topic's messages wait. Raises Refused if it does not exist."""
    now_us = now()

    def disabled(record: Record) -> Record:
        if record.disabled is None:
            record.disabled, record.disabled_us = reason[:200], now_us
        return record

    record = change(engine, topic, disabled)
    pause(engine, topic)
    return record


def enable(engine: FullEngine, topic: str, *, is_repaired: bool = False) -> Record:
    """
    Enable an endpoint: one message is sent as a probe, then the others. Raises Refused if it
    does not exist or, unless `is_repaired`, was enabled, and disabled again, less than five
    minutes ago.
    """
    now_us = now()

    def enabled(record: Record) -> Record:
        if record.disabled is None:
            return record
        left = record.enabled_us + AGAIN_SECONDS * units.SECOND - now_us
        if record.disabled_us > record.enabled_us > 0 and left > 0 and not is_repaired:
            raise EnabledRecently(
                f"endpoint {topic}: it was enabled less than {AGAIN_SECONDS // 60} min ago and"
                f" disabled again ({record.disabled}); try again in {left // units.SECOND + 1} s;"
                f" once it is repaired: `laneway endpoint enable {shlex.quote(topic)} --now`",
                left / units.SECOND,
            )
        return msgspec.structs.replace(
            record,
            disabled=None,
            disabled_us=0,
            enabled_us=now_us,
            condition=Condition(probing_us=now_us),
        )

    record = change(engine, topic, enabled)
    resume(engine, topic)
    if record.enabled_us == now_us:
        notify(engine, "enabled", topic, "the next message is a probe", now_us)
    return record


class EnabledRecently(Refused):
    """The endpoint was enabled and disabled again just now. `retry_after`: seconds."""

    def __init__(self, text: str, retry_after: float) -> None:
        super().__init__(text)
        self.retry_after = retry_after


def remove(engine: FullEngine, topic: str) -> bool:
    """Remove an endpoint. Returns whether there was one. Its topic's messages wait."""
    was_there = False

    def change(record: Record | None) -> None:
        nonlocal was_there
        was_there = record is not None

    update(engine, topic, change)
    if was_there:
        resume(engine, topic)
    return was_there
