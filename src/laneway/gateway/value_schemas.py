"""
What the values of requests must be, beyond their types: as strict as the checks of the library,
which the gateway runs. Only the API's description reads this.
"""

from __future__ import annotations

from typing import Any

from laneway import units
from laneway.codec import MAX_ID_CHARACTERS, MAX_PRIORITY, MIN_PRIORITY
from laneway.gateway.login.tokens import MAX_NAME
from laneway.headers import MAX_COST
from laneway.policy import (
    MAX_BUCKETS,
    MAX_DELAYS,
    MAX_FACTOR,
    MAX_GATES,
    MAX_KEY_BYTES,
    MAX_PARTITIONS,
    MAX_TOPIC_BYTES,
    WEIGHTS,
)
from laneway.push.table import MAX_DESCRIPTION, MAX_EVENT, MAX_EVENTS, MAX_TIMEOUT
from laneway.subscriptions import MAX_HEADERS, MAX_VALUES

Schema = dict[str, Any]

_PLAIN = r"[^\u0000-\u001f\u007f-\u009f*#]"
_SUBSCRIPTION = r"[A-Za-z0-9_-]{1,64}"
_SPAN = (
    r"([0-9]{1,3} ?(w|weeks?) ?)?([0-9]{1,4} ?(d|days?) ?)?([0-9]{1,5} ?(h|hours?) ?)?"
    r"([0-9]{1,6} ?(m|mins?|minutes?) ?)?([0-9]{1,8}(\.[0-9]{1,3})? ?(s|secs?|seconds?) ?)?"
    r"([0-9]{1,9} ?(ms|milliseconds?))?"
)
_DAY = r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])"
_TIME = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?(Z|[+-](0[0-9]|1[0-3]):[0-5][0-9])"

COMPONENTS: dict[str, Schema] = {
    "Duration": {
        "description": 'A duration: seconds, or text such as "10m" or "1h 30m".',
        "anyOf": [
            {"type": "number", "minimum": 0, "maximum": units.MAX_SECONDS},
            {"type": "string", "pattern": f"^(?=[0-9]){_SPAN}$", "maxLength": units.MAX_TEXT},
        ],
        "examples": ["10m", 1.5],
    },
    "Rate": {
        "description": 'A rate: a number per second, or text such as "50/s" or "600/m".',
        "anyOf": [
            {"type": "number", "minimum": units.LEAST_RATE, "maximum": 1_000_000},
            {
                "type": "string",
                "pattern": r"^[1-9][0-9]{0,5}(\.[0-9]{1,3})? ?/ ?([1-9][0-9]? ?(s|sec|second|m|min"
                r"|minute|h|hour)|(s|sec|second|m|min|minute|h|hour|d|day))$",
            },
        ],
        "examples": ["50/s", 0.5],
    },
    "Moment": {
        "description": "A time: RFC 3339, or Unix seconds.",
        "anyOf": [
            {"type": "number", "minimum": -units.MAX_MOMENT, "maximum": units.MAX_MOMENT},
            {"type": "string", "format": "date-time"},
        ],
        "examples": ["2026-11-27T18:30:00Z"],
    },
    "PastMoment": {
        "description": "A time: RFC 3339, Unix seconds, or how long ago.",
        "type": "string",
        "pattern": rf"^(?=[0-9])({_DAY}T{_TIME}|1[0-9]{{9}}|{_SPAN})$",
        "examples": ["2026-11-27T18:30:00Z", "10m"],
    },
    "DurationOrForever": {
        "description": 'A duration: seconds, or text such as "10m"; or "forever".',
        "anyOf": [
            {"$ref": "#/components/schemas/Duration"},
            {"type": "string", "const": "forever"},
        ],
        "examples": ["14d", "forever"],
    },
    "Backoff": {
        "description": "The delay before the next attempt: fixed, a list of delays, or growing.",
        "anyOf": [
            {"$ref": "#/components/schemas/Duration"},
            {
                "type": "array",
                "items": {"$ref": "#/components/schemas/Duration"},
                "minItems": 1,
                "maxItems": MAX_DELAYS,
            },
            {"$ref": "#/components/schemas/GrowingBackoff"},
        ],
        "examples": [["5s", "5m", "2h"], {"base": 1, "factor": 2, "cap": 3600}],
    },
    "GrowingBackoff": {
        "description": "The delay after failure n: `base` · `factor` to the power of n - 1.",
        "type": "object",
        "properties": {
            "base": {
                "description": "The first delay, in seconds.",
                "type": "number",
                "minimum": 0,
                "maximum": units.MAX_SECONDS,
            },
            "factor": {
                "description": "By which each delay is longer than the one before.",
                "type": "number",
                "minimum": 1,
                "maximum": MAX_FACTOR,
            },
            "cap": {
                "description": "The longest delay, in seconds.",
                "type": "number",
                "minimum": 0,
                "maximum": units.MAX_SECONDS,
            },
            "jitter": {
                "description": "Draw each delay evenly between 0 and that.",
                "type": "boolean",
            },
        },
        "additionalProperties": False,
    },
}
"""Values with a name of their own, so that generated clients have one type for each."""

TOPIC: Schema = {
    "pattern": f"^{_PLAIN}+(#{_SUBSCRIPTION})?$",
    "minLength": 1,
    "maxLength": MAX_TOPIC_BYTES,
    "examples": ["push.acme"],
}
PUBLISHED = {
    "pattern": f"^{_PLAIN}+$",
    "minLength": 1,
    "maxLength": MAX_TOPIC_BYTES,
    "examples": ["push.acme"],
}
PATTERN: Schema = {
    "pattern": rf"^(\*|{_PLAIN}+(\.\*)?|{_PLAIN}+#{_SUBSCRIPTION})$",
    "minLength": 1,
    "maxLength": MAX_TOPIC_BYTES,
    "examples": ["push.*"],
}
COPIES_PATTERN = {
    "pattern": rf"^(\*(#{_SUBSCRIPTION})?|{_PLAIN}+(\.\*)?(#{_SUBSCRIPTION})?)$",
    "minLength": 1,
    "maxLength": MAX_TOPIC_BYTES,
    "examples": ["push.*"],
}
SUBSCRIBED = {
    "pattern": rf"^(\*|{_PLAIN}+(\.\*)?)$",
    "minLength": 1,
    "maxLength": MAX_TOPIC_BYTES,
    "examples": ["push.*"],
}
SUBSCRIPTION = {"pattern": f"^{_SUBSCRIPTION}$", "minLength": 1, "maxLength": 64}
NAME: Schema = {"pattern": r"^[^\u0000-\u001f\u007f-\u009f]+$", "minLength": 1, "maxLength": 64}
TEXT: Schema = {"minLength": 1}
ID: Schema = {
    "pattern": r"^[^\u0000-\u001f\u007f-\u009f]+$",
    "minLength": 1,
    "maxLength": MAX_ID_CHARACTERS,
}
WEIGHT: Schema = {"minimum": WEIGHTS[0], "maximum": WEIGHTS[1]}
COUNT: Schema = {"minimum": 1, "maximum": 1_000_000}

POSITIVE: Schema = {"Duration": {"minimum": 0.001}}
SIZE: Schema = {
    "integer": {"minimum": 1, "maximum": units.MAX_BYTES},
    "string": {"pattern": r"^[1-9][0-9]{0,5}(\.[0-9]{1,3})? ?([kmgtKMGT][iI]?)?[bB]$"},
}
WORD: Schema = {"pattern": r"^[^\u0000-\u001f\u007f-\u009f]+$", "minLength": 1, "maxLength": 100}
GROUP: Schema = {
    "pattern": r"^([^\u0000-\u001f\u007f-\u009f{}]|\{[0-9]\})+$",
    "minLength": 1,
    "maxLength": 100,
}
MATCHED: Schema = {"pattern": r"^[^*]*\*?$"}
STATUS = "^([1-5][0-9]{2}|[1-5]xx|dns|refused|tls|timeout|reset|blocked|too_large|misconfigured)$"

VALUES: dict[str, dict[str, Schema]] = {
    "topic": {"string": TOPIC},
    "TopicMessageBody.topic": {"string": PUBLISHED},
    "ScheduleBody.topic": {"string": PUBLISHED},
    "topics": {"items": TOPIC},
    "TokenBody.topics": {"items": PATTERN},
    "StreamQuery.topics": {"string": TEXT},
    "pattern": {"string": PATTERN},
    "pool": {"string": NAME},
    "tier": {"string": NAME},
    "delay": {"Duration": {}},
    "ttl": POSITIVE,
    "wait": {"Duration": {}},
    "lease": POSITIVE,
    "every": {"Duration": {"minimum": 0.1, "maximum": 10 * 365 * 86_400}},
    "expires": POSITIVE,
    "JobWaitQuery.timeout": {"Duration": {"maximum": 60}},
    "connect_timeout": {"Duration": {}},
    "step": {"string": {"enum": ["10s", "1m", "15m"]}},
    "rate": {"Rate": {}},
    "at": {"Moment": {}},
    "since": {"PastMoment": {}},
    "until": {"PastMoment": {}},
    "from": {"PastMoment": {}},
    "to": {"PastMoment": {}},
    "after": {"string": TEXT},
    "id": {"string": ID},
    "key": {"string": {"pattern": r"^[^\u0000]+$", "minLength": 1, "maxLength": MAX_KEY_BYTES}},
    "priority": {"integer": {"minimum": MIN_PRIORITY, "maximum": MAX_PRIORITY}},
    "cost": {"integer": {"minimum": 1, "maximum": MAX_COST}},
    "max_cost": {"integer": {"minimum": 1, "maximum": MAX_COST}},
    "burst": {"integer": COUNT},
    "concurrency": {"integer": COUNT},
    "weight": {"number": WEIGHT},
    "reserve": {"number": {"minimum": 0, "maximum": 0.9}},
    "share": {
        "number": {"exclusiveMinimum": 0, "maximum": 1_000_000},
        "string": {"const": "strict"},
    },
    "body_base64": {"string": {"contentEncoding": "base64", "pattern": "^([A-Za-z0-9+/]{4})*$"}},
    "reason": {"string": TEXT},
    "receipt": {"string": TEXT},
    "ids": {"items": ID},
    "EndpointAttemptsQuery.status": {"string": {"pattern": STATUS}},
    "SubscriptionBody.expires": {"Duration": {"minimum": 60}},
    "SubscriptionBody.where": {
        "object": {
            "minProperties": 1,
            "maxProperties": MAX_HEADERS,
            "propertyNames": TEXT,
            "additionalProperties": {
                "anyOf": [
                    {"type": "string", **MATCHED},
                    {
                        "type": "array",
                        "items": {"type": "string", **MATCHED},
                        "minItems": 1,
                        "maxItems": MAX_VALUES,
                    },
                ]
            },
        }
    },
    "ScheduleBody.timezone": {"string": TEXT},
    "ScheduleBody.cron": {"string": TEXT},
    "ScheduleBody.at": {"string": {"format": "date-time"}},
    "PolicyBody.min_concurrency": {"integer": COUNT},
    "PolicyBody.max_concurrency": {"integer": COUNT},
    "PolicyBody.key_concurrency": {"integer": COUNT},
    "PolicyBody.pool": {"string": WORD},
    "PolicyBody.tier": {"string": WORD},
    "PolicyBody.time_limit": {"DurationOrForever": {}},
    "PolicyBody.dead_ttl": {"DurationOrForever": {}},
    "PolicyBody.dedupe": {"DurationOrForever": {}},
    "PolicyBody.on_unhandled": POSITIVE,
    "PolicyBody.window": POSITIVE,
    "PolicyBody.max_wait": POSITIVE,
    "PolicyBody.retries": {"integer": {"minimum": 0, "maximum": 1_000_000}},
    "PolicyBody.backoff": {"Backoff": {}},
    "PolicyBody.serial": {"boolean": {"const": True}},
    "PolicyBody.key_rate": {"Rate": {}},
    "PolicyBody.gate": {
        "string": WORD,
        "array": {"minItems": 1, "maxItems": MAX_GATES, "uniqueItems": True},
        "items": WORD,
    },
    "PolicyBody.group": {"string": GROUP},
    "PolicyBody.merge_limit": {"integer": {"minimum": 2, "maximum": 100_000}},
    "PolicyBody.max_body": SIZE,
    "PolicyBody.max_backlog": SIZE,
    "PolicyBody.partitions": {"integer": {"minimum": 1, "maximum": MAX_PARTITIONS}},
    "PolicyBody.buckets": {"integer": {"minimum": 1, "maximum": MAX_BUCKETS}},
    "EndpointBody.url": {"string": {"format": "uri", "pattern": "^https?://[^/]"}},
    "EndpointBody.proxy": {"string": {"format": "uri", "pattern": "^https?://[^/]"}},
    "EndpointBody.description": {"string": {"pattern": "^[ -~]*$", "maxLength": MAX_DESCRIPTION}},
    "EndpointBody.timeout": {"Duration": {"minimum": 0.1, "maximum": MAX_TIMEOUT}},
    "EndpointBody.connect_timeout": {"Duration": {"minimum": 0.1, "maximum": MAX_TIMEOUT}},
    "EndpointBody.events": {
        "array": {"maxItems": MAX_EVENTS},
        "items": {"pattern": r"^[!-)+-~]+\*?$", "maxLength": MAX_EVENT},
    },
    "EndpointBody.dead_on": {"items": {"minimum": 300, "maximum": 599}},
    "EndpointBody.ca": {
        "string": {"pattern": r"^[\t\r\n -~]*-----BEGIN CERTIFICATE-----", "maxLength": 65_536}
    },
    "EndpointBody.headers": {
        "object": {
            "maxProperties": 50,
            "propertyNames": {"pattern": "^[a-z0-9-]{1,100}$"},
            "additionalProperties": {"type": "string", "pattern": "^[ -~]*$"},
        }
    },
    "EndpointBody.metadata": {
        "object": {
            "propertyNames": {"pattern": "^[ -~]*$"},
            "additionalProperties": {"type": "string", "pattern": "^[ -~]*$"},
        }
    },
    "EndpointBody.secret": {"string": {"pattern": "^whs(ec|k)_[A-Za-z0-9+/]{32,}={0,2}$"}},
    "TokenBody.name": {"string": {"pattern": "^[ -~]+$", "minLength": 1, "maxLength": MAX_NAME}},
}
"""
By field, or by struct and field: what the values of each type must be; or a component, and what
more holds for its numbers. `items`: of a list.
"""

EXAMPLES: dict[str, dict[str, Any]] = {
    "publish": {"application/json": {"body": {"order": 42}, "key": "order-42"}},
    "publish_many": {
        "application/json": [
            {"topic": "push.acme", "body": 1},
            {"topic": "push.bolt", "body": 2, "delay": "10m"},
        ]
    },
    "lease": {"application/json": {"n": 10, "wait": "30s", "topics": ["push.acme"]}},
    "settle": {"application/json": [{"receipt": "AABmDahWSwUAAGYNqFZbp8hwq8DrW3s96KRvnw"}]},
    "look_up_messages": {"application/json": {"topic": "push.acme", "ids": ["order-42"]}},
    "purge_topic": {"application/json": {"confirm": "push.acme"}},
    "delete_topic": {"application/json": {"confirm": "push.acme"}},
    "back_off_topic": {"application/json": {"delay": "10m"}},
    "set_policy": {"application/json": {"rate": "50/s", "retries": 5}},
    "change_policy": {"application/json": {"rate": "50/s"}},
    "set_gate": {"application/json": {"rate": "100/s", "concurrency": 20}},
    "set_topic_group": {"application/json": {"weight": 2, "rate": "100/s"}},
    "set_tier": {"application/json": {"share": 3}},
    "redrive_dead_letters": {"application/json": {"topic": "push.acme", "rate": "10/s"}},
    "drop_dead_letters": {"application/json": {"topic": "push.acme", "dry_run": True}},
    "set_schedule": {
        "application/json": {"topic": "reports", "body": {"kind": "daily"}, "cron": "0 6 * * *"}
    },
    "subscribe": {"application/json": {"kind": "shared", "where": {"type": "order.*"}}},
    "unsubscribe": {"application/json": {"confirm": "audit"}},
    "set_endpoint": {"application/json": {"url": "https://acme.example/hooks"}},
    "set_endpoints": {
        "application/x-ndjson": {"topic": "push.acme", "url": "https://acme.example/hooks"}
    },
    "disable_endpoint": {"application/json": {"reason": "moved"}},
    "replay_messages": {"application/json": {"since": "1h", "result": "dead"}},
    "create_token": {
        "application/json": {"name": "shop", "scopes": ["publish"], "topics": ["push.*"]}
    },
    "log_in": {"application/json": {"token": "lw_3kQzXn0B_…"}},
}
"""Bodies of requests, by operation and media type."""
