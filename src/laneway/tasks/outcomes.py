"""
How the end of a task is kept, and what was noted of it meanwhile: JSON under the message's id; and
how an error comes back as itself.
"""

from __future__ import annotations

import base64
import builtins
import math
import pickle
import sys
import time
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, cast

import msgspec

from laneway import codec, texts
from laneway.errors import BadMessage, JobCancelled, JobDead, JobExpired, JobFailed, Reject
from laneway.tasks import tagged
from laneway.tasks.converting import convert
from laneway.units import SECOND
from laneway.working.error_details import Details  # noqa: TC001  # msgspec reads it

if TYPE_CHECKING:
    from collections.abc import Mapping

    from laneway.tasks.serializers import Serializer

MAX_RESULT = 1 << 20
"""Bytes of a result as it is kept; what is larger belongs somewhere else, and its name here."""

RESULT_TTL, FAILURE_TTL = "10m", "1d"
"""How long the end of a task is kept, where nobody says otherwise."""

SUCCESS = "success"
FAILURE = "failure"
CANCELLED = "cancelled"
EXPIRED = "expired"
DEAD = "dead"
ENDS = (SUCCESS, FAILURE, CANCELLED, EXPIRED, DEAD)


class Said(msgspec.Struct):
    """
    Returned by a run that has said itself how it ended: `state` and `about` are what `update_state`
    was told last.
    """

    state: str
    about: Any = None


class Outcome(msgspec.Struct, omit_defaults=True, kw_only=True):
    """
    How a task ended. `pickled`: the result of a task that pickles, base64. `reason`: of ends that
    the task itself did not tell. `topic`, `published_us`: of its message, which is gone by then.
    `said`: the state that the task has set itself. `tagged`: the result has its types with it.
    """

    status: str
    at: float = 0.0
    result: Any = None
    pickled: str | None = None
    error: Details | None = None
    reason: str | None = None
    topic: str | None = None
    published_us: int = 0
    said: str | None = None
    tagged: bool = False


class Progress(msgspec.Struct, omit_defaults=True, kw_only=True):
    """
    What is noted of a task: a state of its own with something about it, and what `save_meta` keeps.
    `at`: Unix seconds.
    """

    state: str | None = None
    about: Any = None
    meta: dict[str, Any] | None = None
    at: float = 0.0


class Origin(TypedDict, total=False):
    """Where the message of an `Outcome` came from."""

    topic: str
    published_us: int
    said: str
    tagged: bool


_encode = msgspec.json.Encoder(enc_hook=codec.plain).encode
_outcome = msgspec.json.Decoder(Outcome).decode
_progress = msgspec.json.Decoder(Progress).decode


def success(task: str, serializer: Serializer, returned: Any, **origin: Unpack[Origin]) -> bytes:
    """What is kept of a task that returned. Raises Reject where that cannot be."""
    made = Outcome(status=SUCCESS, at=time.time(), **origin)
    try:
        if serializer == "pickle":
            made.pickled = base64.b64encode(pickle.dumps(returned)).decode()
        else:
            made.result = returned
        kept = _encode(made)
        if returned is not None and serializer != "pickle" and b"null" in kept:
            codec.encode(returned, task)  # it tells numbers that JSON cannot hold
    except BadMessage as error:
        raise Reject(
            f'task "{task}": its result cannot be kept:'
            f" {str(error).partition(': ')[2].replace('body', 'result')}"
        ) from error
    except BaseException as error:  # the objects' own code runs here
        told = f"{texts.type_name(type(error))}: {texts.of(error, 200)}"
        raise Reject(
            f'task "{task}": its result cannot be kept: {told}; return what JSON can hold, or say'
            " ignore_result=True"
        ) from error
    if len(kept) > MAX_RESULT:
        raise Reject(
            f'task "{task}": its result has {len(kept):,} bytes, at most {MAX_RESULT:,} are kept;'
            " store it elsewhere and return its name"
        )
    return kept


def failure(details: Details, *, status: str = FAILURE, **origin: Unpack[Origin]) -> bytes:
    """What is kept of a task that failed for good."""
    return _encode(Outcome(status=status, at=time.time(), error=details, **origin))


def read(kept: bytes) -> Outcome:
    """An outcome as it was kept."""
    try:
        return _outcome(kept)
    except (ValueError, RecursionError) as error:
        return Outcome(status=DEAD, reason=f"what is kept of it cannot be read: {error}")


def progress(noted: bytes | None) -> Progress:
    """What was noted."""
    try:
        return _progress(noted) if noted is not None else Progress()
    except (ValueError, RecursionError):
        return Progress()


def noted(made: Progress) -> bytes:
    """As it is kept. Raises BadMessage."""
    made.at = time.time()
    try:
        kept = _encode(made)
    except Exception as error:  # models of the user's own run their code here
        raise BadMessage(
            f"update_state: JSON cannot hold this ({texts.of(error, 200)}); convert it first"
        ) from error
    if len(kept) > MAX_RESULT:
        raise BadMessage(
            f"update_state: {len(kept):,} bytes are more than the {MAX_RESULT:,} that are kept"
        )
    return kept


def value(outcome: Outcome, kind: Any, serializer: Serializer | None) -> Any:
    """
    The result, as the type that the task says it returns. Raises JobFailed where it is pickled and
    nobody here said that this is wanted.
    """
    if outcome.pickled is not None:
        if serializer != "pickle":
            raise JobFailed(
                "its result is pickled; read it by a program that has the task, with"
                ' serializer="pickle"'
            )
        return pickle.loads(base64.b64decode(outcome.pickled))  # noqa: S301  # the application chose it by name
    result = tagged.untag(outcome.result) if outcome.tagged else outcome.result
    if kind is None:
        return result
    try:
        return convert(result, kind)
    except (msgspec.ValidationError, ValueError, TypeError):
        return result  # it returned something else than it says


def error_of(job_id: str, outcome: Outcome) -> BaseException:
    """
    What a failed task's handle raises: the error itself where its class is known here, with the
    remote traceback as its cause.
    """
    details = outcome.error
    if details is None:
        kind = {CANCELLED: JobCancelled, EXPIRED: JobExpired, DEAD: JobDead}.get(
            outcome.status, JobFailed
        )
        return kind(f"job {job_id}: {outcome.reason or outcome.status}")
    made = _made_again(details)
    if made is None:
        made = JobFailed(f"job {job_id}: {details.type}: {details.message}")
    made.__cause__ = RemoteTraceback(details.traceback)
    return made


class RemoteTraceback(Exception):  # it is none: it stands behind one
    """Where it happened, in the process that ran the task."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}\n"""'


def _made_again(details: Details) -> BaseException | None:
    """
    The error, if its class is loaded here (nothing is imported because a message says so) and can
    be made of what was kept.
    """
    kind = _class(details.type)
    if kind is None or details.args is None:
        return None
    try:
        made = kind(*details.args)
        return made if texts.of(made) == details.message else None
    except Exception:  # noqa: BLE001  # a constructor of the user's own
        return None


def _class(name: str) -> type[Exception] | None:
    module, _, path = name.partition(":")
    found: Any = builtins if module == "builtins" else sys.modules.get(module)
    for part in path.split("."):
        found = _namespace(found).get(part)
    return found if issubclass(type(found), type) and Exception in type.mro(found) else None


def _namespace(holder: object) -> Mapping[str, Any]:
    """
    What a module or a class holds itself. No `getattr`: a lazy module imports what is asked for,
    and who wrote the outcome asks.
    """
    if issubclass(type(holder), ModuleType):
        return cast(
            "Mapping[str, Any]", ModuleType.__getattribute__(cast("ModuleType", holder), "__dict__")
        )
    if issubclass(type(holder), type):
        return cast("Mapping[str, Any]", type.__dict__["__dict__"].__get__(holder))
    return {}


def keeps_header(result_ttl: int, failure_ttl: int) -> str:
    """See `laneway.engines.base.RESULT_TTL_HEADER`; seconds."""
    return f"{result_ttl},{failure_ttl}"


def whole_seconds(micros: int) -> int:
    """At least one."""
    return max(1, math.ceil(micros / SECOND))
