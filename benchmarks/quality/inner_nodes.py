"""What a beam loses by the vectors of inner nodes: means of the leaves, fitted to their maxima, or trained as PLT, TDM
and OTM would.

    beamtree train prepared/LOG --out runs/LOG --device cuda --no-refit
    python benchmarks/quality/inner_nodes.py prepared/LOG runs/LOG --device cuda --steps 3000
"""

import argparse
import json
import time
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import beamtree as bt
from beamtree.beam import retrieve, walk
from beamtree.candidates import children_of_positives
from beamtree.closed_form.calibration import logistic
from beamtree.data import Data
from beamtree.evaluate.metrics import hits, num_relevant, recall
from beamtree.methods import Method, by_name, every_positive
from beamtree.model import TreeModel
from beamtree.parts.sequence import SEQUENCE, user_vectors
from beamtree.scorers import Scorer, SequenceScorer, SumScorer, as_sum
from beamtree.scorers.dot_product import DotProductScorer, fit_to_maxima
from beamtree.targets import any_relevant
from beamtree.train.loop import fit
from beamtree.train.schedule import Schedule
from beamtree.tree import PAD, Tree

K = (400, 50, 20)
M = (10, 200)
BATCH = 128
LR, WARM_SHARE = 1e-3, 0.5
USERS = 512  # on whom logits are calibrated


class InnerNodesScorer(Scorer):
    """A sum whose rows of inner nodes in the sequence part are trained.

    On every level σ of the logits estimates p(z_n = 1): the sum is scaled and shifted, by level.

    Args:
        scorer: the sum.
        height: of the tree.
        leaves: whether the leaves and the transformer are trained too.
    """

    scale: Tensor
    bias: Tensor
    reads_items = True

    def __init__(self, scorer: SumScorer, height: int, leaves: bool = False) -> None:
        super().__init__()
        self.sum, self.height, self.leaves = scorer, height, leaves
        part = scorer.part(SEQUENCE)
        assert isinstance(part, SequenceScorer)
        part.table.weight = nn.Parameter(part.table.weight.float())
        part.encoder.requires_grad_(leaves)
        part.frozen = not leaves
        self.register_buffer("scale", torch.ones(height + 1))
        self.register_buffer("bias", torch.zeros(height + 1))

    def prepare(self, tree: Tree, x: Tensor) -> Any:
        return self.sum.prepare(tree, x)

    def forward(self, prepared: Any, level: int, nodes: Tensor) -> Tensor:
        logits: Tensor = self.sum(prepared, level, nodes)
        logits = logits.detach() if level == self.height and not self.leaves else logits
        return (logits * self.scale[level] + self.bias[level]).masked_fill(nodes == PAD, -torch.inf)

    def settings(self) -> dict[str, Any]:
        return {}

    def check(self, x: Tensor) -> None:
        self.sum.check(x)

    @torch.no_grad()
    def calibrate(self, model: TreeModel, data: Data, beam_size: int) -> None:
        """Choose scale and bias of each level, on the nodes that the beams of training users visit."""
        device = model.tree.device
        rows = torch.arange(min(USERS, len(data)), device=device)
        x, y = data.to(device).batch(rows, torch.Generator(device).manual_seed(0))
        positives, prepared = any_relevant(model.tree, y), self.sum.prepare(model.tree, x)
        for step in list(walk(model.query(x), beam_size)):
            scores = self.sum(prepared, step.level, step.candidates)
            labels, real = positives[step.level].at(step.candidates), scores > -torch.inf
            self.scale[step.level], self.bias[step.level] = logistic(scores[real], labels[real])


def train_inner_nodes(
    model: TreeModel,
    data: Data,
    method: Method,
    *,
    beam_size: int,
    steps: int,
    warm_up: Method | None = None,
    lr: float = LR,
    leaves: bool = False,
    seed: int = 0,
) -> TreeModel:
    """The model with inner nodes that were trained by a method, on the nodes that beams of the whole sum visit.

    Args:
        model: with a sequence part; it stays as it was.
        data: instances, such as `data.train.random_crops()`.
        method: such as `bt.otm(beam_size)`.
        beam_size: k that logits are calibrated with.
        steps: how long.
        warm_up: the method of the first half of the steps.
        lr: learning rate.
        leaves: whether the leaves and the transformer are trained too.
        seed: of everything random.
    """
    parts = as_sum(model.scorer)
    assert parts is not None
    scorer = InnerNodesScorer(deepcopy(parts), model.tree.height, leaves).to(model.tree.device)
    trained = model.with_scorer(scorer)
    scorer.calibrate(trained, data, beam_size)
    schedule = Schedule(lr, warm_up=warm_up, warm_share=WARM_SHARE)
    fit(trained, data, method, steps=steps, batch_size=BATCH, schedule=schedule, seed=seed)
    return trained.eval()


class OwnBest:
    """The same histories with the best leaves of the model itself as the relevant items."""

    def __init__(self, data, model, m):
        self.data, self.model, self.m = data, model, m

    def __getattr__(self, name):
        return getattr(self.data, name)

    def __len__(self):
        return len(self.data)

    def to(self, device):
        return OwnBest(self.data.to(device), self.model, self.m)

    def batch(self, rows, generator=None):
        x, _ = self.data.batch(rows, generator)
        return x, retrieve(self.model, x, beam_size=400, m=self.m)[0]


def search(model, users, find, scale, batch_size=64):
    """Recall of each user at each of M, and the mean p of the first ten items of each user."""
    recalls, p = [], []
    for rows in torch.arange(len(users)).split(batch_size):
        x, y = users.batch(rows)
        x = x.to(model.tree.device)
        items = find(x)
        hit, relevant = hits(items.cpu(), y), num_relevant(y)
        recalls.append(torch.stack([recall(hit, relevant, m) for m in M if m <= items.shape[1]], dim=1))
        with torch.no_grad():
            leaves = model.tree.leaf_of_item(items[:, : M[0]])
            scores = model.scorer(model.scorer.prepare(model.tree, x), model.tree.height, leaves)
        p.append((scores * scale[0] + scale[1]).sigmoid().mean(1).cpu())
    return torch.cat(recalls), torch.cat(p)


def all_leaves(model, x):
    """The best leaves of all."""
    with torch.no_grad():
        best = model.query(x).whole_level(model.tree.height).topk(max(M))
    return model.tree.items()[best.indices]


def beam(model, k, x):
    """What a beam finds."""
    return retrieve(model, x, beam_size=k, m=min(k, max(M)))[0]


def with_error(values):
    """The mean and half of the 95 % interval, both in %."""
    return [round(100 * float(values.mean()), 2), round(196 * float(values.std()) / len(values) ** 0.5, 2)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("run", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--beam", type=int, default=20)
    parser.add_argument("--parts", default="all,sequence")
    parser.add_argument(
        "--rows", default="means,maxima,plt,tdm,otm,otm after tdm,otm after maxima,otm own best,otm with leaves"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch-users", type=int, default=64)
    args = parser.parse_args()
    data = bt.load_data(args.folder)
    whole = bt.load_model(args.run, args.device)
    for part in whole.scorer.parts.values():
        if isinstance(part, DotProductScorer):
            part.table.weight.data = part.table.means_on(whole.tree, whole.tree).weight.data.half()
    top = 1
    while len(whole.tree.level(top + 1)) <= args.beam:
        top += 1
    tdm, otm = by_name("tdm-positives", negatives=2 * args.beam), bt.otm(beam_size=args.beam)
    plt = Method("plt, not chained", children_of_positives, every_positive)
    rows = {  # method, warm-up, and what differs from training inner nodes that start as means
        "means": (None, None, ""),
        "maxima": (None, None, "maxima"),
        "plt": (plt, None, ""),
        "tdm": (tdm, None, ""),
        "otm": (otm, None, ""),
        "otm after tdm": (otm, tdm, ""),
        "otm after maxima": (otm, None, "maxima"),
        "otm own best": (otm, None, "own best"),
        "otm with leaves": (otm, tdm, "leaves"),
        "otm-margin": (by_name("otm-margin", beam_size=args.beam), None, ""),
        "otm-level-weights": (by_name("otm-level-weights", beam_size=args.beam), None, ""),
        "dtr": (by_name("dtr", nodes=2 * args.beam), None, ""),
    }
    for parts in args.parts.split(","):
        scorer = whole.scorer
        if parts == "sequence":
            scorer = SumScorer({SEQUENCE: whole.scorer.part(SEQUENCE)}, whole.tree.height).to(args.device)
        means = bt.TreeModel(whole.tree, scorer, first_level=top).eval()
        maxima = means.with_scorer(deepcopy(scorer))
        for part in maxima.scorer.parts.values():
            if isinstance(part, DotProductScorer):
                fit_to_maxima(whole.tree, part.table.weight.data, user_vectors(part, whole.tree, data.train, args.seed))
        instances = data.train.random_crops()
        scale = InnerNodesScorer(deepcopy(scorer), whole.tree.height).to(args.device)
        scale.calibrate(means.with_scorer(scale), instances, args.beam)
        scale = scale.scale[-1], scale.bias[-1]  # of leaves, the same for all rows
        about = {"log": args.folder.name, "parts": parts, "seed": args.seed}
        reference = search(means, data.test, partial(all_leaves, means), scale, args.batch_users)
        recalls = {f"recall@{m}": with_error(reference[0][:, column]) for column, m in enumerate(M)}
        print(json.dumps({**about, "row": "every leaf", **recalls}), flush=True)
        for name in args.rows.split(","):
            method, warm_up, different = rows[name]
            began = time.monotonic()
            model = maxima if different == "maxima" else means
            if method is not None:
                trained = train_inner_nodes(
                    model,
                    OwnBest(instances, means, args.beam // 2) if different == "own best" else instances,
                    method,
                    beam_size=args.beam,
                    steps=args.steps,
                    warm_up=warm_up,
                    lr=args.lr / 10 if different == "leaves" else args.lr,
                    leaves=different == "leaves",
                    seed=args.seed,
                )
                model = trained.with_scorer(trained.scorer.sum)
            best = reference
            if different == "leaves":
                best = search(model, data.test, partial(all_leaves, model), scale, args.batch_users)
            for k in K:
                found = search(model, data.test, partial(beam, model, k), scale, args.batch_users)
                line = {**about, "row": name, "k": k}
                for column, m in enumerate(m for m in M if m <= k):
                    line[f"recall@{m}"] = with_error(found[0][:, column])
                    line[f"lost@{m}"] = with_error(best[0][:, column] - found[0][:, column])
                line["regret@10"] = with_error(best[1] - found[1])
                print(json.dumps({**line, "s": round(time.monotonic() - began)}), flush=True)


if __name__ == "__main__":
    main()
