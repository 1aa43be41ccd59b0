"""Every route of the gateway: method, path, scope, handler, and what it takes and answers."""

from __future__ import annotations

from typing import Any

from laneway.gateway.routes import (
    consuming,
    dead_letters,
    descriptions,
    namespace,
    policies,
    probes,
    publishing,
    tokens,
    topics,
)
from laneway.gateway.routing import Route
from laneway.gateway.schema import (
    AuditAnswer,
    AuditQuery,
    ConfirmBody,
    CountAnswer,
    CreatedTokenAnswer,
    DeadBody,
    DeadLettersAnswer,
    DeadLettersQuery,
    DryRunQuery,
    ExplainAnswer,
    GateAnswer,
    GateBody,
    GatesAnswer,
    HealthAnswer,
    LeaseAnswer,
    LeaseBody,
    ListTopicsQuery,
    LookupAnswer,
    LookupBody,
    MessageAnswer,
    MessageBody,
    Messages,
    MessagesAnswer,
    OverviewAnswer,
    PeekQuery,
    PoliciesAnswer,
    PoliciesQuery,
    PolicyChange,
    PolicyDetails,
    PublishQuery,
    ReceiptAnswer,
    RedriveBody,
    SettleAnswer,
    Settlements,
    TierBody,
    TiersAnswer,
    TokenAnswer,
    TokenBody,
    TokensAnswer,
    TokensQuery,
    TopicAnswer,
    TopicDetails,
    TopicsAnswer,
    WorkersAnswer,
    WorkersQuery,
)

Fields = dict[str, Any]
TOPIC = "/v1/topics/{topic}"
MESSAGE = TOPIC + "/messages/{id}"
POLICY = "/v1/policies/{pattern}"

ROUTES: tuple[Route, ...] = (
    Route("GET", "/healthz", None, probes.health, answer=HealthAnswer),
    Route("GET", "/readyz", None, probes.ready, answer=HealthAnswer, other_statuses=(503,)),
    Route("GET", "/problems/{kind}", None, probes.problem_kind, answer=Fields),
    Route("GET", "/openapi.json", None, descriptions.show_openapi, answer=Fields),
    Route("GET", "/docs", None, descriptions.show_docs, answer_type="text/html"),
    Route("GET", "/docs/style.css", None, descriptions.show_style, answer_type="text/css"),
    # Publish and consume
    Route(
        "POST",
        TOPIC + "/messages",
        "publish",
        publishing.publish,
        reads=MessageBody,
        query=PublishQuery,
        answer=ReceiptAnswer,
        status=201,
        other_statuses=(200, 202),
    ),
    Route(
        "POST",
        "/v1/messages",
        "publish",
        publishing.publish_many,
        reads=Messages,
        answer=list[ReceiptAnswer],
        other_statuses=(207,),
        takes_lines=True,
    ),
    Route("POST", "/v1/lease", "consume", consuming.lease, body=LeaseBody, answer=LeaseAnswer),
    Route(
        "POST",
        "/v1/settle",
        "consume",
        consuming.settle,
        body=Settlements,
        answer=list[SettleAnswer],
    ),
    # Topics and messages
    Route(
        "GET", "/v1/topics", "read", topics.list_topics, query=ListTopicsQuery, answer=TopicsAnswer
    ),
    Route("GET", TOPIC, "read", topics.show_topic, answer=TopicDetails),
    Route("DELETE", TOPIC, "operate", topics.delete, body=ConfirmBody, answer=CountAnswer),
    Route(
        "GET",
        TOPIC + "/messages",
        "read",
        topics.list_messages,
        query=PeekQuery,
        answer=MessagesAnswer,
    ),
    Route("GET", MESSAGE, "read", topics.show_message, answer=MessageAnswer),
    Route("GET", MESSAGE + "/explain", "read", topics.explain, answer=ExplainAnswer),
    Route("GET", "/v1/messages/{id}", "read", topics.show_message, answer=MessageAnswer),
    Route("GET", "/v1/messages/{id}/explain", "read", topics.explain, answer=ExplainAnswer),
    Route("POST", TOPIC + "/pause", "operate", topics.pause, answer=TopicAnswer),
    Route("POST", TOPIC + "/resume", "operate", topics.resume, answer=TopicAnswer),
    Route("POST", TOPIC + "/purge", "operate", topics.purge, body=ConfirmBody, answer=CountAnswer),
    Route("POST", "/v1/lookup", "read", topics.lookup, body=LookupBody, answer=LookupAnswer),
    # Policies, gates, tiers
    Route(
        "GET",
        "/v1/policies",
        "read",
        policies.list_policies,
        query=PoliciesQuery,
        answer=PoliciesAnswer,
    ),
    Route("GET", POLICY, "read", policies.show_policy, answer=PolicyDetails),
    Route(
        "PUT",
        POLICY,
        "operate",
        policies.set_policy,
        body=Fields,
        query=DryRunQuery,
        answer=PolicyChange,
    ),
    Route(
        "PATCH",
        POLICY,
        "operate",
        policies.change_policy,
        body=Fields,
        query=DryRunQuery,
        answer=PolicyChange,
    ),
    Route(
        "DELETE", POLICY, "operate", policies.reset_policy, query=DryRunQuery, answer=PolicyChange
    ),
    Route("GET", "/v1/gates", "read", policies.list_gates, answer=GatesAnswer),
    Route(
        "PUT", "/v1/gates/{name}", "operate", policies.set_gate, body=GateBody, answer=GateAnswer
    ),
    Route("GET", "/v1/tiers", "read", policies.list_tiers, answer=TiersAnswer),
    Route(
        "PUT", "/v1/tiers/{name}", "operate", policies.set_tier, body=TierBody, answer=TiersAnswer
    ),
    Route("DELETE", "/v1/tiers/{name}", "operate", policies.reset_tier, answer=TiersAnswer),
    # Dead letters
    Route(
        "GET",
        "/v1/dead",
        "read",
        dead_letters.list_dead_letters,
        query=DeadLettersQuery,
        answer=DeadLettersAnswer,
    ),
    Route(
        "POST",
        "/v1/dead/redrive",
        "operate",
        dead_letters.redrive,
        body=RedriveBody,
        answer=CountAnswer,
    ),
    Route("POST", "/v1/dead/drop", "operate", dead_letters.drop, body=DeadBody, answer=CountAnswer),
    # The namespace
    Route("GET", "/v1/overview", "read", namespace.overview, answer=OverviewAnswer),
    Route(
        "GET",
        "/v1/workers",
        "read",
        namespace.list_workers,
        query=WorkersQuery,
        answer=WorkersAnswer,
    ),
    # Tokens and the audit log
    Route("GET", "/v1/tokens", "admin", tokens.list_tokens, query=TokensQuery, answer=TokensAnswer),
    Route(
        "POST",
        "/v1/tokens",
        "admin",
        tokens.create_token,
        body=TokenBody,
        answer=CreatedTokenAnswer,
        status=201,
    ),
    Route("DELETE", "/v1/tokens/{id}", "admin", tokens.revoke_token, answer=TokenAnswer),
    Route("GET", "/v1/audit", "admin", tokens.list_changes, query=AuditQuery, answer=AuditAnswer),
    Route("POST", "/v1/audit/{number}/undo", "admin", tokens.undo_change, answer=PolicyChange),
)
