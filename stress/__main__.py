"""Run trials of all kinds until the time is up, and print a table of tries and failures. Exit 1 on any failure."""

import argparse
import os
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from stress.worker import KINDS, run_trials


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m stress", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default=",".join(KINDS), help="Kinds of trials, separated by commas.")
    parser.add_argument("--tries", type=int, help="Trials of each kind, instead of minutes.")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="Trials at once.")
    args = parser.parse_args()
    end = time.time() + 60 * args.minutes
    with ProcessPoolExecutor(args.jobs, get_context("spawn")) as pool:
        seeds = [args.seed * 1000 + job for job in range(args.jobs)]
        same = ([each] * args.jobs for each in (end, args.only.split(","), args.tries))
        counts = list(pool.map(run_trials, seeds, *same))
    tries, failures = (sum(column, Counter[str]()) for column in zip(*counts, strict=True))
    _show(tries, failures)
    return 1 if failures else 0


def _show(tries: Counter[str], failures: Counter[str]) -> None:
    width = max(map(len, [*tries, "all"]))
    print(f"{'':{width}}   tries  failures")
    for what in sorted(tries):
        print(f"{what:{width}}  {tries[what]:6,}  {failures[what]:8,}")
    print(f"{'all':{width}}  {tries.total():6,}  {failures.total():8,}")


if __name__ == "__main__":
    sys.exit(main())
