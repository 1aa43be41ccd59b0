"""The OpenAPI 3.1 document of the gateway, from the routes and the structs of `schema`."""

from __future__ import annotations

import json
import re
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import msgspec

from laneway.gateway.problems import ProblemBody
from laneway.gateway.schema import LineAnswer, TopicMessageBody

if TYPE_CHECKING:
    from collections.abc import Iterable

    from laneway.gateway.routing import Route

REFERENCE = "#/components/schemas/{name}"
LINES = "application/x-ndjson"

PARAMETERS = {
    "topic": "A topic's name; `/` is `%2F`.",
    "pattern": "A topic's name, or a dotted prefix with `*` at its end.",
    "id": "An id.",
    "name": "A name.",
    "number": "The number of a change.",
    "kind": "A kind of problem.",
    "task": "A task's name.",
}

OPERATIONS = {
    "attempts.list_of_endpoint": "list_endpoint_attempts",
    "attempts.replay": "replay_messages",
    "consumer_stream.stream": "consume_subscription",
    "dead_letters.drop": "drop_dead_letters",
    "dead_letters.list_groups": "list_dead_letter_groups",
    "dead_letters.redrive": "redrive_dead_letters",
    "endpoints.disable": "disable_endpoint",
    "endpoints.enable": "enable_endpoint",
    "endpoints.rotate": "rotate_secret",
    "endpoints.test": "test_endpoint",
    "messages.cancel": "cancel_message",
    "messages.drop": "drop_message",
    "messages.make_dead": "make_message_dead",
    "messages.release": "release_message",
    "messages.retry": "retry_message",
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
        for kind in (route.reads, route.answer, route.query)
        if kind is not None
    ]
    types += [ProblemBody, TopicMessageBody, LineAnswer]
    bodies = [route.reads for route in routes if route.reads is not None]
    schemas, components = msgspec.json.schema_components(types, ref_template=REFERENCE)
    # types are compared by identity, because lists cannot be hashed in all versions of Python
    known = {id(kind): schema for kind, schema in zip(types, schemas, strict=True)}
    queries = {route.query.__name__ for route in routes}
    _tell_defaults(components, [known[id(each)] for each in (*bodies, TopicMessageBody)])
    paths: dict[str, Any] = {}
    for route in routes:
        operations = paths.setdefault(route.path, {})
        operations[route.method.lower()] = _operation(route, known, components)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Laneway",
            "version": version("laneway"),
            "description": DESCRIPTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [SERVER],
        "paths": paths,
        "components": {
            "schemas": {
                name: schema for name, schema in sorted(components.items()) if name not in queries
            },
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "bearerFormat": "lw_ID_SECRET"}
            },
        },
    }


def _tell_defaults(components: dict[str, Any], bodies: list[Any]) -> None:
    """
    Give the defaults of these bodies of requests as text. Generators of clients take a property
    with `default` for one that is always there, and ask programs for it.
    """
    seen: set[str] = set()
    while bodies:
        names = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(bodies))) - seen
        seen |= names
        bodies = [components[name] for name in names]
        for body in bodies:
            for each in body.get("properties", {}).values():
                if (default := each.pop("default", None)) is not None:
                    each["description"] = f"Default: `{json.dumps(default)}`."


def _operation(
    route: Route, known: dict[int, dict[str, Any]], components: dict[str, Any]
) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": _name(route),
        "tags": [_tag(route)],
        "summary": route.summary,
        "description": route.description,
        "security": [{"token": []}] if route.scope is not None else [],
    }
    if route.scope is not None:
        operation["x-scope"] = route.scope
    if route.own_scopes:
        operation["x-own-scopes"] = list(route.own_scopes)
    if parameters := [*_path_parameters(route), *_query_parameters(route, components)]:
        operation["parameters"] = parameters
    if route.reads is not None:
        content = {route.body_type: {"schema": known[id(route.reads)]}}
        if route.takes_lines:
            content[LINES] = {"schema": known_reference(TopicMessageBody)}
        operation["requestBody"] = {"required": True, "content": content}
    answer = _answer(route, known)
    operation["responses"] = {
        **{str(status): answer for status in (route.status, *route.other_statuses)},
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


def known_reference(kind: type) -> dict[str, str]:
    """A reference to a struct's schema."""
    return {"$ref": REFERENCE.format(name=kind.__name__)}


def _answer(route: Route, known: dict[int, dict[str, Any]]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    schema = known[id(route.answer)] if route.answer is not None else {"type": "string"}
    content[route.answer_type] = {"schema": schema}
    if route.takes_lines:
        content[LINES] = {"schema": known_reference(LineAnswer)}
    return {"description": "It was done.", "content": content}


def _problem(text: str) -> dict[str, Any]:
    schema = known_reference(ProblemBody)
    return {"description": text, "content": {"application/problem+json": {"schema": schema}}}


def _path_parameters(route: Route) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "description": PARAMETERS[name],
            "schema": {"type": "string", "minLength": 1},
        }
        for name in route.parameters
    ]


def _query_parameters(route: Route, components: dict[str, Any]) -> list[dict[str, Any]]:
    schema = components[route.query.__name__]
    return [
        {"name": name, "in": "query", "required": name in schema["required"], "schema": each}
        for name, each in schema["properties"].items()
    ]


@cache
def encoded(routes: tuple[Route, ...]) -> bytes:
    """The document as JSON, as `/openapi.json` answers it and the repository keeps it."""
    found = msgspec.json.encode(document(routes), order="deterministic")
    return msgspec.json.format(found, indent=1) + b"\n"
