"""Run the batch with a provider and two workers, and say what the provider saw."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from examples.llm_batch.provider import TOKENS_PER_SECOND, Provider, running

WORKERS = 2
CUSTOMERS = {"large": 100, "small": 6, "tiny": 2}
"""Documents by customer."""

Report = dict[str, float]


def documents() -> list[tuple[str, int, str]]:
    """(customer, number, text) of each document, the large customer's first."""
    draw = random.Random(1)
    return [
        (customer, number, f"{customer} {number} " + "word " * draw.randint(20, 400))
        for customer, count in CUSTOMERS.items()
        for number in range(count)
    ]


def run(folder: Path) -> Report:
    """Submit all documents, let the workers end, and count."""
    with running() as provider:
        os.environ["LANEWAY_URL"] = f"sqlite:///{folder}/laneway.db"
        os.environ["PROVIDER_URL"] = provider.url
        from examples.llm_batch.batch import app, submit  # it reads the address

        with app:
            for document in documents():
                submit(*document)
        command = ["-m", "laneway", "worker", "examples.llm_batch.batch:app", "--burst", "-c", "16"]
        workers = [
            subprocess.Popen([sys.executable, *command], stderr=subprocess.DEVNULL)
            for _ in range(WORKERS)
        ]
        for worker in workers:
            worker.wait()
        return report(provider)


def report(provider: Provider) -> Report:
    """What the provider saw."""
    seen = provider.seen
    done = [call for call in seen if call.status == 200]
    seconds = seen[-1].at - seen[0].at
    used = sum(call.tokens for call in done)
    last_of = {call.customer: call.at - seen[0].at for call in done}
    calls_to = {call.customer: number for number, call in enumerate(done, 1)}
    return {
        "documents": sum(CUSTOMERS.values()),
        "summarized": len({(call.customer, call.document) for call in done}),
        "calls": len(done),
        "refused": len(seen) - len(done),
        "calls at once": provider.most_at_once,
        "seconds": seconds,
        "tokens": used,
        "share of the limit": used / (TOKENS_PER_SECOND * seconds),
        **{f"{customer} was ready after": at for customer, at in last_of.items()},
        **{f"calls until {customer} was ready": count for customer, count in calls_to.items()},
    }


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as work:
        for name, value in run(Path(work)).items():
            print(f"{name:24} {value:8.2f}")
