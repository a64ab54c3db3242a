"""Rows without a tree; what they need beside torch is imported only for them."""

from collections.abc import Callable

import torch

from beamtree.compare.plan import Made, Plan, begin, read_seconds, timed
from beamtree.data.files import write_whole


def plain_row(row: str, plan: Plan, note: Callable[[str], None]) -> Made:
    """Something that needs no training to speak of."""
    from beamtree.baselines import BASELINES  # here, so that tree rows need torch alone

    baseline = BASELINES[row](plan.data.train, plan.data.num_items)
    return Made(lambda x: baseline.retrieve(x, max(plan.m))[0], baseline.num_bytes)


def dnn(index: str, plan: Plan, note: Callable[[str], None]) -> Made:
    """YouTube product-DNN; its two rows differ in how its vectors are searched, and share the weights."""
    from beamtree.baselines.two_tower import BATCH, Graph, TwoTower, exact, two_tower

    folder = plan.folder / "youtube-dnn"
    begin(folder, {**plan.training("dnn"), "row": "youtube-dnn"})
    file = folder / "weights.pt"
    if file.exists():
        model = TwoTower(plan.data.num_items, plan.seed).eval()
        model.load_state_dict(torch.load(file, weights_only=True))
    else:
        with timed(folder):
            model = two_tower(
                plan.data.train,
                plan.data.num_items,
                steps=plan.steps,
                batch_size=min(BATCH, 5 * plan.batch_size),
                seed=plan.seed,
                device=plan.device,
                val=plan.data.val,
                on_step=lambda done, total, loss: plan.advance(1),
            ).cpu()
        write_whole(file, lambda draft: torch.save(model.state_dict(), draft))
    model.index({"exact": exact, "hnsw": Graph}[index])
    return Made(lambda x: model.retrieve(x, max(plan.m))[0], model.num_bytes, read_seconds(folder))
