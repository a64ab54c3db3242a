"""Queries per second of the service's engine, in process: single queries by ids, batches formed by the engine.

One thread submits queries and keeps a fixed number of them open. There is no network.

    python benchmarks/speed/bench_engine.py [--items N] [--open N] [--batch N] [--device cuda] [--json FILE]
"""

import argparse
import json
import math
import threading
import time
from concurrent.futures import Future
from pathlib import Path

import torch

import beamtree as bt
from beamtree.data import Ids
from beamtree.live import LiveModel
from beamtree.query import RecommendRequest, RecommendResponse
from beamtree.serve.engine.engine import Engine, EngineOptions, Job
from beamtree.serve.engine.served_run import LoadedRun


def untrained_model(items: int, device: str) -> bt.TreeModel:
    """An untrained model: it costs the same as a trained one."""
    tree = bt.random_tree(items)
    model = bt.TreeModel(tree, bt.DeepScorer(tree.num_nodes, scale=1.0), first_level=8).to(device).eval()
    model.ids = Ids([f"item-{number}" for number in range(items)])
    model.ids.find(["ready"])
    return model


def histories(ids: Ids, count: int) -> list[list[str]]:
    """Users with 20 to 69 random events."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(20, 70, (count,), generator=generator).tolist()
    return [[ids[n] for n in torch.randint(len(ids), (length,), generator=generator).tolist()] for length in lengths]


def query_all(
    engine: Engine, histories: list[list[str]], m: int, max_open: int, seconds: float
) -> list[RecommendResponse]:
    """Submit queries for some seconds, at most `max_open` of them open at a time; all responses."""
    room, futures = threading.Semaphore(max_open), []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        room.acquire()
        future = Future()
        future.add_done_callback(lambda _: room.release())
        engine.submit(Job(future, request=RecommendRequest([histories[len(futures) % len(histories)]], m=m)))
        futures.append(future)
    return [future.result() for future in futures]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--beam-size", type=int, default=100)
    parser.add_argument("--m", type=int, default=10)
    parser.add_argument("--open", type=int, default=64, help="Queries that are open at a time.")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--window", type=float, default=2.0, help="Milliseconds.")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    model = untrained_model(args.items, args.device)
    options = EngineOptions(args.beam_size, args.window / 1000, args.batch, max_queue=1 << 20, degrade_after=math.inf)
    engine = Engine(LoadedRun(LiveModel(model), "bench", "0"), options)
    queries = histories(model.ids, 4096)
    query_all(engine, queries, args.m, args.open, 5.0)  # a GPU records what recurs
    start = time.monotonic()
    responses = query_all(engine, queries, args.m, args.open, args.seconds)
    rate = len(responses) / (time.monotonic() - start)
    engine.stop()
    wrong = [response for response in responses if len(response.results[0].items) != args.m]
    assert not wrong, wrong[0]
    waits = torch.tensor([response.queue_seconds + response.search_seconds for response in responses]).mul(1000)
    p50, p99 = (float(waits.quantile(q)) for q in (0.5, 0.99))
    together = sum(response.batch_size for response in responses) / len(responses)
    line = f"{rate:,.0f} queries a second, {together:.0f} together, p50 {p50:.1f} ms, p99 {p99:.1f} ms"
    print(f"{args.items:,} items, k = {args.beam_size}, m = {args.m}, {args.open} open: {line}")
    if args.json is not None:
        record = {**vars(args), "json": None, "rate": rate, "together": together, "p50_ms": p50, "p99_ms": p99}
        args.json.write_text(json.dumps(record, indent=1, default=str) + "\n")


if __name__ == "__main__":
    main()
