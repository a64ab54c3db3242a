"""Amazon Beauty as the papers on generative retrieval use it: our rows beside the published ones.

    python benchmarks/quality/amazon_beauty.py amazon-beauty.parquet && python docs/fill.py

The last event of every user is for testing, the one before for validation. All items are ranked, with and without the
items that a user has seen. Rows of `benchmarks/quality/compare_rows.py` from a GPU are added with --also.
"""

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import beamtree as bt
from beamtree.evaluate import leaving_out, measure
from beamtree.live.refit import refit_parts
from beamtree.research.baselines import TUNED, build
from beamtree.train.options import TrainingOptions
from beamtree.train.recipes import build_model, resolve_settings, train_model

M, METRICS = 10, ("recall", "ndcg")
LAST_TWO, LAST = "the last two", "the last"
# Published Recall@10 and NDCG@10: with seen items left out, with them, or unstated.
PUBLISHED = (
    ("TIGER (2023)", None, None, (0.0648, 0.0384)),
    ("RPG (2025)", None, None, (0.0809, 0.0464)),
    ("SASRec, sampled softmax (2025)", None, None, (0.0921, 0.0531)),
    ("eSASRec (2025)", (0.0928, 0.0523), None, None),
)


def row(name: str, fitted: str, scores: dict[bool, list[float]]) -> dict[str, Any]:
    """A row that was measured here."""
    return {"row": name, "whose": "beamtree", "fitted": fitted, "masked": scores[True], "open": scores[False]}


def with_and_without_seen(evaluate: Callable[[bool], Any]) -> dict[bool, list[float]]:
    """Recall and NDCG by whether seen items are left out."""
    scores = {}
    for exclude_seen in (True, False):
        evaluation = evaluate(exclude_seen)
        scores[exclude_seen] = [round(evaluation[metric, M], 4) for metric in METRICS]
    print(scores, flush=True)
    return scores


def model_scores(model: bt.TreeModel, data: bt.data.Prepared) -> dict[bool, list[float]]:
    """The scores of a tree with a beam of 400."""
    return with_and_without_seen(
        lambda exclude_seen: bt.evaluate(
            model, data.test, beam_size=400, m=M, metrics=METRICS, exclude_seen=exclude_seen
        )
    )


def baseline_scores(name: str, data: bt.data.Prepared) -> dict[bool, list[float]]:
    """The scores of a baseline that ranks all items."""
    find = leaving_out(build(name, data.train.events, data.num_items, data.val).retrieve, M)
    return with_and_without_seen(
        lambda exclude_seen: measure(find, data.test, m=M, metrics=METRICS, exclude_seen=exclude_seen)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log", type=Path)
    parser.add_argument(
        "--steps", type=int, default=0, help="Training steps; training does not improve on the closed form here."
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--also", type=Path, nargs="*", default=[], help="Files of compare_rows.py --exclude-seen.")
    parser.add_argument("--json", type=Path, default=Path("results/beauty.json"))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bt.prepare(args.log, Path(folder) / "beauty", split="leave-one-out", min_events=5)
        data = bt.load_data(Path(folder) / "beauty")
        settings = resolve_settings(data, TrainingOptions(steps=args.steps, device=args.device))
        model = build_model(settings, data, bt.cluster_tree(data, arity=2, seed=0))
        train_model(settings, data, model)
        rows = [row("beamtree", LAST_TWO, model_scores(model, data))]
        model = refit_parts(model, data, data.joined(data.sections[:2]), 0)
        rows.append(row("beamtree, refitted", LAST, model_scores(model, data)))
        rows += [row(name, LAST_TWO, baseline_scores(name, data)) for name in TUNED]
    for file in args.also:
        cells = {(cell["metric"], cell.get("m")): cell for cell in json.loads(file.read_text())}
        pair = [round(cells[metric, M]["value"], 4) for metric in METRICS]
        rows.append({**row(cells["recall", M]["row"], LAST_TWO, {True: pair, False: pair}), "open": None})
    for name, masked, seen, unsaid in PUBLISHED:
        cells = {"masked": masked, "open": seen, "unsaid": unsaid}
        rows.append({"row": name, "whose": "published", "fitted": LAST_TWO, **cells})
    lines = ",\n  ".join(json.dumps(each) for each in rows)
    args.json.write_text(f'{{\n "m": {M},\n "rows": [\n  {lines}\n ]\n}}\n')


if __name__ == "__main__":
    main()
