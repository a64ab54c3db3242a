"""Whether scores are probabilities: how often validation and test users chose what had such a score.

    python benchmarks/quality/calibration.py movielens-1m.parquet --out results/calibration.json

Each log is fitted once. A record has the mean score and the share of chosen items in each of ten bins of the score, and
their expected calibration error, the mean of |score - share| weighted by the items of a bin.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import polars as pl
import torch

import beamtree as bt
from beamtree.evaluate.metrics import hits

BINS = 10


def reliability(scores: np.ndarray, chosen: np.ndarray) -> list[dict[str, float]]:
    """The mean score, the share that was chosen and the number of items of each bin that has any."""
    bins = np.minimum((scores * BINS).astype(int), BINS - 1)
    return [
        {"score": float(scores[own].mean()), "chosen": float(chosen[own].mean()), "items": int(own.sum())}
        for index in range(BINS)
        if (own := bins == index).any()
    ]


def calibration_error(table: list[dict[str, float]]) -> float:
    """The expected calibration error."""
    total = sum(row["items"] for row in table)
    return sum(row["items"] * abs(row["score"] - row["chosen"]) for row in table) / total


def measure(shop: bt.Recommender, users, m: int, kind: str) -> dict:
    """The reliability of the first m items: of all, without seen items, or of a random half of the items."""
    model, scores, chosen = shop.model, [], []
    allowed = None
    if kind == "filter":
        allowed = torch.arange(0, model.tree.num_items, 2)
    for rows in torch.arange(len(users)).split(256):
        x, y = users.batch(rows)
        options = {"exclude": x} if kind == "exclude_seen" else {}
        if allowed is not None:
            options["allowed"] = allowed
        items, log_p = bt.retrieve(model, x, beam_size=400, m=m, **options)
        real = items != bt.PAD
        scores.append(log_p.exp()[real].numpy())
        chosen.append(hits(items, y)[real].numpy())
    p, z = np.concatenate(scores), np.concatenate(chosen)
    table = reliability(p, z)
    return {"error": calibration_error(table), "lowest": float(p.min()), "highest": float(p.max()), "bins": table}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("logs", nargs="+", type=Path)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    records = json.loads(args.out.read_text()) if args.out and args.out.exists() else []
    for path in args.logs:
        log = pl.read_parquet(path)
        shop = bt.Recommender(steps=0, seed=0, refit=False)
        shop.fit(log.select("user", "item", "timestamp"), split="halves", verbose=False)
        records = [record for record in records if record["log"] != path.stem]
        for name, users in (("validation", shop.data.val), ("test", shop.data.test)):
            for kind in ("all", "exclude_seen", "filter"):
                for m in (10, 50):
                    found = measure(shop, users, m, kind)
                    records.append({"log": path.stem, "users": name, "items": kind, "m": m, **found})
                    print(path.stem, name, kind, m, *(f"{found[key]:.4f}" for key in ("error", "lowest", "highest")))
        if args.out:
            args.out.write_text(json.dumps(records, indent=1) + "\n")


if __name__ == "__main__":
    main()
