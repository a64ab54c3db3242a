"""Searches of some users, recorded for a page that asks no server: several models, several beam sizes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from beamtree.beam import retrieve
from beamtree.data import BeforeAfter
from beamtree.data.catalogue import Catalogue
from beamtree.diagnose.explain import explain, parts_of, without_part
from beamtree.diagnose.explore.facts import facts
from beamtree.diagnose.explore.map import catalogue_map
from beamtree.diagnose.inspect import Inspection, inspect
from beamtree.evaluate import OnUsers
from beamtree.model import TreeModel
from beamtree.tree import PAD

BEAM_SIZES = (10, 20, 50, 100, 200, 400)
BEAM_SIZE, CUTS = 100, (5, 10, 20, 50)  # of what `inspect` is asked
FOUND = 50  # items of a search that are kept, at most
TRUTH = 12  # items that a user chose next, which are followed down the tree
NODES = 28  # of a level that are kept; the others are counted
DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
Pack = dict[str, Any]


class Items:
    """The items that occur, by the order in which they did: a page holds these and no others."""

    def __init__(self) -> None:
        self.places: dict[int, int] = {}

    def place(self, number: int) -> int:
        return self.places.setdefault(number, len(self.places))

    def listed(self, catalogue: Catalogue) -> dict[str, list[str | None]]:
        numbers = list(self.places)
        return {
            "id": [catalogue.ids[number] for number in numbers],
            "title": [catalogue.title(number) for number in numbers],
            "category": [catalogue.category(number) for number in numbers],
        }


def variants(name: str, model: TreeModel) -> dict[str, TreeModel]:
    """A model, and the same without each part of its score, to see what that part does; they share the weights."""
    names = parts_of(model)
    others = {f"{name} without {part}": without_part(model, part) for part in names} if len(names) > 1 else {}
    return {name: model, **others}


def record(
    models: Mapping[str, TreeModel],
    people: BeforeAfter,
    users: Sequence[str],
    catalogue: Catalogue,
    *,
    count: int = 20,
    beam_sizes: Sequence[int] = BEAM_SIZES,
    inspections: Mapping[str, Inspection] | None = None,
    on_search: Callable[[int], None] | None = None,
) -> Pack:
    """What a page shows: the searches of some users in models over the same items, by every beam size.

    Args:
        models: by the name that is shown; the first is shown first.
        people: users and what they chose next, such as `data.test`.
        users: their ids.
        catalogue: titles and categories of the items.
        count: how many users, evenly spread.
        beam_sizes: the stops of the slider.
        inspections: what `inspect` found, for the models it looked at.
        on_search: hears how many searches were done since it was last called.
    """
    if not models or not len(people):
        raise ValueError("there is nothing to record: give a model and at least one user")
    rows = torch.linspace(0, len(people) - 1, min(count, len(people))).long()
    x, y = people.batch(rows)
    num_items = next(iter(models.values())).tree.num_items
    sizes = [size for size in sorted(set(beam_sizes)) if size < num_items] or [num_items]
    items = Items()
    truths = [[item for item in dict.fromkeys(row) if item != PAD][:TRUTH] for row in y.tolist()]
    shown = [_shown(users[row], past, truth, items) for row, past, truth in zip(rows, x.tolist(), truths, strict=True)]

    def searches(model: TreeModel) -> Iterator[list[Pack]]:
        for user, truth in zip(x.split(1), truths, strict=True):
            yield [_search(model, user, truth, size, items) for size in sizes]
            if on_search is not None:
                on_search(len(sizes))

    packs = [_of_model(name, model, list(searches(model)), inspections or {}) for name, model in models.items()]
    first = next(iter(models))
    packs[0]["map"] = catalogue_map(models[first], catalogue)
    head = {"format": 1, "live": False, "name": first, "beam_sizes": sizes}
    return {**head, "items": items.listed(catalogue), "users": shown, "models": packs}


def _shown(user: str, past: list[int], truth: list[int], items: Items) -> Pack:
    """A user, with what was done before and what was chosen next."""
    history = [items.place(item) for item in past if item != PAD]
    return {"id": user, "history": history, "truth": list(map(items.place, truth))}


def _of_model(name: str, model: TreeModel, searches: list[Any], inspections: Mapping[str, Inspection]) -> Pack:
    """A model with its searches, and with what `inspect` found."""
    found = {"losses": losses(inspections[name])} if name in inspections else {}
    return {**facts(name, model), "searches": searches, **found}


def inspected(model: TreeModel, people: BeforeAfter, users: int, on_users: OnUsers | None = None) -> Inspection:
    """What `inspect` says of a model with the beam and the cuts that the page shows."""
    beam_size = min(BEAM_SIZE, model.tree.num_items)
    cuts = tuple(m for m in CUTS if m <= beam_size) or (1,)
    return inspect(model, people, beam_size=beam_size, m=cuts, users=users, on_users=on_users)


def losses(found: Inspection) -> Pack:
    """The picture of `inspect`, as numbers."""
    cuts = [
        {
            "m": cut.m,
            "beam": cut.beam.recall,
            "brute_force": cut.brute_force.recall,
            "error": cut.error,
            "below": cut.ranked_below,
        }
        for cut in found.cuts
    ]
    levels = [each._asdict() for each in found.levels]
    return {"users": found.users, "beam_size": found.beam_size, "levels": levels, "cuts": cuts, "advice": found.advice}


def _search(model: TreeModel, x: Tensor, truth: list[int], beam_size: int, items: Items) -> Pack:
    """One search in as few characters as it takes."""
    m = min(FOUND, beam_size)
    started = perf_counter()
    retrieve(model, x.to(model.tree.device), beam_size=beam_size, m=m)
    took = perf_counter() - started
    found = explain(model, x.to(model.tree.device), beam_size=beam_size, m=m, items=truth, most=NODES)
    told = found.as_dict(items.place)
    return {
        "ms": round(took * 1000, 2),
        "scored": told["scored"],
        "found": [[each["item"], _short(each["score"])] for each in told["found"]],
        "levels": [_level(each) for each in told["levels"]],
        "paths": [_path(each) for each in told["items"]],
    }


def _level(each: Pack) -> list[Any]:
    nodes = each["nodes"]
    return [
        each["level"],
        each["candidates"],
        each["kept"],
        int(each["passed"]),
        *(_short(each[key]) for key in ("best", "kth", "worst")),
        *([node[key] for node in nodes] for key in ("node", "rank", "items", "popular")),
        [_short(node["score"]) for node in nodes],
        *(_counts(each["spread"][key]) for key in ("kept", "candidates")),
    ]


def _path(each: Pack) -> list[Any]:
    lost = each["lost"]
    steps = [[step["node"], _short(step["score"]), step["before"], int(step["kept"])] for step in each["steps"]]
    head = [each["item"], int(each["may_be_found"]), each["rank"], each["would_rank"], _short(each["score"]), steps]
    if lost is None:
        return head
    parts = [[part["name"], _short(part["item"]), _short(part["kept"])] for part in lost["parts"]]
    other = lost["together"]
    together = other and [other["name"], _short(other["item"]), _short(other["kept"])]
    to = lost["to"]
    return [*head, [lost["level"], to["node"], to["item"], to["items"], lost["decided"], parts, together]]


def _short(value: float) -> float:
    """Six digits are more than a picture shows."""
    return float(f"{value:.6g}")


def _counts(counts: list[int]) -> str:
    """One character for each: 0, or one more than the power of two up to which it reaches."""
    return "".join(DIGITS[min(count.bit_length(), len(DIGITS) - 1)] for count in counts)
