"""Why a topic or a message is blocked, as far as a caller may know."""

from __future__ import annotations

from laneway.admin.topic_reasons import TopicExplanation
from laneway.engines.base import Explanation, FullEngine
from laneway.gateway.login.access import Caller
from laneway.push.reasons import explain_message, explain_topic
from laneway.runtime.runtime import Runtime


def of_topic(runtime: Runtime, caller: Caller, topic: str) -> TopicExplanation:
    """
    Why a topic delivers nothing, or not enough. Callers who see some topics only are not told of
    other topics and of workers; those without the scope `endpoints` are not told of its endpoint,
    and those without the scope `admin` not who changed its policy.
    """
    return explain_topic(
        runtime.engine,
        topic,
        max_backlog=runtime.max_backlog,
        shows_others=caller.sees_all,
        shows_who=caller.sees_all and "admin" in caller.scopes,
        shows_endpoint="endpoints" in caller.scopes,
    )


def of_message(
    engine: FullEngine, caller: Caller, message_id: str, topic: str | None
) -> Explanation:
    """What a message waits for; of its endpoint, if the caller has the scope `endpoints`."""
    may_know = "endpoints" in caller.scopes
    return explain_message(
        engine, message_id, topic, shows_endpoint=may_know, shows_workers=caller.sees_all
    )
