"""Load a deep model of four million items in a new process and search it: seconds and memory.

The results must be those of the saved model.

    python benchmarks/speed/bench_load.py [--items N] [--queries N] [--json FILE]
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from beamtree import DeepScorer, TreeModel, random_tree, retrieve, save_model

# The child reports as JSON: resident bytes before the model, with it, and after queries one by one.
CHILD = """
import json, sys, time
import torch, beamtree as bt

def resident():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmRSS"))

x, expected = torch.load(sys.argv[1] + "/answers.pt")
before, started = resident(), time.perf_counter()
model = bt.load_model(sys.argv[1])
loaded, seconds = resident(), time.perf_counter() - started
scores = torch.cat([bt.retrieve(model, row.unsqueeze(0), beam_size=400, m=200)[1] for row in x])
torch.testing.assert_close(scores, expected, rtol=1e-4, atol=1e-4)
measured = {"seconds": seconds, "before_bytes": before, "loaded_bytes": loaded, "answered_bytes": resident()}
print(json.dumps(measured))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--items", type=int, default=4_000_000)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--json")
    args = parser.parse_args()
    tree = random_tree(args.items)
    model = TreeModel(tree, DeepScorer(tree.num_nodes, scale=1.0), first_level=min(8, tree.height)).eval()
    x = torch.randint(0, args.items, (args.queries, 69), generator=torch.Generator().manual_seed(0))
    answers = torch.cat([retrieve(model, some, beam_size=400, m=200)[1] for some in x.split(20)])
    table = model.scorer.table.weight.nbytes
    with tempfile.TemporaryDirectory() as folder:
        save_model(model, folder)
        torch.save((x, answers), Path(folder, "answers.pt"))
        words = [sys.executable, "-c", CHILD, folder]
        measured = json.loads(subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout)
    record = {"bench": "load", "items": args.items, "queries": args.queries, "table_bytes": table, **measured}
    record["of_table"] = (measured["answered_bytes"] - measured["before_bytes"]) / table
    mega = {name: measured[f"{name}_bytes"] / 1e6 for name in ("before", "loaded", "answered")}
    print(
        f"{args.items:,} items, table {table / 1e6:,.0f} MB: loaded in {measured['seconds']:.2f} s. Resident: "
        f"{mega['before']:,.0f} MB before, {mega['loaded']:,.0f} MB loaded, {mega['answered']:,.0f} MB after "
        f"{args.queries} queries, {record['of_table']:.2f} times the table more than before"
    )
    if args.json:
        Path(args.json).write_text(json.dumps([record], indent=1) + "\n")


if __name__ == "__main__":
    main()
