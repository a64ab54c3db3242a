"""Rows without a tree; what they need beside torch is imported only for them."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch

from beamtree.errors import requires
from beamtree.evaluate import leaving_out
from beamtree.files.atomic import write_atomically
from beamtree.research.compare.plan import Plan, ReadyRow, Row, begin, read_seconds, timed


def plain_row(name: str, row: Row, plan: Plan, note: Callable[[str], None]) -> ReadyRow:
    """Something that needs no training to speak of; a peer says which settings it chose."""
    from beamtree.research.baselines import build  # here, so that tree rows need torch alone

    baseline = build(name, plan.data.train.events, plan.data.num_items, plan.data.val)
    settings: dict[str, float] = getattr(baseline, "settings", {})
    if settings:
        note(", ".join(f"{word} {value:g}" for word, value in settings.items()))
    return ReadyRow(leaving_out(baseline.retrieve, max(plan.m)), baseline.num_bytes)


def dnn_row(name: str, row: Row, plan: Plan, note: Callable[[str], None]) -> ReadyRow:
    """YouTube product-DNN; its two rows differ in how its vectors are searched, and share the weights."""
    with requires("compare", f"row {name}"):
        from beamtree.research.baselines.two_tower import BATCH, TwoTower, two_tower

    folder = plan.folder / "youtube-dnn"
    begin(folder, {**plan.training(row), "row": "youtube-dnn"})
    model = _trained(folder, plan, lambda items, _: TwoTower(items), two_tower, min(BATCH, 5 * plan.batch_size))
    model.index(_index(name))
    return ReadyRow(leaving_out(model.retrieve, max(plan.m)), model.num_bytes, read_seconds(folder))


def sasrec_row(name: str, row: Row, plan: Plan, note: Callable[[str], None]) -> ReadyRow:
    """SASRec, trained for as many steps as the others and searched where it was trained."""
    from beamtree.research.baselines.sasrec import BATCH, SASRec, sasrec

    folder = plan.folder / name
    begin(folder, {**plan.training(row), "row": name})
    model = _trained(folder, plan, SASRec.like, sasrec, min(BATCH, plan.batch_size)).to(plan.device)
    return ReadyRow(leaving_out(model.retrieve, max(plan.m)), model.num_bytes, read_seconds(folder))


Net = TypeVar("Net", bound=torch.nn.Module)
Empty = Callable[[int, dict[str, torch.Tensor]], Net]  # from M and the weights that it will hold


def _trained(folder: Path, plan: Plan, empty: Empty[Net], train: Callable[..., Net], batch: int) -> Net:
    """A net on the CPU: read from a row's folder, or trained and written there."""
    file = folder / "weights.pt"
    if file.exists():
        state = torch.load(file, weights_only=True)
        model = empty(plan.data.num_items, state).eval()
        model.load_state_dict(state)
        return model

    def told(done: int, total: int, loss: torch.Tensor) -> None:
        """A row that trains several sizes takes more steps than the plan counts for it."""
        plan.advance(plan.steps * done // total - plan.steps * (done - 1) // total)

    with timed(folder):
        model = train(
            plan.data.train.events,
            plan.data.num_items,
            steps=plan.steps,
            batch_size=batch,
            seed=plan.seed,
            device=plan.device,
            val=plan.data.val,
            on_step=told,
        ).cpu()
    write_atomically(file, lambda draft: torch.save(model.state_dict(), draft))
    return model


def _index(name: str) -> Callable[[torch.Tensor], object]:
    from beamtree.research.baselines.two_tower import HNSWIndex, exact

    return HNSWIndex if name == "youtube-dnn-hnsw" else exact
