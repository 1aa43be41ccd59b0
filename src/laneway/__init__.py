"""
Laneway: a message and task queue that serves millions of queues; none of them starves
another.

This module has everything that a program needs; `Laneway` is the object to begin with.
"""

from laneway.admin.dead_letters import DeadLetter
from laneway.admin.subscriptions import SubscriptionInfo
from laneway.admin.topic import Topic
from laneway.admin.views import Stats
from laneway.admin.workers import WorkerInfo
from laneway.app import Laneway
from laneway.cluster.career import Career
from laneway.cluster.consumer import Consumer
from laneway.cluster.election import Election
from laneway.cluster.term import Term
from laneway.cluster.term_store import ElectionState
from laneway.delivery import Delivery
from laneway.errors import (
    BacklogFull,
    BadMessage,
    BadPolicy,
    DependencyFailed,
    DestinationUnavailable,
    EngineCorrupt,
    EngineUnavailable,
    HandlerSignal,
    JobCancelled,
    JobDead,
    JobExpired,
    JobFailed,
    LanewayError,
    LeaseLost,
    NoNamespace,
    ProducerFull,
    Refused,
    Reject,
    Retry,
    SchemaMismatch,
    StepAborted,
    TermLost,
    TopicInUse,
    UnknownHandler,
    UsageError,
)
from laneway.history.alarms import Alarm
from laneway.history.figures import History, HistoryPart, HistoryRow, WaitingTimes
from laneway.message import Message, Receipt
from laneway.policy import Backoff, Tier
from laneway.producing.buffer import Buffer
from laneway.producing.spool import Spool
from laneway.producing.spool_file import SpoolStatus
from laneway.tasks.canvas import Signature, chain, chord, group
from laneway.tasks.context import get_task_logger
from laneway.tasks.job import Job, JobState
from laneway.tasks.queue import Dependency, Queue
from laneway.tasks.request import Request, current_request
from laneway.tasks.task import Task
from laneway.working.once import aforget_once, aonce, forget_once, once
from laneway.working.options import Summary
from laneway.working.time_limits import SoftTimeLimit

__all__ = [
    "Alarm",
    "BacklogFull",
    "Backoff",
    "BadMessage",
    "BadPolicy",
    "Buffer",
    "Career",
    "Consumer",
    "DeadLetter",
    "Delivery",
    "Dependency",
    "DependencyFailed",
    "DestinationUnavailable",
    "Election",
    "ElectionState",
    "EngineCorrupt",
    "EngineUnavailable",
    "HandlerSignal",
    "History",
    "HistoryPart",
    "HistoryRow",
    "Job",
    "JobCancelled",
    "JobDead",
    "JobExpired",
    "JobFailed",
    "JobState",
    "Laneway",
    "LanewayError",
    "LeaseLost",
    "Message",
    "NoNamespace",
    "ProducerFull",
    "Queue",
    "Receipt",
    "Refused",
    "Reject",
    "Request",
    "Retry",
    "SchemaMismatch",
    "Signature",
    "SoftTimeLimit",
    "Spool",
    "SpoolStatus",
    "Stats",
    "StepAborted",
    "SubscriptionInfo",
    "Summary",
    "Task",
    "Term",
    "TermLost",
    "Tier",
    "Topic",
    "TopicInUse",
    "UnknownHandler",
    "UsageError",
    "WaitingTimes",
    "WorkerInfo",
    "aforget_once",
    "aonce",
    "chain",
    "chord",
    "current_request",
    "forget_once",
    "get_task_logger",
    "group",
    "once",
]
