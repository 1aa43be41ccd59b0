"""The API's description: complete, kept in the repository, and true for generated requests."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from laneway import Laneway
from laneway.gateway import openapi
from laneway.gateway.login import tokens
from laneway.gateway.login.access import SCOPES
from laneway.gateway.route_table import ROUTES
from tests.gateway.conftest import Api, serving

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = int(os.environ.get("LANEWAY_EXAMPLES", "0"))
"""Random requests for each operation; 0: five, the same in each run."""


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


def test_optional_fields_of_requests() -> None:
    """
    A body of a request names what it must have; a default is told as text, because generated
    clients ask for a property that has one. That of an answer is there.
    """
    schemas = openapi.document(ROUTES)["components"]["schemas"]
    for name in ("MessageBody", "TopicMessageBody", "LeaseBody", "SettleBody", "DeadBody"):
        body = schemas[name]
        assert not [each for each in body["properties"].values() if "default" in each], name
    assert schemas["LeaseBody"]["required"] == []
    assert schemas["MessageBody"]["properties"]["cost"]["description"] == "Default: `1`."
    assert schemas["DeliveryAnswer"]["properties"]["cost"]["default"] == 1


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
    Requests that schemathesis makes from the document: no 500, and answers as the document says.
    """
    pytest.importorskip(
        "schemathesis", reason="schemathesis is not installed: pip install schemathesis"
    )
    from hypothesis import HealthCheck, given, settings
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
    generated lease waits.
    """
    case.headers.pop("Authorization", None)
    case.headers["authorization"] = f"Bearer {token}"
    if isinstance(case.body, dict) and "token" in case.body:
        case.body["token"] = token
    if isinstance(case.body, dict) and "wait" in case.body:
        case.body["wait"] = 0
    if "timeout" in (case.query or {}):
        case.query["timeout"] = 0


def test_schemas_of_answers(api: Api) -> None:
    """What the gateway answers has the fields of its schema."""
    properties = openapi.document(ROUTES)["components"]["schemas"]["TopicDetails"]["properties"]
    assert api("GET", "/v1/topics/a").json.keys() == properties.keys()
