"""What can be said to a worker, and what it says at the end."""

from __future__ import annotations

import msgspec

from fairlead import units
from fairlead.errors import UsageError

MOST_PROCESSES = 1_000


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker is to run."""

    concurrency: int = 100
    burst: bool = False
    pool: str = "default"
    topics: list[str] | None = None
    grace: float = 30.0
    processes: int = 1
    reload: bool = False

    @staticmethod
    def checked(concurrency: object, pool: object, topics: object, grace: units.Duration, processes: object, *, burst: bool, reload: bool) -> Options:
        """Check what `run_worker` was given. Raises UsageError, which names the option and what was expected."""
        if not isinstance(pool, str) or not pool:
            raise UsageError(f"run_worker: expected pool to be a name, got {pool!r}")
        return Options(
            concurrency=_count("concurrency", concurrency, 100_000),
            burst=burst,
            pool=pool,
            topics=_topics(topics),
            grace=_grace(grace),
            processes=_count("processes", processes, MOST_PROCESSES),
            reload=reload,
        )


def _topics(topics: object) -> list[str] | None:
    if topics is None:
        return None
    if not isinstance(topics, (list, tuple)) or not topics or not all(isinstance(topic, str) for topic in topics):
        raise UsageError(f"run_worker: expected topics to be a list of topics' names, got {topics!r}")
    return list(topics)


def _grace(grace: units.Duration) -> float:
    try:
        seconds = units.seconds(grace)
    except ValueError as error:
        raise UsageError(f"run_worker: grace: {error}") from error
    if seconds < 0:
        raise UsageError(f"run_worker: expected grace to be at least 0, got {grace!r}")
    return seconds


def _count(option: str, value: object, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise UsageError(f"run_worker: expected {option} to be a whole number from 1 to {most:,}, got {value!r}")
    return value


class Summary(msgspec.Struct):
    """What a worker did, or several under a supervisor together: settlements by kind."""

    acked: int = 0
    retried: int = 0
    died: int = 0
    released: int = 0
    lost: int = 0

    @property
    def handled(self) -> int:
        """Deliveries that were run to an end."""
        return self.acked + self.retried + self.died
