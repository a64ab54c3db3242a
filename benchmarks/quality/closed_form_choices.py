"""What the closed form chooses and finds on a prepared log, as one line of JSON: equal before and after a change.

python benchmarks/quality/closed_form_choices.py prepared/LOG --device cuda
"""

import argparse
import json
import time
from pathlib import Path

import beamtree as bt


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    start = time.monotonic()
    shop = bt.Recommender(steps=0, beam_size=400, device=args.device, refit=False).fit(args.folder, verbose=False)
    seconds = time.monotonic() - start
    result = shop.evaluate(m=(10, 50, 100, 200), metrics="recall", data=shop.data.test)
    recalls = [round(100 * result["recall", m], 2) for m in (10, 50, 100, 200)]
    print(json.dumps({"recall": recalls, "seconds": round(seconds, 1), "chosen": shop.model.scorer.hyperparameters}))


if __name__ == "__main__":
    main()
