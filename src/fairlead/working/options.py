"""What can be said to a worker, and what it says at the end."""

from __future__ import annotations

import msgspec

from fairlead import arguments, units

MOST_CONCURRENCY = 100_000
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
        call = "run_worker"
        return Options(
            concurrency=arguments.whole(call, "concurrency", concurrency, most=MOST_CONCURRENCY),
            burst=bool(burst),
            pool=arguments.pool(call, pool),
            topics=arguments.topics(call, topics),
            grace=arguments.seconds(call, "grace", grace),
            processes=arguments.whole(call, "processes", processes, most=MOST_PROCESSES),
            reload=bool(reload),
        )


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
