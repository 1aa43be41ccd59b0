"""
How a task's outcome and its progress are stored: as JSON. How a stored error becomes an exception
again.
"""

from __future__ import annotations

import base64
import builtins
import math
import pickle
import sys
import time
from collections.abc import Mapping
from types import ModuleType
from typing import Any, TypedDict, Unpack, cast

import msgspec

from laneway import codec, storable
from laneway.errors import BadMessage, JobCancelled, JobDead, JobExpired, JobFailed, Reject
from laneway.tasks import tagged_values
from laneway.tasks.converting import converter_to
from laneway.tasks.serializers import Serializer
from laneway.units import SECOND
from laneway.working.error_details import Details, RemoteTraceback

MAX_RESULT = 1 << 20
"""The maximum bytes of a stored result. Store a larger one elsewhere and return its name."""

RESULT_TTL, FAILURE_TTL = "10m", "1d"
"""
How long results and failures are stored, unless the application, a task or a call sets another
time.
"""

SUCCESS = "success"
FAILURE = "failure"
CANCELLED = "cancelled"
EXPIRED = "expired"
DEAD = "dead"
ENDS = (SUCCESS, FAILURE, CANCELLED, EXPIRED, DEAD)


class OwnState(msgspec.Struct):
    """
    The result of a run that chose its own final state: `state` and `about` are those of its last
    `update_state`.
    """

    state: str
    about: Any = None


class Outcome(msgspec.Struct, omit_defaults=True, kw_only=True):
    """
    How a task ended. `pickled`: the result of a task that pickles, base64. `reason`: why it ended,
    if not by an error of its own. `topic`, `published_us`: of its message, which no longer exists.
    `own_state`: the state that the task chose. `tagged`: the values of the result carry their
    types.
    """

    status: str
    at: float = 0.0
    result: Any = None
    pickled: str | None = None
    error: Details | None = None
    reason: str | None = None
    topic: str | None = None
    published_us: int = 0
    own_state: str | None = None
    tagged: bool = False


class Progress(msgspec.Struct, omit_defaults=True, kw_only=True):
    """
    The progress of a task: a state and data of `update_state`, and the data of `save_meta`. `at`:
    Unix seconds.
    """

    state: str | None = None
    about: Any = None
    meta: dict[str, Any] | None = None
    at: float = 0.0


class Origin(TypedDict, total=False):
    """Where the message of an `Outcome` came from."""

    topic: str
    published_us: int
    own_state: str
    tagged: bool


_encode = msgspec.json.Encoder(enc_hook=codec.plain).encode
_outcome = msgspec.json.Decoder(Outcome).decode
_progress = msgspec.json.Decoder(Progress).decode


def success(
    task: str,
    serializer: Serializer,
    returned: Any,
    *,
    topic: str | None = None,
    published_us: int = 0,
    own_state: str | None = None,
    tagged: bool = False,
) -> bytes:
    """The stored form of a result. Raises Reject if it cannot be stored."""
    outcome = Outcome(
        status=SUCCESS,
        at=time.time(),
        topic=topic,
        published_us=published_us,
        own_state=own_state,
        tagged=tagged,
    )
    try:
        if serializer == "pickle":
            outcome.pickled = base64.b64encode(pickle.dumps(returned)).decode()
        else:
            outcome.result = returned
        encoded = _encode(outcome)
        if returned is not None and serializer != "pickle" and b"null" in encoded:
            codec.encode(returned, task)  # raises for numbers that JSON cannot hold
    except BadMessage as error:
        raise Reject(
            f'task "{task}": its result cannot be stored:'
            f" {str(error).partition(': ')[2].replace('body', 'result')}"
        ) from error
    except BaseException as error:  # the objects' own code runs here
        what = f"{storable.type_name(type(error))}: {storable.of(error, 200)}"
        raise Reject(
            f'task "{task}": its result cannot be stored: {what}; return a JSON value, or set'
            " ignore_result=True"
        ) from error
    if len(encoded) > MAX_RESULT:
        raise Reject(
            f'task "{task}": its result has {len(encoded):,} bytes, at most {MAX_RESULT:,} are'
            " stored; store it elsewhere and return its name"
        )
    return encoded


def failure(details: Details, *, status: str = FAILURE, **origin: Unpack[Origin]) -> bytes:
    """The stored form of a final failure."""
    return _encode(Outcome(status=status, at=time.time(), error=details, **origin))


def read(encoded: bytes) -> Outcome:
    """Decode an outcome."""
    try:
        return _outcome(encoded)
    except (ValueError, RecursionError) as error:
        return Outcome(status=DEAD, reason=f"its stored outcome cannot be read: {error}")


def progress(encoded: bytes | None) -> Progress:
    """Decode the progress."""
    try:
        return _progress(encoded) if encoded is not None else Progress()
    except (ValueError, RecursionError):
        return Progress()


def encode_progress(report: Progress) -> bytes:
    """Encode the progress. Raises BadMessage."""
    report.at = time.time()
    try:
        encoded = _encode(report)
    except Exception as error:  # models of the user's own run their code here
        raise BadMessage(
            f"update_state: JSON cannot hold this ({storable.of(error, 200)}); convert it first"
        ) from error
    if len(encoded) > MAX_RESULT:
        raise BadMessage(
            f"update_state: {len(encoded):,} bytes are more than the {MAX_RESULT:,} that are stored"
        )
    return encoded


def value(outcome: Outcome, kind: Any, serializer: Serializer | None) -> Any:
    """
    The result as the type `kind`. Raises JobFailed if it is pickled and `serializer` does not allow
    that.
    """
    if outcome.pickled is not None:
        if serializer != "pickle":
            raise JobFailed(
                "its result is pickled; read it by a program that has the task, with"
                ' serializer="pickle"'
            )
        return pickle.loads(base64.b64decode(outcome.pickled))  # noqa: S301  # the application chose it by name
    result = tagged_values.untag(outcome.result) if outcome.tagged else outcome.result
    converter = None if kind is None else converter_to(kind)
    if converter is None:
        return result
    try:
        return converter(result)
    except (msgspec.ValidationError, ValueError, TypeError):
        return result  # the result does not match the annotation


def error_of(job_id: str, outcome: Outcome) -> BaseException:
    """
    The error of a failed task: itself if its class is loaded here, with the remote traceback as its
    cause.
    """
    details = outcome.error
    if details is None:
        kind = {CANCELLED: JobCancelled, EXPIRED: JobExpired, DEAD: JobDead}.get(
            outcome.status, JobFailed
        )
        return kind(f"job {job_id}: {outcome.reason or outcome.status}")
    error = _recreated(details)
    if error is None:
        error = JobFailed(f"job {job_id}: {details.type}: {details.message}")
    error.__cause__ = RemoteTraceback(details.traceback)
    return error


def _recreated(details: Details) -> BaseException | None:
    """
    The error, if its class is loaded here (a message never causes an import) and can be created
    from the stored arguments.
    """
    kind = _class(details.type)
    if kind is None or details.args is None:
        return None
    try:
        error = kind(*details.args)
        return error if storable.of(error) == details.message else None
    except Exception:  # noqa: BLE001  # a constructor of the user's own
        return None


def _class(name: str) -> type[Exception] | None:
    module, _, path = name.partition(":")
    holder: Any = builtins if module == "builtins" else sys.modules.get(module)
    for part in path.split("."):
        holder = _namespace(holder).get(part)
    return holder if issubclass(type(holder), type) and Exception in type.mro(holder) else None


def _namespace(holder: object) -> Mapping[str, Any]:
    """
    The attributes of a module or class itself. No `getattr`: a lazy module imports what is
    requested, and the author of the outcome decides what is requested.
    """
    if issubclass(type(holder), ModuleType):
        return cast(
            "Mapping[str, Any]", ModuleType.__getattribute__(cast("ModuleType", holder), "__dict__")
        )
    if issubclass(type(holder), type):
        return cast("Mapping[str, Any]", type.__dict__["__dict__"].__get__(holder))
    return {}


def keeps_header(result_ttl: int, failure_ttl: int) -> str:
    """The value of `laneway.engines.base.RESULT_TTL_HEADER`; seconds."""
    return f"{result_ttl},{failure_ttl}"


def whole_seconds(micros: int) -> int:
    """Microseconds as whole seconds, at least one."""
    return max(1, math.ceil(micros / SECOND))
