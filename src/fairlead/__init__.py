"""Fairlead: a message and task queue that holds millions of queues at once, and lets none of them starve another."""

from fairlead.app import Fairlead
from fairlead.delivery import Delivery
from fairlead.errors import (
    BacklogFull,
    BadMessage,
    BadPolicy,
    DependencyFailed,
    DestinationUnwell,
    EngineCorrupt,
    EngineUnavailable,
    FairleadError,
    HandlerSignal,
    JobCancelled,
    JobDead,
    JobExpired,
    JobFailed,
    LeaseLost,
    NoNamespace,
    Refused,
    Reject,
    Retry,
    SchemaMismatch,
    TopicInUse,
    UnknownHandler,
    UsageError,
)
from fairlead.message import Message, Receipt
from fairlead.policy import Backoff, Tier
from fairlead.tasks.canvas import Signature, chain, chord, group
from fairlead.tasks.carrying import get_task_logger
from fairlead.tasks.job import Job, JobState
from fairlead.tasks.queue import Dependency, Queue
from fairlead.tasks.request import Request, current_request
from fairlead.tasks.task import Task
from fairlead.topic import DeadLetter, Stats, Topic
from fairlead.working.limits import SoftTimeLimit
from fairlead.working.options import Summary

__all__ = [
    "BacklogFull",
    "Backoff",
    "BadMessage",
    "BadPolicy",
    "DeadLetter",
    "Delivery",
    "Dependency",
    "DependencyFailed",
    "DestinationUnwell",
    "EngineCorrupt",
    "EngineUnavailable",
    "Fairlead",
    "FairleadError",
    "HandlerSignal",
    "Job",
    "JobCancelled",
    "JobDead",
    "JobExpired",
    "JobFailed",
    "JobState",
    "LeaseLost",
    "Message",
    "NoNamespace",
    "Queue",
    "Receipt",
    "Refused",
    "Reject",
    "Request",
    "Retry",
    "SchemaMismatch",
    "Signature",
    "SoftTimeLimit",
    "Stats",
    "Summary",
    "Task",
    "Tier",
    "Topic",
    "TopicInUse",
    "UnknownHandler",
    "UsageError",
    "chain",
    "chord",
    "current_request",
    "get_task_logger",
    "group",
]
