"""Renewed models beside newly fitted ones, night after night: recall of the next day, time, and answers that stay.

    python benchmarks/quality/nightly_renewal.py diginetica.parquet --out results/renewal.json

The users of the log are sessions, numbered in the order of time. A day is a number of sessions. The first model is
fitted to the sessions before the first night. Every night the model is renewed with the sessions of the day, and
another one is fitted to the same joined log from the beginning. Both are measured on the sessions of the next day: the
first half of a session is the history, and the second half is to be found.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import polars as pl
import torch

import beamtree as bt
from beamtree.evaluate.metrics import bootstrap
from beamtree.live import renew
from beamtree.live.renewal import compare_answers

M = (10, 50, 200)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("log")
    parser.add_argument("--sessions", type=int, default=60_000, help="of the first fit")
    parser.add_argument("--day", type=int, default=1_300, help="sessions")
    parser.add_argument("--nights", type=int, default=7)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    log = pl.read_parquet(options.log)
    end = int(log["user"].max()) + 1 - options.day * (options.nights + 1)  # the sessions of the last day only test
    records: list[dict[str, object]] = []
    recalls: dict[str, list[torch.Tensor]] = {"renewed": [], "fitted": [], "first": []}
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        first = log.filter(pl.col("user").is_between(end - options.sessions, end - 1))
        shop, seconds, _ = timed(lambda: bt.Recommender(seed=0, refit=False).fit(first, split="halves", verbose=False))
        print(f"first fit {seconds:.0f} s", flush=True)
        shop.save(run)
        fitted, before = shop, shop.data
        stale = bt.Recommender.load(run)
        for night in range(1, options.nights + 1):
            day = pl.col("user") - end - (night - 1) * options.day
            today, tomorrow = (log.filter(day.is_between(start, start + options.day - 1)) for start in (0, options.day))
            report, *of_renewal = timed(lambda today=today: renew(run, today, verbose=False))
            renewed = bt.Recommender.load(run)
            yesterday = fitted
            fitted, *of_fit = timed(lambda: bt.Recommender(seed=0, refit=False).fit(run / "data", verbose=False))
            models = {"renewed": renewed, "fitted": fitted, "first": stale}
            results = {name: each.evaluate(M, metrics="recall", data=tomorrow) for name, each in models.items()}
            for name, result in results.items():
                recalls[name].append(result.per_user[:, :, 0])
            record = {
                "night": night,
                **{f"{name}@{m}": result["recall", m] for name, result in results.items() for m in M},
                "users": results["renewed"].users,
                "renewal_seconds": of_renewal[0],
                "renewal_cpu_seconds": of_renewal[1],
                "fit_seconds": of_fit[0],
                "fit_cpu_seconds": of_fit[1],
                "unchanged": report.unchanged,
                "unchanged_by_fits": compare_answers(yesterday.model, fitted.model, before)[0],
                "saved": report.saved,
                "new_items": report.items,
                "new_events": report.events,
                "check": report.as_dict()["recall"],
            }
            before = renewed.data
            records.append(record)
            print(json.dumps(record), flush=True)
        joined = {name: torch.cat(each) for name, each in recalls.items()}
        summary = []
        for other in ("fitted", "first"):
            low, high = bootstrap(joined["renewed"] - joined[other])
            for index, m in enumerate(M):
                values = [float(joined[name][:, index].mean()) for name in ("renewed", other)]
                summary.append({"other": other, "m": m, "renewed": values[0], "value": values[1]})
                summary[-1] |= {"low": float(low[index]), "high": float(high[index]), "users": len(joined["renewed"])}
        print(json.dumps(summary, indent=1))
    if options.out:
        setup = {"sessions": options.sessions, "day": options.day, "log": Path(options.log).stem}
        options.out.write_text(json.dumps({**setup, "nights": records, "summary": summary}, indent=1) + "\n")


def timed(work):  # type: ignore[no-untyped-def]
    """A result, the seconds it took, and the seconds of all threads."""
    began, cpu = time.monotonic(), time.process_time()
    result = work()
    return result, time.monotonic() - began, time.process_time() - cpu


if __name__ == "__main__":
    main()
