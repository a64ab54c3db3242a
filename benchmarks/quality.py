"""What the default recipe reaches on prepared data, beside plain methods: for a GPU machine that has torch alone.

    python benchmarks/quality.py prepared/books [--method otm-mixed] [--device cuda] [--steps N] [--json FILE]

The same as `beamtree train` and `beamtree evaluate`, without the command line and its libraries. Item-CF is measured
too with --plain, where `implicit` is installed.
"""

import argparse
import json
import time

from beamtree import cluster_tree, evaluate, fit, load
from beamtree.evaluate import Evaluation
from beamtree.train.optimizer import OPTIMIZERS
from beamtree.train.recipes import METHODS, RECIPES, USUAL


def train(options: argparse.Namespace) -> tuple[Evaluation, dict[str, object]]:
    recipe = RECIPES["beamtree"]
    beam_size, batch_size, steps = USUAL["cpu" if options.device == "cpu" else "cuda"]
    data = load(options.data)
    k = options.beam_size or beam_size
    epochs = max(1, round((options.steps or steps) * batch_size / len(data.train)))
    model = recipe.model(cluster_tree(data), k, lambda: data.factors, options.seed).to(options.device)
    began = time.monotonic()
    checks: list[tuple[int, float]] = []
    fit(
        model,
        recipe.instances(data.train),
        METHODS[options.method](k, 2 * k),
        epochs=epochs,
        batch_size=batch_size,
        lr=recipe.lr,
        schedule=recipe.schedule,
        optimizer=OPTIMIZERS[options.optimizer],
        warm_up=recipe.begins_as(options.method, k),
        val=data.val,
        seed=options.seed,
        on_check=lambda step, recall: checks.append((step, recall)),
    )
    seconds = time.monotonic() - began
    print(" ".join(f"{step}:{recall:.2%}" for step, recall in checks))
    settings = {
        "method": options.method,
        "recipe": "beamtree",
        "beam_size": k,
        "epochs": epochs,
        "batch_size": batch_size,
        "lr": recipe.lr,
        "optimizer": options.optimizer,
        "seed": options.seed,
        "device": options.device,
        "users": {"train": len(data.train), "val": len(data.val), "test": len(data.test)},
        "seconds": round(seconds),
        "checks": checks,
    }
    return evaluate(model, data.test, beam_size=400), settings


def plain_rows(options: argparse.Namespace) -> dict[str, Evaluation]:
    from beamtree.baselines import BASELINES
    from beamtree.evaluate import measure

    data = load(options.data)
    found = {}
    for name, row in BASELINES.items():
        model = row(data.train, data.num_items)
        found[name] = measure(lambda x, exclude, model=model: model.retrieve(x, 200)[0], data.test)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data")
    parser.add_argument("--method", default="otm-mixed", choices=list(METHODS))
    parser.add_argument("--optimizer", default="adam", choices=list(OPTIMIZERS))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--beam-size", type=int)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plain", action="store_true", help="measure Item-CF and popularity instead of training")
    parser.add_argument("--json")
    options = parser.parse_args()
    settings: dict[str, object] = {}
    if options.plain:
        rows = plain_rows(options)
    else:
        found, settings = train(options)
        rows = {options.method: found}
    for name, evaluation in rows.items():
        print(f"{options.data}, {name}, {settings.get('seconds', 0)} s\n{evaluation}", flush=True)
    if options.json:
        cells = [{"row": name, **score.record()} for name, found in rows.items() for score in found.scores]
        with open(options.json, "w") as file:
            json.dump({"settings": settings, "cells": cells}, file, indent=1)


if __name__ == "__main__":
    main()
