"""The OpenAPI 3.1 document of the gateway, from the routes and the structs of `schema`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import version
from typing import Any, get_args

import msgspec

from laneway.gateway.field_texts import TEXTS
from laneway.gateway.problems import KINDS, ProblemBody
from laneway.gateway.routes.publishing import OPTIONS
from laneway.gateway.routing import Route
from laneway.gateway.schema import LineAnswer, PolicyBody, TopicMessageBody
from laneway.gateway.value_schemas import (
    COMPONENTS,
    COPIES_PATTERN,
    EXAMPLES,
    ID,
    NAME,
    PATTERN,
    PUBLISHED,
    SUBSCRIBED,
    SUBSCRIPTION,
    TOPIC,
    VALUES,
)
from laneway.policy import FIELDS

REFERENCE = "#/components/schemas/{name}"
LINES = "application/x-ndjson"
BYTES = "application/octet-stream"
ACCEPTED = 202
NUMBERS = {"integer": "int64", "number": "double"}
TEXT_VALUE = {"type": "string", "minLength": 1}

PARAMETERS: dict[str, tuple[str, dict[str, Any]]] = {
    "topic": (
        "Name of the topic, at most 255 bytes in UTF-8; `/` is `%2F`.",
        {"type": "string", **TOPIC},
    ),
    "pattern": (
        "Name of a topic, or a dotted prefix with `*` at its end; at most 255 bytes in UTF-8.",
        {"type": "string", **PATTERN},
    ),
    "id": ("Its id.", {"type": "string", **ID}),
    "name": ("Its name.", {"type": "string", **NAME}),
    "number": ("Number of the change.", {"type": "integer", "minimum": 1}),
    "kind": ("Kind of the problem.", {"type": "string", "enum": list(KINDS)}),
}
"""Parameters of paths: what they mean, and their schemas."""

PATH_VALUES = {
    "publish.topic": {"type": "string", **PUBLISHED},
    "policies.pattern": {"type": "string", **COPIES_PATTERN},
    "schedules.name": {"type": "string", **PUBLISHED, "maxLength": 200, "examples": ["daily"]},
    "subscriptions.pattern": {"type": "string", **SUBSCRIBED},
    "subscriptions.name": {"type": "string", **SUBSCRIPTION},
}
"""Their schemas where they differ, by operation or first part of the path, and name."""

STATUSES = {
    200: "The request was carried out.",
    201: "Something new was stored.",
    202: "Accepted: it will be carried out.",
    207: "Some of the messages were refused.",
    503: "The store does not answer.",
}

HEADER_VALUES: dict[str, dict[str, Any]] = {
    "delay": {"anyOf": COMPONENTS["Duration"]["anyOf"][1:]},
    "ttl": {"anyOf": COMPONENTS["Duration"]["anyOf"][1:]},
    "at": {"anyOf": COMPONENTS["Moment"]["anyOf"][:1]},
}
"""Fields of several types, with the one that headers have in all generated clients."""

REQUEST_HEADERS = {
    "Idempotency-Key": (
        "Id of the message. A request that is repeated within 24 hours is a `duplicate`.",
        ("publish",),
    ),
    "If-Match": (
        "An `ETag` of the policy: the change is refused with 409 if the policy has another.",
        ("set_policy", "change_policy", "reset_policy"),
    ),
}
"""Headers of requests: what they mean, and in which operations they are read."""

ANSWER_HEADERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "ETag": (
        "Version of the operator's fields, for `If-Match`.",
        ("show_policy", "set_policy", "change_policy", "reset_policy", "undo_change"),
    ),
    "Location": ("URL of the operation.", ()),
    "Retry-After": ("Seconds after which to try again; with 429 and 503.", ()),
}
"""Headers of answers: what they mean, and which operations have them."""

OPERATIONS = {
    "endpoints.list_of_endpoint": "list_endpoint_attempts",
    "endpoints.replay": "replay_messages",
    "dead_letters.drop": "drop_dead_letters",
    "dead_letters.list_groups": "list_dead_letter_groups",
    "dead_letters.redrive": "redrive_dead_letters",
    "endpoints.disable": "disable_endpoint",
    "endpoints.enable": "enable_endpoint",
    "endpoints.rotate": "rotate_secret",
    "endpoints.test": "test_endpoint",
    "topics.cancel": "cancel_message",
    "topics.drop": "drop_message",
    "topics.make_dead": "make_message_dead",
    "topics.release": "release_message",
    "topics.retry": "retry_message",
    "metrics.show": "show_metrics",
    "namespace.overview": "show_overview",
    "policies.list_groups": "list_topic_groups",
    "policies.reset_group": "reset_topic_group",
    "policies.set_group": "set_topic_group",
    "probes.health": "show_health",
    "probes.problem_kind": "show_problem_kind",
    "probes.ready": "show_readiness",
    "streaming.stream": "stream_deliveries",
    "topics.back_off": "back_off_topic",
    "topics.delete": "delete_topic",
    "topics.explain": "explain_message",
    "topics.lookup": "look_up_messages",
    "topics.pause": "pause_topic",
    "topics.purge": "purge_topic",
    "topics.resume": "resume_topic",
}
"""Names in generated clients, by handler; the others have their handler's name."""

TAGS = {"lease": "consume", "settle": "consume", "lookup": "messages"}
"""Groups of operations, by the first part of the path; the others have that part's name."""

TAG_TEXTS = {
    "attempts": "The delivery log: requests to endpoints and their answers.",
    "audit": "Changes through the API.",
    "consume": "Lease messages and settle them.",
    "dead": "Dead letters.",
    "doctor": "Checks of the store.",
    "endpoints": "Where the messages of topics are pushed to.",
    "events": "What happens, as a stream.",
    "gates": "Limits that several topics share.",
    "gateway": "The gateway itself.",
    "groups": "Topics that compete as one.",
    "history": "Figures of the past.",
    "jobs": "Calls of tasks.",
    "messages": "Publish messages, look at them and change them.",
    "operations": "Changes of many messages, in the background.",
    "overview": "Totals of the namespace.",
    "policies": "Settings of topics.",
    "schedules": "Messages that are published again and again.",
    "subscriptions": "Further readers of topics.",
    "tiers": "Classes of service.",
    "tokens": "Who may do what.",
    "topics": "Topics: their state, and what stops and starts them.",
    "workers": "Programs that handle messages.",
}

SERVER = {"url": "http://127.0.0.1:7878", "description": "`laneway serve` on this machine."}

DESCRIPTION = """\
Publish, consume and administer the messages of one namespace. Durations in requests are seconds or
texts like "10m"; times are RFC 3339. Errors are problem details (RFC 9457).
"""


def document(routes: Iterable[Route]) -> dict[str, Any]:
    """The document, as JSON values."""
    routes = [route for route in routes if not route.is_page]
    types = [
        kind
        for route in routes
        for kind in (route.reads, route.answer, route.query, *route.events.values())
        if kind is not None
    ]
    types += [ProblemBody, TopicMessageBody, LineAnswer]
    schemas, components = msgspec.json.schema_components(types, ref_template=REFERENCE)
    # types are compared by identity, because lists cannot be hashed in all versions of Python
    known = {id(kind): schema for kind, schema in zip(types, schemas, strict=True)}
    queries = {route.query.__name__ for route in routes}
    bodies = [known[id(route.reads)] for route in routes if route.reads is not None]
    requests = queries | _reached(components, [*bodies, known[id(TopicMessageBody)]])
    structs: dict[str, Any] = {}
    for kind in types:
        collect(kind, structs)
    for name, component in components.items():
        _complete(component, structs[name], is_request=name in requests)
    paths: dict[str, Any] = {}
    for route in routes:
        operations = paths.setdefault(route.path, {})
        operations[route.method.lower()] = _operation(route, known, components)
    kept = {name: schema for name, schema in components.items() if name not in queries}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Laneway",
            "version": version("laneway"),
            "description": DESCRIPTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [SERVER],
        "tags": [{"name": name, "description": text} for name, text in TAG_TEXTS.items()],
        "paths": _with_formats(paths),
        "components": {
            "schemas": _with_formats(
                dict(sorted({**kept, **COMPONENTS, **_events(routes)}.items()))
            ),
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "bearerFormat": "lw_ID_SECRET",
                    "description": "A token; `laneway token create` makes one.",
                }
            },
        },
    }


# Schemas


def _event(name: str) -> str:
    return f"Streamed{name.title()}"


def _events(routes: Iterable[Route]) -> dict[str, Any]:
    """The components of server-sent events: their name, and their JSON."""
    return {
        _event(name): {
            "title": _event(name),
            "description": f"A server-sent event `{name}`; its `data` is JSON.",
            "type": "object",
            "properties": {
                "event": {"description": "Name of the event.", "const": name},
                "data": {**known_reference(kind), "description": f"The {name}."},
            },
            "required": ["event", "data"],
        }
        for route in routes
        for name, kind in route.events.items()
    }


def _reached(components: dict[str, Any], schemas: list[Any]) -> set[str]:
    """The names of the components that these schemas refer to."""
    seen: set[str] = set()
    while schemas:
        names = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(schemas))) - seen
        seen |= names
        schemas = [components[name] for name in names]
    return seen


def collect(kind: Any, structs: dict[str, Any]) -> None:
    """Add the structs that values of a type consist of, by name."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        if kind.__name__ in structs:
            return
        structs[kind.__name__] = kind
        for field in msgspec.structs.fields(kind):
            collect(field.type, structs)
    for part in get_args(kind):
        collect(part, structs)


def _complete(component: dict[str, Any], struct: Any, *, is_request: bool) -> None:
    """
    Describe the fields of a struct. Their defaults are told as text: generators of clients take a
    property with `default` for one that is always there, and ask programs for it. An answer has
    all of its fields, unless it leaves out those with their defaults.
    """
    properties = component.get("properties", {})
    has_all = not is_request and not struct.__struct_config__.omit_defaults
    for name, schema in properties.items():
        default = schema.pop("default", None)
        if {} in schema.get("anyOf", ()):  # any JSON
            del schema["anyOf"]
        if is_request:
            _restrict(schema, _of_field(VALUES, struct, name, {}))
        schema["description"] = description_of(struct, name)
        if default not in (None, {}, []) and not has_all:
            schema["description"] += f" Default: `{json.dumps(default)}`."
    if has_all:
        component["required"] = list(properties)


def description_of(struct: Any, name: str) -> str:
    """What a field of a struct means."""
    if struct is PolicyBody:
        return (
            re.sub(r"^[a-z](?=[a-z]*[ ,])", lambda found: found[0].upper(), FIELDS[name].meaning)
            + "."
        )
    text: str = _of_field(TEXTS, struct, name, "")
    return text


def _of_field(table: Mapping[str, Any], struct: Any, name: str, default: Any) -> Any:
    """The entry of a struct's field, or of all fields of that name."""
    for key in names_of(struct, name):
        if key in table:
            return table[key]
    return default


def names_of(struct: Any, name: str) -> list[str]:
    """What the tables may call a field of a struct, from specific to general."""
    return [*(f"{base.__name__}.{name}" for base in struct.__mro__), name]


def _restrict(schema: dict[str, Any], value: dict[str, Any]) -> None:
    """Add what the values of each type must be; or refer to the component of that name."""
    parts = schema.get("anyOf", [schema])
    for name, more in value.items():
        if name in COMPONENTS:
            reference = {"$ref": REFERENCE.format(name=name), **more}
            has_null = {"type": "null"} in parts
            schema.clear()
            schema.update({"anyOf": [reference, {"type": "null"}]} if has_null else reference)
            return
    for part in parts:
        part.update(value.get(part.get("type", ""), {}))
        if "items" in part:
            part["items"].update(value.get("items", {}))


def _with_formats(value: Any) -> Any:
    """Numbers with the format that clients need for all of them, and enumerations with a type."""
    if isinstance(value, list):
        return [_with_formats(each) for each in value]
    if not isinstance(value, dict):
        return value
    if (found := NUMBERS.get(str(value.get("type")))) is not None:
        value = {**value, "format": found}
    if "enum" in value and "type" not in value:
        value = {**value, "type": "string"}
    return {name: _with_formats(each) for name, each in value.items()}


# Operations


def _operation(
    route: Route, known: dict[int, dict[str, Any]], components: dict[str, Any]
) -> dict[str, Any]:
    name = _name(route)
    operation: dict[str, Any] = {
        "operationId": name,
        "tags": [_tag(route)],
        "summary": route.summary,
        "description": route.description,
        "security": [{"token": []}] if route.scope is not None else [],
    }
    if route.scope is not None:
        operation["x-scope"] = route.scope
    if route.own_scopes:
        operation["x-own-scopes"] = list(route.own_scopes)
    parameters = [
        *_path_parameters(route, name),
        *_query_parameters(route, components),
        *_header_parameters(name, components),
    ]
    if parameters:
        operation["parameters"] = parameters
    if route.reads is not None:
        operation["requestBody"] = {"required": True, "content": _content(route, name, known)}
    operation["responses"] = {
        **{
            str(status): _answer(route, name, status, known)
            for status in (route.status, *route.other_statuses)
        },
        "4XX": _problem("The request is refused."),
        "5XX": _problem("The store does not answer, or the gateway failed."),
    }
    return operation


def _name(route: Route) -> str:
    module = route.handler.__module__.rpartition(".")[2]
    name: str = route.handler.__name__
    name = OPERATIONS.get(f"{module}.{name}", name)
    return f"{name}_by_id" if route.path.startswith("/v1/messages/{id}") else name


def _tag(route: Route) -> str:
    part = re.match(r"/v1/([\w-]+)", route.path)
    if part is None:
        return "gateway"
    if "messages" in route.path:
        return "messages"
    return TAGS.get(part[1], part[1])


def _content(route: Route, name: str, known: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """The media types of a request's body."""
    content: dict[str, Any] = {route.body_type: {"schema": known[id(route.reads)]}}
    if route.takes_lines:
        content[LINES] = {"schema": known_reference(TopicMessageBody)}
    if name == "publish":
        content[BYTES] = {"schema": {"type": "string", "format": "binary"}}
    for media_type, example in EXAMPLES.get(name, {}).items():
        content[media_type]["example"] = example
    return content


def known_reference(kind: type) -> dict[str, str]:
    """A reference to a struct's schema."""
    return {"$ref": REFERENCE.format(name=kind.__name__)}


def _answer(
    route: Route, name: str, status: int, known: dict[int, dict[str, Any]]
) -> dict[str, Any]:
    content: dict[str, Any] = {}
    schema = known[id(route.answer)] if route.answer is not None else {"type": "string"}
    if route.events:
        schema = {"anyOf": [{"$ref": REFERENCE.format(name=_event(each))} for each in route.events]}
    content[route.answer_type] = {"schema": schema}
    if route.takes_lines:
        content[LINES] = {"schema": known_reference(LineAnswer)}
    answer: dict[str, Any] = {"description": STATUSES[status], "content": content}
    headers = [header for header in ANSWER_HEADERS if name in ANSWER_HEADERS[header][1]]
    if status == ACCEPTED and name != "publish":
        headers.append("Location")
    if headers:
        answer["headers"] = _headers(*headers)
    return answer


def _headers(*names: str) -> dict[str, Any]:
    return {
        name: {"description": ANSWER_HEADERS[name][0], "schema": {"type": "string"}}
        for name in names
    }


def _problem(text: str) -> dict[str, Any]:
    schema = known_reference(ProblemBody)
    return {
        "description": text,
        "headers": _headers("Retry-After"),
        "content": {"application/problem+json": {"schema": schema}},
    }


def _path_parameters(route: Route, operation: str) -> list[dict[str, Any]]:
    collection = route.path.removeprefix("/v1").split("/")[1]
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "description": PARAMETERS[name][0],
            "schema": PATH_VALUES.get(f"{operation}.{name}")
            or PATH_VALUES.get(f"{collection}.{name}", PARAMETERS[name][1]),
        }
        for name in route.parameters
    ]


def _query_parameters(route: Route, components: dict[str, Any]) -> list[dict[str, Any]]:
    schema = components[route.query.__name__]
    return [
        _parameter("query", name, each, is_required=name in schema["required"])
        for name, each in schema["properties"].items()
    ]


def _header_parameters(name: str, components: dict[str, Any]) -> list[dict[str, Any]]:
    """Headers of a request; a published body that is not JSON has its options there."""
    found = [
        _parameter("header", header, {**TEXT_VALUE, "description": text})
        for header, (text, names) in REQUEST_HEADERS.items()
        if name in names
    ]
    if name == "publish":
        options = components["MessageBody"]["properties"]
        found += [
            _parameter(
                "header",
                f"X-Laneway-{option.replace('_', '-').title()}",
                {**options[option], **HEADER_VALUES.get(option, {})},
            )
            for option in OPTIONS
        ]
    return found


def _parameter(
    place: str, name: str, schema: dict[str, Any], *, is_required: bool = False
) -> dict[str, Any]:
    """A parameter; its schema as that of a field, without null."""
    schema = dict(schema)
    text = schema.pop("description")
    if "anyOf" in schema:
        parts = [part for part in schema.pop("anyOf") if part != {"type": "null"}]
        schema |= parts[0] if len(parts) == 1 else {"anyOf": parts}
    return {
        "name": name,
        "in": place,
        "required": is_required,
        "description": text,
        "schema": schema,
    }


@cache
def encoded(routes: tuple[Route, ...]) -> bytes:
    """The document as JSON, as `/openapi.json` answers it and the repository keeps it."""
    found = msgspec.json.encode(document(routes), order="deterministic")
    return msgspec.json.format(found, indent=1) + b"\n"
