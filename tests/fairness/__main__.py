"""
`python -m tests.fairness SEED --engine model`: run one case, and show what each topic got.

With `--cases N` run the cases FIRST, FIRST + 1 …, and show those that fail, and a summary.
"""

from __future__ import annotations

import argparse
import sys
import time
from math import inf

from tests.fairness.running import ENGINES, run_case


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fairness", description=__doc__)
    parser.add_argument("seed", type=int, nargs="?", default=1)
    parser.add_argument("--engine", choices=list(ENGINES), default="model")
    parser.add_argument("--cases", type=int, help="how many cases to run")
    parser.add_argument("--first", type=int, help="the first seed; default: SEED")
    parser.add_argument("-v", action="store_true", help="show the cases that pass, too")
    parser.add_argument("-q", action="store_true", help="show one line for each case that fails")
    options = parser.parse_args()
    first = options.first if options.first is not None else options.seed
    begin = time.perf_counter()
    failed: list[int] = []
    topics, worst, exceeded, judged = 0, (inf, 0), 0, 0
    for seed in range(first, first + (options.cases or 1)):
        judgment = run_case(seed, options.engine)
        worst = min(worst, (judgment.worst, seed))
        topics += len(judgment.failed)
        judged += len(judgment.verdicts)
        exceeded += len(judgment.exceeded)
        if judgment.is_failed:
            failed.append(seed)
        if options.q and judgment.is_failed:
            names = " ".join(f"{v.topic.name}:{v.ratio:.2f}" for v in judgment.failed)
            print(f"seed {seed}: {names} {judgment.exceeded or ''}", flush=True)
        elif options.v or judgment.is_failed or options.cases is None:
            print(judgment.table(), end="\n\n", flush=True)
    if options.cases is not None:
        print(
            f"{options.engine}: {len(failed)} of {options.cases} cases failed; "
            f"{topics} of {judged} topics, {exceeded} limits exceeded; "
            f"worst ratio {worst[0]:.2f} (seed {worst[1]}); {time.perf_counter() - begin:.0f} s"
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
