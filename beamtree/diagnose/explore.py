"""A page to watch a model search: one HTML document, with recorded searches or live from a server.

`record` collects the searches of some users, `catalogue_map` names the subtrees, `page` makes the document.
"""

import base64
import gzip
import hashlib
import html
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from beamtree.beam import retrieve
from beamtree.data import BeforeAfter
from beamtree.data.catalogue import SEPARATORS, Catalogue
from beamtree.diagnose.explain import explain, parts_of, subtrees, without_part
from beamtree.diagnose.inspect import Inspection, inspect
from beamtree.evaluate import OnUsers
from beamtree.mask import level_span
from beamtree.model import TreeModel
from beamtree.scorers import with_inputs
from beamtree.tree import PAD

BEAM_SIZES = (10, 20, 50, 100, 200, 400)  # of the recorded searches
INSPECT_BEAM, INSPECT_CUTS = 100, (5, 10, 20, 50)  # of `inspect_for_page`
MAX_FOUND = 50  # recorded items of a search
MAX_TRUTH = 12  # items that a user chose next, whose paths are recorded
MAX_NODES = 28  # recorded nodes of a level; the others are counted

MAP_NODES = 2048  # of the map: a screen cannot show more
NAMING_SHARE = 0.5  # a category names a subtree if it holds more than this share of its items
CATEGORY_DEPTH = 4  # steps of a category path that are told apart

FILES = Path(__file__).parent / "page"
SCRIPTS = ("helpers", "server", "source", "state", "tree", "panels", "charts", "compare", "map", "keys", "app")

Pack = dict[str, Any]
Ints = NDArray[np.int64]


# Recorded searches


def variants(name: str, model: TreeModel) -> dict[str, TreeModel]:
    """A model, and the same model without each part of its score; they share the weights."""
    parts = parts_of(model)
    others = {f"{name} without {part}": without_part(model, part) for part in parts} if len(parts) > 1 else {}
    return {name: model, **others}


def record(
    models: Mapping[str, TreeModel],
    data: BeforeAfter,
    users: Sequence[str],
    catalogue: Catalogue,
    *,
    count: int = 20,
    beam_sizes: Sequence[int] = BEAM_SIZES,
    inspections: Mapping[str, Inspection] | None = None,
    on_search: Callable[[int], None] | None = None,
) -> Pack:
    """Record the searches of some users for a page, with every model and beam size.

    Args:
        models: by name, over the same items; the first is shown first.
        data: users and what they chose next, such as `data.test`.
        users: their ids.
        catalogue: titles and categories of the items.
        count: how many users, at even distances.
        beam_sizes: the positions of the slider.
        inspections: results of `inspect`, by model.
        on_search: called with the number of searches done since the last call.
    """
    if not models or not len(data):
        raise ValueError("there is nothing to record: give a model and at least one user")
    rows = torch.linspace(0, len(data) - 1, min(count, len(data))).long()
    x, y = data.batch(rows)
    num_items = next(iter(models.values())).tree.num_items
    sizes = [size for size in sorted(set(beam_sizes)) if size < num_items] or [num_items]
    indices: dict[int, int] = {}  # of the items of the page, in order of first use

    def index(item: int) -> int:
        return indices.setdefault(item, len(indices))

    truths = [[item for item in dict.fromkeys(row) if item != PAD][:MAX_TRUTH] for row in y.tolist()]
    shown_users = [
        {
            "id": users[row],
            "history": [index(item) for item in history if item != PAD],
            "truth": [index(item) for item in truth],
        }
        for row, history, truth in zip(rows, x.tolist(), truths, strict=True)
    ]
    packs = []
    for name, model in models.items():
        searches = []
        inputs = with_inputs(model.scorer, data).batch(rows)[0]
        for user, truth in zip(inputs.split(1), truths, strict=True):
            searches.append([_search(model, user, truth, size, index) for size in sizes])
            if on_search is not None:
                on_search(len(sizes))
        pack = {**describe_model(name, model), "searches": searches}
        if inspections and name in inspections:
            pack["losses"] = losses_as_dict(inspections[name])
        packs.append(pack)
    first = next(iter(models))
    packs[0]["map"] = catalogue_map(models[first], catalogue)
    return {
        "format": 1,
        "live": False,
        "name": first,
        "beam_sizes": sizes,
        "items": {
            "id": [catalogue.ids.name(item) for item in indices],
            "title": [catalogue.titles[item] for item in indices],
            "category": [catalogue.categories[item] for item in indices],
        },
        "users": shown_users,
        "models": packs,
    }


def describe_model(name: str, model: TreeModel) -> Pack:
    """The size and kind of a model, as JSON values."""
    return {
        "name": name,
        "items": model.tree.num_visible,
        "arity": model.tree.arity,
        "height": model.tree.height,
        "first_level": model.first_level,
        "chained": model.chained,
        "parts": parts_of(model),
        "search_times": [str(times) for times in list(model.search_times.values())],  # a search may add one now
    }


def inspect_for_page(model: TreeModel, data: BeforeAfter, users: int, on_users: OnUsers | None = None) -> Inspection:
    """`inspect` with the beam and the cuts that the page shows."""
    beam_size = min(INSPECT_BEAM, model.tree.num_items)
    cuts = tuple(m for m in INSPECT_CUTS if m <= beam_size) or (1,)
    return inspect(model, data, beam_size=beam_size, m=cuts, users=users, on_users=on_users)


def losses_as_dict(inspection: Inspection, note: str = "") -> Pack:
    """The numbers of an inspection that the page draws, and a sentence about them."""
    cuts = [
        {
            "m": cut.m,
            "beam": cut.beam.recall,
            "brute_force": cut.brute_force.recall,
            "error": cut.error,
            "below": cut.ranked_below,
        }
        for cut in inspection.cuts
    ]
    return {
        "users": inspection.users,
        "beam_size": inspection.beam_size,
        "levels": [level._asdict() for level in inspection.levels],
        "cuts": cuts,
        "advice": inspection.advice,
        "note": note,
    }


def _search(model: TreeModel, x: Tensor, truth: list[int], beam_size: int, index: Callable[[int], int]) -> Pack:
    """One search, packed into lists to keep the page small; `source.js` unpacks it."""
    x, m = x.to(model.tree.device), min(MAX_FOUND, beam_size)
    started = perf_counter()
    retrieve(model, x, beam_size=beam_size, m=m)
    seconds = perf_counter() - started
    explanation = explain(model, x, beam_size=beam_size, m=m, items=truth, max_nodes=MAX_NODES).as_dict(index)
    return {
        "ms": round(seconds * 1000, 2),
        "scored": explanation["scored"],
        "found": [[item["item"], _six_digits(item["score"])] for item in explanation["found"]],
        "levels": [_pack_level(level) for level in explanation["levels"]],
        "paths": [_pack_path(path) for path in explanation["items"]],
    }


def _pack_level(level: Pack) -> list[Any]:
    nodes = level["nodes"]
    return [
        level["level"],
        level["candidates"],
        level["kept"],
        int(level["passed"]),
        *(_six_digits(level[key]) for key in ("best", "kth", "worst")),
        *([node[key] for node in nodes] for key in ("node", "rank", "items", "popular")),
        [_six_digits(node["score"]) for node in nodes],
        *(_pack_counts(level["spread"][key]) for key in ("kept", "candidates")),
    ]


def _pack_path(path: Pack) -> list[Any]:
    steps = [[step["node"], _six_digits(step["score"]), step["before"], int(step["kept"])] for step in path["steps"]]
    score = _six_digits(path["score"])
    packed = [path["item"], int(path["may_be_found"]), path["rank"], path["would_rank"], score, steps]
    lost = path["lost"]
    if lost is None:
        return packed
    parts, to = [_pack_part(part) for part in lost["parts"]], lost["to"]
    combined = lost["together"] and _pack_part(lost["together"])
    return [*packed, [lost["level"], to["node"], to["item"], to["items"], lost["decided"], parts, combined]]


def _pack_part(part: Pack) -> list[Any]:
    return [part["name"], _six_digits(part["item"]), _six_digits(part["kept"])]


def _six_digits(value: float) -> float:
    return float(f"{value:.6g}")


def _pack_counts(counts: list[int]) -> str:
    """One base-36 digit per count: its bit length, so counts are known up to a power of two."""
    digits = "0123456789abcdefghijklmnopqrstuvwxyz"
    return "".join(digits[min(count.bit_length(), len(digits) - 1)] for count in counts)


# The map of the catalogue


def catalogue_map(model: TreeModel, catalogue: Catalogue) -> Pack:
    """The upper levels of the tree: for each node the items below it, their events, and a name."""
    tree = model.tree
    levels = [h for h in range(tree.height + 1) if h < 2 or level_span(tree.arity, h).stop <= MAP_NODES]
    below = subtrees(tree, model.popularity)
    stop = level_span(tree.arity, levels[-1]).stop
    slots = tree.visible().cpu().numpy()
    filled = np.flatnonzero(slots != PAD)
    items = slots[filled]
    events = np.ones(len(items)) if model.popularity is None else model.popularity.cpu().numpy()[items].astype(float)
    nodes = [filled // tree.arity ** (tree.height - h) for h in levels]  # of each item, counted within the level
    sums = [np.bincount(node, events, tree.arity**h) for h, node in zip(levels, nodes, strict=True)]
    categories = _names_by_category(catalogue, items, nodes, [tree.arity**h for h in levels])
    popular = below.popular[: min(tree.num_nodes, stop * tree.arity + 1)].tolist()
    return {
        "levels": len(levels),
        "items": below.items[:stop].tolist(),
        "events": np.concatenate(sums).astype(np.int64).tolist(),
        "names": [
            category or _name_by_titles(node, popular, tree.arity, catalogue)
            for node, category in enumerate(categories)
        ],
    }


def _names_by_category(catalogue: Catalogue, items: Ints, nodes: list[Ints], sizes: list[int]) -> list[str]:
    """For each node, the longest category path that holds most items below it; "" if there is none."""
    names = [[""] * size for size in sizes]
    for of_item, paths in _category_prefixes(catalogue, items):
        has_category = np.flatnonzero(of_item >= 0)
        for level, size in enumerate(sizes):
            total = np.bincount(nodes[level], minlength=size)
            pair, count = np.unique(nodes[level][has_category] * len(paths) + of_item[has_category], return_counts=True)
            node, path = pair // len(paths), pair % len(paths)
            for index in np.flatnonzero(count > NAMING_SHARE * total[node]).tolist():
                names[level][node[index]] = paths[path[index]]
    return [name for level in names for name in level]


def _category_prefixes(catalogue: Catalogue, items: Ints) -> Iterator[tuple[Ints, list[str]]]:
    """For category paths cut after 1, 2, … steps: the index of each item's path, -1 if it has none, and the paths."""
    steps = {
        text: tuple(step for step in re.split(SEPARATORS, text.strip()) if step)
        for text in set(catalogue.categories)
        if text is not None
    }
    longest = min(CATEGORY_DEPTH, max(map(len, steps.values()), default=0))
    for length in range(1, longest + 1):
        heads = {text: " / ".join(path[:length]) for text, path in steps.items() if len(path) >= length}
        paths = sorted(set(heads.values()))
        index = {path: number for number, path in enumerate(paths)}
        of_text: dict[str | None, int] = {text: index[head] for text, head in heads.items()}
        yield np.array([of_text.get(catalogue.categories[item], -1) for item in items.tolist()], np.int64), paths


def _name_by_titles(node: int, popular: list[int], arity: int, catalogue: Catalogue) -> str:
    """The most popular item of the subtree and that of another child."""
    children = popular[arity * node + 1 : arity * node + arity + 1] or popular[node : node + 1]
    items = dict.fromkeys(item for item in (popular[node], *children) if item != PAD)
    return " · ".join(catalogue.titles[item] or catalogue.ids.name(item) for item in list(items)[:2])


# The document


def page(data: Mapping[str, Any] | None = None, *, live: bool = False) -> str:
    """The page as one HTML document with nothing loaded from elsewhere: of a recording, or live from a server.

    Titles may be hostile: they can contain tags, quotes and control characters. All data are compressed and encoded in
    base64, and the scripts insert them as text, never as HTML.
    """
    if (data is None) is not live:
        raise ValueError("give the result of `record`, or live=True: one of the two")
    data = data or {"format": 1, "live": True, "name": "live"}
    plain = json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    packed = gzip.compress(plain.encode("utf-8", "replace"), mtime=0)  # the same data give the same page
    title = "".join(c if c.isprintable() else " " for c in str(data["name"]))
    parts = {"title": html.escape(title), "data": base64.b64encode(packed).decode("ascii")}
    return _document("page", SCRIPTS, parts, live=live)


def labels_page() -> str:
    """The page of a classifier, live from a server: one HTML document with nothing loaded from elsewhere."""
    return _document("labels", ("helpers", "server", "labels"), {}, live=True)


def _document(template: str, scripts: Sequence[str], parts: Mapping[str, str], *, live: bool) -> str:
    """A template filled with the style, scripts and other parts.

    A content security policy allows only this script, by its checksum, and requests only to the server that the page
    came from.
    """
    script = "\n".join((FILES / f"{name}.js").read_text(encoding="utf-8") for name in scripts)
    script = f'"use strict";\n(() => {{\n{script}\n}})();\n'
    style = (FILES / "page.css").read_text(encoding="utf-8")
    server = "'self'" if live else "'none'"
    policy = (
        f"default-src 'none'; script-src '{_checksum(script)}'; style-src '{_checksum(style)}'; "
        f"connect-src {server}; img-src data:; base-uri 'none'; form-action 'none'"
    )
    filled = {**parts, "policy": html.escape(policy), "style": style, "script": script}
    # In one pass: a title may look like a placeholder.
    text = (FILES / f"{template}.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda placeholder: filled[placeholder[1]], text)


def _checksum(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
