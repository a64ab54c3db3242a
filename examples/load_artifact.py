"""Recommend from a file of `beamtree export`, with torch but without beamtree.

python examples/load_artifact.py model.pt2 ID ID ID
"""

import json
import sys

import torch

files = {"items.txt": "", "beamtree.json": ""}
search = torch.export.load(sys.argv[1], extra_files=files).module()
about = json.loads(files["beamtree.json"])
ids = files["items.txt"].split("\n")[:-1]
index_of = {name: index for index, name in enumerate(ids)}

history = [index_of[name] for name in sys.argv[2:] if name in index_of]  # oldest first
newest_first = history[: -about["history"] - 1 : -1]
row = newest_first + [about["pad"]] * (about["history"] - len(newest_first))
context = [torch.full((1, len(about["context"])), about["pad"])] if "context" in about else []  # nothing is known
items, scores = search(torch.tensor([row]), *context)
for item, score in zip(items[0].tolist(), scores[0].tolist(), strict=True):
    if item != about["pad"]:
        print(f"{ids[item]}\t{score:.6g}")
