"""
`python -m tests.simulation SEED --engine model`: run one fleet, and show what each topic got.

With `--count N` run the fleets SEED, SEED + 1 …, and show those that fail.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback

from tests.simulation import fleets, operations
from tests.simulation.fleets import ENGINES

KINDS = {"fleets": fleets.run, "operations": operations.run}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("seed", type=int, nargs="?", default=1)
    parser.add_argument("--engine", choices=list(ENGINES), default="sqlite")
    parser.add_argument("--kind", choices=list(KINDS), default="fleets")
    parser.add_argument("--seconds", type=float, default=60.0, help="virtual time; default: 60")
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("-v", "--verbose", action="store_true", help="show the cost of each fleet")
    options = parser.parse_args()
    begin, calls, virtual = time.process_time(), 0, 0.0
    failed: list[int] = []
    times: list[float] = []
    for seed in range(options.seed, options.seed + options.count):
        try:
            fleet = KINDS[options.kind](seed, options.engine, options.seconds)
        except Exception as error:
            failed.append(seed)
            print(f"seed {seed}: {error}", flush=True)
            if options.count == 1:
                traceback.print_exc()
            continue
        took = time.process_time() - begin - sum(times)
        times.append(took)
        if options.verbose:
            print(
                f"seed {seed}: {took:.1f} s, {fleet.store.calls} calls, {fleet.clock.seconds:.0f} s"
            )
        calls += fleet.store.calls
        virtual += fleet.clock.seconds
        if options.count == 1:
            for topic, report in fleet.report().items():
                print(topic, report)
    print(
        f"{options.engine}: {len(failed)} of {options.count} fleets failed {failed};"
        f" {calls:,} calls, {virtual:,.0f} s of virtual time in {time.process_time() - begin:.1f} s"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
