"""What a beam loses by the vectors of inner nodes: means of the leaves, or trained as PLT, TDM and OTM would.

python benchmarks/inner_nodes.py prepared/LOG runs/LOG --device cuda --steps 1500
"""

import argparse
import json
import time
from copy import deepcopy
from pathlib import Path

import torch
from torch import Tensor, nn

import beamtree as bt
from beamtree.beam import retrieve, walk
from beamtree.candidates import children_of_positives
from beamtree.closed_form.part_weights import calibration
from beamtree.evaluate import measure
from beamtree.methods import Method, by_name, every_positive
from beamtree.scorers import Scorer, SumScorer
from beamtree.targets import any_relevant
from beamtree.train.schedule import Schedule
from beamtree.train.sequence import SEQUENCE
from beamtree.tree import PAD

K = (400, 50, 20)
BATCH = 128


class InnerNodes(Scorer):
    """A sum whose sequence rows of inner nodes are trained; on every level its logits are σ's of probabilities."""

    scale: Tensor
    bias: Tensor
    reads_items = True

    def __init__(self, scorer: SumScorer, height: int) -> None:
        super().__init__()
        self.sum, self.height = scorer, height
        part = scorer.part(SEQUENCE)
        part.table.weight = nn.Parameter(part.table.weight.float())
        for weight in part.encoder.parameters():
            weight.requires_grad_(False)
        part.frozen = True
        self.register_buffer("scale", torch.ones(height + 1))
        self.register_buffer("bias", torch.zeros(height + 1))

    def context(self, tree, x):
        return self.sum.context(tree, x)

    def forward(self, context, level, nodes):
        logits = self.sum(context, level, nodes)
        logits = logits.detach() if level == self.height else logits
        return (logits * self.scale[level] + self.bias[level]).masked_fill(nodes == PAD, -torch.inf)

    def settings(self):
        return {}

    def check(self, x):
        self.sum.check(x)

    def calibrate(self, model, data, beam_size):
        """Choose scale and bias of each level on training users."""
        generator = torch.Generator(model.tree.device).manual_seed(0)
        x, y = data.to(model.tree.device).batch(torch.arange(min(512, len(data)), device=model.tree.device), generator)
        positives = any_relevant(model.tree, y)
        found = []
        for step in walk(model.query(x), beam_size):
            with torch.no_grad():
                scores = self.sum(self.sum.context(model.tree, x), step.level, step.candidates)
            labels = positives[step.level].at(step.candidates)
            real = scores > -torch.inf
            found.append((step.level, calibration(scores[real], labels[real])))
        for level, (scale, bias) in found:
            self.scale[level], self.bias[level] = scale, bias


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


def recalls(model, users, k, m=10):
    result = measure(
        lambda x, _: retrieve(model, x.to(model.tree.device), beam_size=k, m=m)[0].cpu(),
        users,
        m=(m,),
        metrics=("recall",),
        batch_size=BATCH if k < 5000 else 8,
    )
    return round(100 * float(result["recall", m]), 2)


def every_leaf(model, users, m=10):
    def find(x, _):
        query = model.query(x.to(model.tree.device))
        with torch.no_grad():
            best = query.whole_level(model.tree.height).topk(m).indices
        return model.tree.items()[best].cpu()

    result = measure(find, users, m=(m,), metrics=("recall",), batch_size=32)
    return round(100 * float(result["recall", m]), 2)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("run", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--beam", type=int, default=20)
    parser.add_argument("--parts", default="all,sequence")
    args = parser.parse_args()
    data = bt.load_data(args.folder)
    whole = bt.load_model(args.run, args.device)
    top = 1
    while len(whole.tree.level(top + 1)) <= args.beam:
        top += 1
    for parts in args.parts.split(","):
        scorer = whole.scorer
        if parts == "sequence":
            scorer = SumScorer({SEQUENCE: whole.scorer.part(SEQUENCE)}, whole.tree.height).to(args.device)
        base = bt.TreeModel(whole.tree, scorer, first_level=top).eval()
        row = {"log": args.folder.name, "parts": parts, "every leaf": every_leaf(base, data.test)}
        row["means"] = [recalls(base, data.test, k) for k in K]
        print(json.dumps(row), flush=True)
        rows = {
            "plt": (Method("plt, not chained", children_of_positives, every_positive), False),
            "tdm": (by_name("tdm-positives", negatives=2 * args.beam), False),
            "otm": (bt.otm(beam_size=args.beam), False),
            "otm, own best": (bt.otm(beam_size=args.beam), True),
            "tdm, own best": (by_name("tdm-positives", negatives=2 * args.beam), True),
        }
        for name, (method, own) in rows.items():
            began = time.monotonic()
            trained = InnerNodes(deepcopy(scorer), whole.tree.height).to(args.device)
            model = bt.TreeModel(whole.tree, trained, first_level=top)
            instances = data.train.random_crops()
            trained.calibrate(model, instances, args.beam)
            if own:
                instances = OwnBest(instances, base, args.beam // 2)
            bt.fit(model, instances, method, steps=args.steps, batch_size=BATCH, schedule=Schedule(args.lr), seed=0)
            model.eval()
            result = [recalls(model, data.test, k) for k in K]
            print(
                json.dumps(
                    {"log": args.folder.name, "parts": parts, name: result, "s": round(time.monotonic() - began)}
                ),
                flush=True,
            )


if __name__ == "__main__":
    main()
