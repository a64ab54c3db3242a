"""The time of one query of a saved run, by the length of the history.

    python benchmarks/speed/long_histories.py runs/movielens-1m --device cpu

Histories are random events of the log, at random times before its end where a part reads the clock. Without the
sequence part the same model is measured once more. Lengths and models take turns, so that a machine that others use is
as busy for one as for another. A time is the median over histories of the fastest of some queries with each.
"""

import argparse
import random
from pathlib import Path
from statistics import median

import torch
from timing import times

import beamtree as bt
from beamtree.data import Events
from beamtree.data.inputs import NO_TIME, WHOLE_HISTORY, Inputs, history_width
from beamtree.parts.sequence import SEQUENCE
from beamtree.scorers import SumScorer, as_sum
from beamtree.tree import PAD

LENGTHS = (10, 20, 50, 200, 1000)
M, ROUNDS, QUERIES = 20, 30, 20


def query(events: Events, length: int, clock: bool, generator: torch.Generator) -> torch.Tensor:
    """x of a history of this length, newest first."""
    span, width = events.span(), history_width(length, WHOLE_HISTORY)
    drawn = torch.randint(span.start, span.stop, (length,), generator=generator)
    x = torch.full((1, width), PAD)
    x[0, :length] = events.items[drawn]
    if not clock:
        return x
    moments = torch.full((1, width), NO_TIME)
    moments[0, :length] = events.seconds(drawn).sort(descending=True).values
    return Inputs(x, moments, moments[:, :1], x[:, :0]).joined()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--data", type=Path, help="the prepared log, where the run does not name it")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--beam", type=int, default=50)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    shop = bt.Recommender.load(options.run, device=options.device, data=options.data)
    model, events = shop.model, shop.data.train.events
    scorer = as_sum(model.scorer)
    assert scorer is not None
    rows = {" + ".join(scorer.names): model}
    if SEQUENCE in scorer.names:
        others = [name for name in scorer.names if name != SEQUENCE]
        parts = {name: scorer.part(name) for name in others}
        plain = SumScorer(parts, model.tree.height, hyperparameters=scorer.hyperparameters)
        plain.set_weights(**{name: scorer.weight_of(name) for name in others})
        rows[" + ".join(others)] = bt.TreeModel(model.tree, plain.to(model.tree.device), first_level=model.first_level)
    print(f"{model.tree.num_items:,} items, beam {options.beam}, m = {M}, {options.threads} threads, {options.device}")
    generators = {name: torch.Generator().manual_seed(0) for name in rows}
    found = dict[tuple[str, int], list[float]]()
    memory = dict[int, int]()  # of a GPU at most, by length
    for turn in range(ROUNDS):
        for length in random.Random(turn).sample(LENGTHS, len(LENGTHS)):
            for name, each in rows.items():
                x = query(events, length, each.scorer.reads_clock, generators[name]).to(each.tree.device)
                run = times(lambda x=x, each=each: bt.retrieve(each, x, beam_size=options.beam, m=M),
                            options.device, QUERIES, warm_up=1)  # fmt: skip
                found.setdefault((name, length), []).append(min(run))
                if options.device != "cpu":
                    memory[length] = max(memory.get(length, 0), torch.cuda.max_memory_allocated())
                    torch.cuda.reset_peak_memory_stats()
    for name in rows:
        print(name, "  ".join(f"{length:,} events {median(found[name, length]):.2f} ms" for length in LENGTHS))
    if memory:
        print("GPU memory", "  ".join(f"{length:,} events {memory[length] / 2**20:,.0f} MB" for length in LENGTHS))


if __name__ == "__main__":
    main()
