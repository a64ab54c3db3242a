"""Adam over all rows, and on touched rows alone: what each promises, against torch."""

import torch

import beamtree as bt
from beamtree.train.optimizer import adam, lazy, set_lr
from beamtree.train.step import Stepper


def instances(items, steps):
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(items, (steps, 6, 12), generator=generator)
    return zip(x, torch.randint(items, (steps, 6, 4), generator=generator), strict=True)


def trained(optimizer, share, steps=5, items=200, spy=None):
    tree = bt.random_tree(items)
    model = bt.TreeModel(tree, bt.DeepScorer(tree.num_nodes, share=share), first_level=3)
    moments = optimizer(model, 0.01)
    for group in moments.param_groups:
        group["eps"] = 1e-20  # SparseAdam adds it elsewhere
    step = Stepper(model, moments)
    for t, (x, y) in enumerate(instances(items, steps)):
        set_lr(moments, 0.01 / (1 + t))
        before = model.scorer.table.weight.detach().clone()
        step(bt.otm(4), x, y, torch.Generator())
        if spy is not None:
            spy(model, before)
    return model


def test_adam_is_torchs():
    ours = trained(adam, True)
    plain = trained(lambda model, lr: torch.optim.Adam(model.parameters(), lr=lr), True)
    for one, other in zip(ours.parameters(), plain.parameters(), strict=True):
        assert torch.equal(one, other)


def test_lazy_moves_touched_rows_as_torchs_sparse_adam_does():
    """SparseAdam for the table and Adam for the rest, told of the same gradients."""

    class Both:
        def __init__(self, model, lr):
            self.table = model.scorer.table
            rest = [p for p in model.parameters() if p is not self.table.weight]
            self.parts = [torch.optim.SparseAdam([self.table.weight], lr=lr), torch.optim.Adam(rest, lr=lr)]
            self.param_groups = [group for part in self.parts for group in part.param_groups]

        def zero_grad(self):
            for part in self.parts:
                part.zero_grad()

        def step(self):
            rows = self.table.touched.nonzero().squeeze(1)
            grad = self.table.weight.grad
            self.table.weight.grad = torch.sparse_coo_tensor(
                rows.unsqueeze(0), grad[rows], grad.shape, check_invariants=True
            )
            for part in self.parts:
                part.step()

    for share in (False, True):
        for one, other in zip(trained(lazy, share).parameters(), trained(Both, share).parameters(), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)


def test_lazy_leaves_other_rows_alone():
    moved = []

    def spy(model, before):
        moved.append(int((model.scorer.table.weight.detach() != before).any(1).sum()))

    model = trained(lazy, False, spy=spy)
    assert all(0 < count < len(model.scorer.table.weight) / 2 for count in moved)


def test_lazy_is_adam_where_every_row_is_touched():
    """Eight items: a beam over the whole tree touches every row at every step."""
    both = [trained(optimizer, True, items=8, steps=3) for optimizer in (adam, lazy)]
    for one, other in zip(*(model.parameters() for model in both), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
