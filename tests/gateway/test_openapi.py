"""The API's description: complete, kept in the repository, and true for generated requests."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest

from laneway import Laneway
from laneway.gateway import openapi
from laneway.gateway.field_texts import TEXTS
from laneway.gateway.login import tokens
from laneway.gateway.login.access import SCOPES
from laneway.gateway.problems import ProblemBody
from laneway.gateway.route_table import ROUTES
from laneway.gateway.schema import LineAnswer
from laneway.gateway.value_schemas import VALUES
from laneway.policy import FIELDS
from laneway.push.table import SETTINGS
from tests.gateway.conftest import Api, serving

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = int(os.environ.get("LANEWAY_EXAMPLES", "0"))
"""Random requests for each operation; 0: five, the same in each run."""

RELATIONS = re.compile(
    "confirm: expected the name|contradict each other|give one of them|no meaning without"
    "|page|expected a rate, a concurrency or both|expected one of every"
    "|is no time zone|expected max_priority|expected tier to be one of|no policy has the pattern"
    "|give url=|expected settings of the endpoint|certificate in PEM|takes a topic|at most 60 days"
    "|expected a period|--concurrency|must be after"
)
"""
Why a request that fits its schema may be refused: for what two of its fields, or the store, say
together.
"""


@pytest.fixture(scope="module")
def api(store: str) -> Iterator[Api]:
    """With a token: generated requests create tokens, after which every request needs one."""
    with Laneway(store) as app:
        _, token, _ = tokens.create(app.engine, "admin", SCOPES)
    with serving(store) as (api, _):
        yield Api(api.port, token=token)


def test_document_is_up_to_date() -> None:
    """docs/reference/openapi.json is what the code says; `make docs-pages` writes it."""
    kept = (ROOT / "docs" / "reference" / "openapi.json").read_bytes()
    assert kept == openapi.encoded(ROUTES)


def test_document_is_complete() -> None:
    """Each route has its operation with a summary; every reference leads somewhere."""
    document = openapi.document(ROUTES)
    names = []
    for route in ROUTES:
        operation = document["paths"][route.path][route.method.lower()]
        assert operation["summary"], route
        assert str(route.status) in operation["responses"]
        names.append(operation["operationId"])
        assert len(operation["tags"]) == 1
    assert len(names) == len(set(names))
    assert {"publish", "publish_many", "lease", "settle", "pause_topic"} <= set(names)
    assert openapi.OPERATIONS.keys() <= {
        f"{route.handler.__module__.rpartition('.')[2]}.{route.handler.__name__}"
        for route in ROUTES
    }
    text = json.dumps(document)
    for name in re.findall(r'"#/components/schemas/(\w+)"', text):
        assert name in document["components"]["schemas"]


def test_everything_is_described() -> None:
    """
    Each field, parameter, header, tag and answer has a text, and no text is left over.
    """
    document = openapi.document(ROUTES)
    for name, schema in document["components"]["schemas"].items():
        assert schema["description"], name
        for field, each in schema.get("properties", {}).items():
            assert re.match(r"[A-Z0-9`]|\w+:", each["description"]), f"{name}.{field}"
    operations = [each for path in document["paths"].values() for each in path.values()]
    for operation in operations:
        for each in operation.get("parameters", []):
            assert re.match("[A-Z0-9`]", each["description"]), (operation["operationId"], each)
        for answer in operation["responses"].values():
            assert answer["description"]
            assert all(each["description"] for each in answer.get("headers", {}).values())
    assert {tag["name"] for tag in document["tags"]} == {
        tag for operation in operations for tag in operation["tags"]
    }
    assert document["servers"]
    structs: dict[str, Any] = {}
    for route in ROUTES:
        for kind in (route.reads, route.answer, route.query, *route.events.values()):
            openapi.collect(kind, structs)
    openapi.collect(ProblemBody, structs)
    openapi.collect(LineAnswer, structs)
    described = {
        found
        for struct in structs.values()
        for field in msgspec.structs.fields(struct)
        for found in openapi.names_of(struct, field.encode_name)
    }
    assert TEXTS.keys() <= described
    assert VALUES.keys() <= described


def test_fields_have_the_types_that_clients_need() -> None:
    """
    A default is told as text: generated clients ask programs for a property that has one. A field
    that an answer always has is required. Times, and numbers above 32 bits, have formats.
    """
    document = openapi.document(ROUTES)
    schemas = document["components"]["schemas"]
    assert '"default":' not in json.dumps(document).replace('"default": {', "")
    assert schemas["LeaseBody"]["required"] == []
    assert schemas["MessageBody"]["properties"]["cost"]["description"].endswith("Default: `1`.")
    assert schemas["LeaseAnswer"]["required"] == ["deliveries", "next_wake"]
    assert schemas["DeliveryAnswer"]["properties"]["deadline"]["format"] == "date-time"
    assert schemas["TopicAnswer"]["properties"]["bytes"]["format"] == "int64"
    assert schemas["PolicyBody"]["properties"].keys() == FIELDS.keys()
    assert schemas["EndpointBody"]["properties"].keys() == set(SETTINGS)
    content = document["paths"]["/v1/topics/{topic}/messages"]["post"]["requestBody"]["content"]
    assert content["application/octet-stream"]["schema"]["format"] == "binary"


def test_examples(api: Api) -> None:
    """The requests that the document shows are carried out as they are."""
    operations = _examples()
    assert len(operations) >= 20
    api("PUT", "/v1/endpoints/push.acme", {"url": "https://acme.example/hooks"})
    for name in ("set_policy", "set_endpoint", "publish", "subscribe", *operations):
        method, path, media_type, example = operations[name]
        if name in ("settle", "log_in"):  # with a receipt and a token of the reader's own
            continue
        content = json.dumps(example).encode() + b"\n"
        answer = api(method, path, content, headers={"content-type": media_type})
        assert answer.status < 300, (name, answer.content)


def _examples() -> dict[str, tuple[str, str, str, Any]]:
    """Method, path, media type and body of each operation with an example."""
    values = {"topic": "push.acme", "pattern": "push.*", "name": "audit", "id": "a"}
    return {
        operation["operationId"]: (
            method.upper(),
            re.sub(r"{(\w+)}", lambda found: values[found[1]], path),
            media_type,
            content["example"],
        )
        for path, methods in openapi.document(ROUTES)["paths"].items()
        for method, operation in methods.items()
        for media_type, content in operation.get("requestBody", {}).get("content", {}).items()
        if "example" in content
    }


def test_pages(api: Api) -> None:
    """The document and the page are served without a token, and need no other site."""
    nobody = Api(api.port)
    document = nobody("GET", "/openapi.json").json
    assert document["openapi"] == "3.1.0"
    page = nobody("GET", "/docs").content.decode()
    for route in ROUTES:
        assert route.path in page
    assert "<script" not in page
    assert "style=" not in page
    assert re.findall(r'(?:src|href)="([^"]+)"', page) == ["docs/style.css", "openapi.json"]
    assert b"{" in nobody("GET", "/docs/style.css").content


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_generated_requests(api: Api, route: Any) -> None:
    """
    Requests that schemathesis makes from the document: no 500, none is refused for what a schema
    could say, and answers as the document says.
    """
    pytest.importorskip(
        "schemathesis", reason="schemathesis is not installed: pip install schemathesis"
    )
    from hypothesis import HealthCheck, Phase, given, settings
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi.checks import (
        content_type_conformance,
        response_schema_conformance,
        status_code_conformance,
    )

    if route.answer_type == "text/event-stream":
        pytest.skip("a stream has no end")
    operation = _schema()[route.path][route.method]

    @settings(
        max_examples=EXAMPLES or 5,
        derandomize=not EXAMPLES,
        phases=tuple(Phase) if EXAMPLES else (Phase.generate,),
        print_blob=True,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    @given(case=operation.as_strategy())
    def send(case: Any) -> None:
        _prepare(case, api.token)
        response = case.call(base_url=f"http://127.0.0.1:{api.port}")
        assert response.status_code < 500, response.text
        assert response.status_code not in {401, 429}, "the request did not reach its operation"
        assert response.status_code != 400 or RELATIONS.search(response.text), response.text
        case.validate_response(
            response,
            checks=[
                not_a_server_error,
                status_code_conformance,
                content_type_conformance,
                response_schema_conformance,
            ],
        )

    send()


@cache
def _schema() -> Any:
    schemathesis = pytest.importorskip("schemathesis")
    schemathesis.serializer("application/x-ndjson")(_line)
    return schemathesis.openapi.from_dict(openapi.document(ROUTES))


def _line(_: Any, value: Any) -> bytes:
    return json.dumps(value).encode() + b"\n"


def _prepare(case: Any, token: str | None) -> None:
    """
    Give it the token, and no other: the gateway refuses an address after some bad ones. No
    generated request waits. Whole numbers are written as such: JSON Schema takes 1.0 for an
    integer.
    """
    case.body = _whole(case.body)
    case.headers.pop("Authorization", None)
    case.headers["authorization"] = f"Bearer {token}"
    if isinstance(case.body, dict) and "token" in case.body:
        case.body["token"] = token
    if isinstance(case.body, dict) and "wait" in case.body:
        case.body["wait"] = 0
    if case.path.endswith("/wait"):
        case.query = {**(case.query or {}), "timeout": 0}


def _whole(value: Any) -> Any:
    if isinstance(value, list):
        return [_whole(each) for each in value]
    if isinstance(value, dict):
        return {name: _whole(each) for name, each in value.items()}
    return int(value) if isinstance(value, float) and value.is_integer() else value


def test_schemas_of_answers(api: Api) -> None:
    """What the gateway answers has the fields of its schema."""
    properties = openapi.document(ROUTES)["components"]["schemas"]["TopicDetails"]["properties"]
    assert api("GET", "/v1/topics/a").json.keys() == properties.keys()


def test_event_streams() -> None:
    """A stream's answer lists its events: their name, and the schema of their JSON."""
    schemas = openapi.document(ROUTES)["components"]["schemas"]
    for route in ROUTES:
        assert bool(route.events) == (route.answer_type == "text/event-stream"), route.path
        for name, kind in route.events.items():
            event = schemas[f"Streamed{name.title()}"]["properties"]
            assert event["event"]["const"] == name
            assert event["data"]["$ref"] == f"#/components/schemas/{kind.__name__}"
