"""Recommend from a file that `beamtree export` wrote: with torch alone, where beamtree is not installed.

python examples/load_artifact.py model.pt2 ID ID ID
"""

import json
import sys

import torch

files = {"items.txt": "", "beamtree.json": ""}
search = torch.export.load(sys.argv[1], extra_files=files).module()
about = json.loads(files["beamtree.json"])
ids = files["items.txt"].split("\n")[:-1]
number = {name: place for place, name in enumerate(ids)}

known = [number[name] for name in sys.argv[2:] if name in number]  # oldest first
newest_first = known[: -about["history"] - 1 : -1]
row = newest_first + [about["pad"]] * (about["history"] - len(newest_first))
items, scores = search(torch.tensor([row]))
for item, score in zip(items[0].tolist(), scores[0].tolist(), strict=True):
    if item != about["pad"]:
        print(f"{ids[item]}\t{score:.6g}")
