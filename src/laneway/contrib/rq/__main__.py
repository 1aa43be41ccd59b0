"""`python -m laneway.contrib.rq QUEUE…`: give the waiting jobs back to RQ's own workers."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from redis import Redis

from laneway.contrib.rq.queue import Queue
from laneway.errors import LanewayError
from laneway.printable import escaped, without_passwords


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m laneway.contrib.rq",
        description="Push the jobs that wait in Laneway back to RQ's lists. Stop Laneway's workers"
        " first.",
    )
    parser.add_argument("queues", nargs="+")
    parser.add_argument("-u", "--url", default="redis://localhost:6379", help="RQ's Redis")
    options = parser.parse_args(arguments)
    connection = Redis.from_url(options.url)
    try:
        for name in options.queues:
            count = Queue(name, connection=connection).return_to_rq()
            sys.stdout.write(f"{escaped(name)}: {count} jobs returned to RQ\n")
    except LanewayError as error:
        sys.stderr.write(f"Error: {escaped(without_passwords(str(error)))}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
