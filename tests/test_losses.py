"""The losses of the methods against plain loops over nodes, with their gradients."""

import math
from functools import partial

import oracle
import pytest
import torch
from conftest import cases
from hypothesis import given, settings
from hypothesis import strategies as st

import beamtree as bt
from beamtree import PAD, TreeModel, candidates, losses, methods, targets
from beamtree.scorers import FixedScorer


def check(method, case, plain, draw_seed=1):
    """The loss equals the sum of plain(row, score) over rows, and so does its slope in a random direction."""
    logits = case.logits.clone().requires_grad_()
    model = TreeModel(case.tree, FixedScorer(logits))
    generator = torch.Generator().manual_seed(draw_seed)
    loss = method.loss(model, FixedScorer.every(len(case.y)), case.y, generator)
    (gradient,) = torch.autograd.grad(loss, logits)

    def total(values):
        return sum(plain(row, values[row].tolist().__getitem__) for row in range(len(case.y)))

    assert float(loss.detach()) == pytest.approx(total(case.logits), rel=1e-9)
    direction = torch.randn(logits.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    step = 1e-6 * direction
    slope = (total(case.logits + step) - total(case.logits - step)) / 2e-6
    assert float((gradient * direction).sum()) == pytest.approx(slope, rel=1e-4, abs=1e-4)


def levels(case):
    return range(1, case.height + 1)


def real(case, level):
    return [n for n in oracle.nodes_of(case.b, level) if oracle.items_below(case.slots, case.b, case.height, n)]


def z(case, row, n):
    return oracle.z(case.slots, case.b, case.height, n, case.relevant[row])


def z_hat(case, row, n):
    score = case.logits[row].tolist().__getitem__
    return oracle.z_hat(case.slots, case.b, case.height, n, case.relevant[row], score)


def beams(case, row, k):
    score = case.logits[row].tolist().__getitem__
    return oracle.beam_search(case.slots, case.b, case.height, k, score)


# DTR


@pytest.mark.parametrize("whole_level", [4, 0])
@given(case=cases(max_items=20, ties=False))
def test_dtr_is_the_cross_entropy_of_a_softmax_over_every_level(whole_level, case):
    def plain(row, g):
        loss = 0.0
        for level in levels(case):
            log_z = math.log(sum(math.exp(g(n)) for n in real(case, level)))
            loss += sum(log_z - g(n) for n in real(case, level) if z_hat(case, row, n))
        return loss

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(targets, "WHOLE_LEVEL_FACTOR", whole_level)
        check(methods.dtr(10**6), case, plain)


@given(cases(max_items=20, ties=False))
@settings(max_examples=8)  # it asks for the loss of every target
def test_dtr_is_the_sum_of_its_losses_for_one_target_each(case):
    model, x = case.model(), FixedScorer.every(len(case.y))
    whole = methods.dtr(10**6).loss(model, x, case.y, torch.Generator())
    single = [
        methods.dtr(10**6).loss(model, x[row : row + 1], torch.tensor([[item]]), torch.Generator())
        for row, relevant in enumerate(case.relevant)
        for item in relevant
    ]
    assert float(whole) == pytest.approx(float(sum(single)), rel=1e-9)


@given(cases(max_items=20, ties=False), st.integers(1, 9))
def test_dtr_divides_drawn_nodes_by_how_often_they_are_expected(case, draws):
    query = case.query()
    found = list(candidates.softmax_paths(query, [], torch.Generator().manual_seed(1), nodes=draws))

    def plain(row, g):
        loss = 0.0
        for level, nodes, log_expected in found:
            nodes, log_expected = (part.expand(len(case.y), -1)[row].tolist() for part in (nodes, log_expected))
            positive = [n for n in real(case, level) if z(case, row, n)]
            total = sum(math.exp(g(n)) for n in positive)
            total += sum(math.exp(g(n) - e) for n, e in zip(nodes, log_expected, strict=True) if n not in positive)
            loss += sum(math.log(total) - g(n) for n in positive if z_hat(case, row, n))
        return loss

    check(methods.dtr(draws), case, plain)


# OTM with a margin


@pytest.mark.parametrize("whole_level", [4, 0])
@given(case=cases(max_items=20, ties=False), k=st.integers(1, 5))
def test_margin_adds_a_sigmoid_for_every_ancestor_of_a_positive(whole_level, case, k):
    def plain(row, g):
        loss = 0.0
        for level, (queried, beam) in zip(levels(case), beams(case, row, k), strict=True):
            loss += sum(oracle.bce(z_hat(case, row, n), g(n)) for n in queried)
            if len(queried) <= k:
                continue
            last = min(g(n) for n in beam)
            loss += sum(1 / (1 + math.exp(g(n) - last)) for n in real(case, level) if z(case, row, n))
        return loss

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(targets, "WHOLE_LEVEL_FACTOR", whole_level)
        check(methods.otm_margin(k), case, plain)


# OTM with weights of levels


@pytest.mark.parametrize("whole_level", [4, 0])
@given(case=cases(max_items=20, ties=False), k=st.integers(1, 5))
def test_a_level_weighs_more_where_the_beam_loses_positives(whole_level, case, k):
    def plain(row, g):
        kept, lost, sums = set(case.relevant[row]), [], []
        for queried, beam in beams(case, row, k):
            below = {item for n in beam for item in oracle.items_below(case.slots, case.b, case.height, n)}
            lost.append(len(kept - below) / len(case.relevant[row]))
            kept &= below
            sums.append(sum(oracle.bce(z_hat(case, row, n), g(n)) for n in queried))
        total = sum(math.exp(share) for share in lost)
        return sum(len(lost) * math.exp(share) / total * each for share, each in zip(lost, sums, strict=True))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(targets, "WHOLE_LEVEL_FACTOR", whole_level)
        check(methods.otm_level_weights(k), case, plain)


@given(cases(max_items=20))
def test_a_beam_that_loses_nothing_leaves_otm_as_it_is(case):
    """All levels weigh 1, and there is no margin to a k-th node."""
    model, x = case.model(), FixedScorer.every(len(case.y))
    plain, *others = (
        float(make(100).loss(model, x, case.y, torch.Generator()))
        for make in (bt.otm, methods.otm_margin, methods.otm_level_weights)
    )
    assert others == pytest.approx([plain, plain], rel=1e-9)


# All of them


@pytest.mark.parametrize("name", ["dtr", "otm-margin", "otm-level-weights"])
def test_losses_of_two_halves_of_a_batch_add_up(name):
    """Each process computes the loss of its rows, with the draws of the whole batch."""
    tree = bt.random_tree(60, seed=1)
    model = TreeModel(tree, bt.LinearScorer(tree.num_nodes, 3))
    x, y = torch.randn(6, 3), torch.tensor([[1, 5], [7, PAD], [9, 3], [11, 2], [40, PAD], [59, 8]])
    method = methods.sized(name, 4, 8)

    def loss(part_of=None):
        return float(method.loss(model, x, y, torch.Generator().manual_seed(0), part_of).detach())

    parts = [loss(partial(bt.model.BatchPart, *span)) for span in ((0, 2), (2, 6))]
    assert sum(parts) == pytest.approx(loss(), rel=1e-5)


# BCE


@given(cases())
def test_bce_and_its_gradient_equal_torch(case):
    logits = (case.logits * 4).requires_grad_()
    labels = torch.rand(logits.shape, generator=torch.Generator().manual_seed(0)) < 0.5
    ours = losses.bce(logits, labels)
    theirs = torch.nn.functional.binary_cross_entropy_with_logits(logits, labels.double(), reduction="sum")
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(*(torch.autograd.grad(loss, logits)[0] for loss in (ours, theirs)))


def test_bce_of_nothing_is_nothing_and_extremes_stay_finite():
    logits = torch.tensor([-torch.inf, 200.0, -200.0], requires_grad=True)
    loss = losses.bce(logits, torch.tensor([False, False, True]))
    loss.backward()
    assert loss.isfinite()
    assert logits.grad.tolist() == [0.0, 1.0, -1.0]
