"""The closed form with and without users of few events, for the same test users.

beamtree prepare LOG --out prepared/LOG-10 --min-events 10 --val-users 500 --test-users 1000
beamtree prepare LOG --out prepared/LOG-none --min-eval-events 10 --val-users 500 --test-users 1000
python benchmarks/quality/few_events.py prepared/LOG-10 prepared/LOG-none --device cuda
"""

import argparse
import time
from pathlib import Path

import beamtree as bt


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    for folder in args.folders:
        start = time.monotonic()
        shop = bt.Recommender(steps=0, beam_size=400, device=args.device, refit=False).fit(folder, verbose=False)
        result = shop.evaluate(m=(10, 50, 100, 200), metrics="recall", data=shop.data.test)
        recalls = " ".join(f"{100 * result['recall', m]:.2f}" for m in (10, 50, 100, 200))
        print(f"{folder.name}: R@10 50 100 200 {recalls} in {time.monotonic() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
