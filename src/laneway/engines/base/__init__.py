"""
The protocols that every engine implements, one module for each role.

| role | purpose | callers | | --- | --- | --- | | `Queue` | put, lease, settle, extend: the hot
path | producers and workers | | `Wakeup` | wait and listen, so that nothing polls | workers, jobs |
| `Results` | outcomes and progress under message ids | tasks, flows | | `Admin` | topics, policies,
tiers, gates, dead letters, doctor | application, command line | | `Elections` | records of who
holds which term | `laneway.cluster` | | `Records` | small records outside the queue, such as tokens
| `laneway.gateway` | | `Transfer` | move messages to another store | `laneway migrate` | |
`Coordination` | which workers are alive | workers, command line | | `History` | what happened so
far, by tier and pattern | `laneway.history` | | `DeliveryLog` | requests to endpoints, bounded |
`laneway.push` |

`FullEngine` combines all of them; `laneway.engines.open_engine` returns one.

Rules that hold for every method:

- Engines are synchronous and thread-safe. Async callers run them in threads.
- Each operation of the hot path takes a batch and is atomic per shard.
- Times are integer microseconds since 1970, durations integer microseconds, unless the name or the
  docstring specifies another unit.
- `now_us` replaces the engine's clock in tests. The clock never goes back: a value smaller than an
  earlier one counts as the earlier one.
- Every method may raise EngineUnavailable (`applied` tells whether the change may have happened)
  and EngineCorrupt. Docstrings name the other errors.
- An engine imports nothing from the layers above it.

docs/specification.md has the exact rules; `tests/model` implements the same rules as a program, and
tests compare every engine with it. docs/writing-an-engine.md explains how to write and register an
engine.
"""

from laneway.engines.base.admin import Admin
from laneway.engines.base.constants import (
    ABORT,
    BACK_OFF_FIRST_US,
    BACK_OFF_MAX_US,
    CHANGED,
    ENDED,
    FLOW_HEADER,
    FORWARD_AT_ONCE,
    FORWARDED_US,
    HEARTBEAT_TIMEOUT,
    HOUSEKEEPING_LIMIT,
    MAX_PASSED_OVER,
    MOST_SPARE_DROPS,
    RESULT_TTL_HEADER,
    SIGNALS_HEADER,
    STICKY_US,
    TASK_HEADER,
    UNHANDLED_FIRST_US,
    UNHANDLED_MAX_US,
    UNTIL_SIGNALLED_US,
    housekeeping_of_lease,
    result_name,
)
from laneway.engines.base.delivery_log import DeliveryLog, LogEntry
from laneway.engines.base.elections import Elections
from laneway.engines.base.history import (
    MAX_TALLIES,
    OTHER_PATTERNS,
    WAIT_BOUNDS_US,
    History,
    Tallies,
    Tally,
    WaitCounts,
)
from laneway.engines.base.opening import (
    Capabilities,
    Durability,
    FullEngine,
    OpenEngine,
    Settings,
)
from laneway.engines.base.presence import (
    MAX_BUSY_TOPICS,
    MAX_HANDLERS,
    MAX_WORKER_NAMES,
    MAX_WORKER_TEXT,
    OTHER_HANDLERS,
    PING,
    Coordination,
    RunningMessage,
    WorkerFacts,
    WorkerState,
    WorkerView,
)
from laneway.engines.base.queue import Queue
from laneway.engines.base.records import RecordChange, RecordKind, Records
from laneway.engines.base.results import CancelAnswer, Results
from laneway.engines.base.transfer import ExportedMessage, ImportAnswer, SpoolBatch, Transfer
from laneway.engines.base.views import (
    BY_OPERATOR,
    HELD_STATES,
    MAX_DELAYED_COUNTED,
    Cause,
    Check,
    DoctorStep,
    ExplainedState,
    Explanation,
    HeldState,
    IdState,
    LaneRate,
    LaneState,
    MessageState,
    MessageView,
    MoveAnswer,
    MoveTarget,
    Overview,
    StorePart,
    TierStats,
    TopicOrder,
    TopicStats,
)
from laneway.engines.base.wakeup import ArrivalListener, ResultListener, Wakeup, WorkListener

__all__ = [
    "ABORT",
    "BACK_OFF_FIRST_US",
    "BACK_OFF_MAX_US",
    "BY_OPERATOR",
    "CHANGED",
    "ENDED",
    "FLOW_HEADER",
    "FORWARDED_US",
    "FORWARD_AT_ONCE",
    "HEARTBEAT_TIMEOUT",
    "HELD_STATES",
    "HOUSEKEEPING_LIMIT",
    "MAX_BUSY_TOPICS",
    "MAX_DELAYED_COUNTED",
    "MAX_HANDLERS",
    "MAX_PASSED_OVER",
    "MAX_TALLIES",
    "MAX_WORKER_NAMES",
    "MAX_WORKER_TEXT",
    "MOST_SPARE_DROPS",
    "OTHER_HANDLERS",
    "OTHER_PATTERNS",
    "PING",
    "RESULT_TTL_HEADER",
    "SIGNALS_HEADER",
    "STICKY_US",
    "TASK_HEADER",
    "UNHANDLED_FIRST_US",
    "UNHANDLED_MAX_US",
    "UNTIL_SIGNALLED_US",
    "WAIT_BOUNDS_US",
    "Admin",
    "ArrivalListener",
    "CancelAnswer",
    "Capabilities",
    "Cause",
    "Check",
    "Coordination",
    "DeliveryLog",
    "DoctorStep",
    "Durability",
    "Elections",
    "ExplainedState",
    "Explanation",
    "ExportedMessage",
    "FullEngine",
    "HeldState",
    "History",
    "IdState",
    "ImportAnswer",
    "LaneRate",
    "LaneState",
    "LogEntry",
    "MessageState",
    "MessageView",
    "MoveAnswer",
    "MoveTarget",
    "OpenEngine",
    "Overview",
    "Queue",
    "RecordChange",
    "RecordKind",
    "Records",
    "ResultListener",
    "Results",
    "RunningMessage",
    "Settings",
    "SpoolBatch",
    "StorePart",
    "Tallies",
    "Tally",
    "TierStats",
    "TopicOrder",
    "TopicStats",
    "Transfer",
    "WaitCounts",
    "Wakeup",
    "WorkListener",
    "WorkerFacts",
    "WorkerState",
    "WorkerView",
    "housekeeping_of_lease",
    "result_name",
]
