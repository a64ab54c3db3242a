"""The kernels against what they are twins of: on a GPU where there is one, in Triton's interpreter elsewhere."""

import os

import pytest
import torch
from random_parts import check_equal, random_scorers, random_tree

ON_GPU = torch.cuda.is_available()
if not ON_GPU:
    os.environ["TRITON_INTERPRET"] = "1"  # before a kernel is imported
pytest.importorskip("triton")

import beamtree as bt  # noqa: E402
from beamtree import beam, kernels  # noqa: E402
from beamtree.kernels.best_child_gpu import pass_up  # noqa: E402
from beamtree.kernels.deep_gpu import Layers, score, score_backward  # noqa: E402
from beamtree.kernels.dots import dots  # noqa: E402
from beamtree.kernels.maxima import maxima  # noqa: E402
from beamtree.kernels.scan_gpu import add_tables  # noqa: E402
from beamtree.kernels.select import select  # noqa: E402
from beamtree.kernels.sparse_adam_gpu import adam  # noqa: E402
from beamtree.scorers import PopularityScorer, SumScorer  # noqa: E402
from beamtree.scorers.subtree_max import SubtreeMax  # noqa: E402
from beamtree.search import scan  # noqa: E402
from beamtree.search.scan import Table  # noqa: E402

DEVICE = "cuda" if ON_GPU else "cpu"


@pytest.fixture
def generator():
    return torch.Generator(DEVICE).manual_seed(0)


def draw(generator, *shape):
    return torch.randn(*shape, generator=generator, device=DEVICE)


@pytest.fixture
def case(generator):
    """Three users, nodes of levels 2 and 4 side by side, some of them PAD."""
    layers = Layers(
        wn=draw(generator, 128, 24) * 0.3,
        s1=torch.rand(128, generator=generator, device=DEVICE),
        w2=draw(generator, 64, 128) * 0.1,
        b2=draw(generator, 64),
        s2=torch.rand(64, generator=generator, device=DEVICE),
        w3=draw(generator, 24, 64) * 0.2,
        b3=draw(generator, 24),
        s3=torch.rand(24, generator=generator, device=DEVICE),
        w4=draw(generator, 1, 24) * 0.3,
        b4=draw(generator, 1),
    )
    vectors, user = draw(generator, 500, 24), draw(generator, 3, 6, 128)
    nodes = torch.randint(-1, 500, (3, 7 + 150), generator=generator, device=DEVICE)
    return vectors, user, layers, ((2, 7), (4, 150)), nodes


def plain_score(vectors, user, layers, levels, nodes):
    level = torch.cat([torch.full((width,), level, device=nodes.device) for level, width in levels])
    hidden = vectors[nodes.clamp(min=0)] @ layers.wn.T + user[:, level]
    prelu = torch.nn.functional.prelu
    hidden = torch.nn.functional.linear(prelu(hidden.flatten(0, 1), layers.s1), layers.w2, layers.b2)
    hidden = torch.nn.functional.linear(prelu(hidden, layers.s2), layers.w3, layers.b3)
    hidden = torch.nn.functional.linear(prelu(hidden, layers.s3), layers.w4, layers.b4)
    return hidden.view(len(user), -1).masked_fill(nodes == -1, -torch.inf)


def near(found, expected, tolerance):
    """‖found - expected‖ / ‖expected‖: the right measure where matrices are multiplied in fewer digits."""
    return float((found - expected).norm() / expected.norm()) < tolerance


def test_scores_are_those_of_the_layers(case):
    expected = plain_score(*case)
    found = score(*case)
    real = case[-1] != -1
    assert torch.equal(found == -torch.inf, ~real)
    assert near(found[real], expected[real], 2e-3 if ON_GPU else 1e-6)


def test_nodes_that_all_users_share_are_scored_for_each(case):
    vectors, user, layers, levels, nodes = case
    shared = nodes[:1].clamp(min=0)
    assert near(score(vectors, user, layers, levels, shared), plain_score(vectors, user, layers, levels, shared), 2e-3)


def test_gradients_are_those_of_the_layers(case, generator):
    vectors, user, layers, levels, nodes = case
    leaves = [part.detach().clone().requires_grad_() for part in (vectors, user, *layers)]
    grad = draw(generator, *nodes.shape).masked_fill(nodes == -1, 0)
    plain_score(leaves[0], leaves[1], Layers(*leaves[2:]), levels, nodes).masked_fill(nodes == -1, 0).backward(grad)
    to_vectors = torch.zeros_like(vectors)
    touched = torch.zeros(len(vectors), dtype=torch.uint8, device=DEVICE)
    to_user, to_layers = score_backward(vectors, user, layers, levels, nodes, grad, to_vectors, touched)
    names = ["vectors", "user", *Layers._fields]
    for name, leaf, found in zip(names, leaves, [to_vectors, to_user, *to_layers], strict=True):
        assert found.shape == leaf.grad.shape, name
        assert near(found, leaf.grad, 5e-2 if ON_GPU else 1e-5), name
    assert touched.nonzero().squeeze(1).tolist() == nodes[nodes >= 0].unique().tolist()


@pytest.mark.parametrize(("width", "k"), [(20, 7), (64, 64), (100, 1), (130, 129)])
def test_the_best_are_kept_and_expanded(generator, width, k):
    rank = draw(generator, 4, width).round(decimals=1)  # with ties
    rank[1, : width // 2] = -torch.inf
    rank[2] = -torch.inf
    candidates = torch.randint(0, 50, (4, width), generator=generator, device=DEVICE)
    candidates[rank == -torch.inf] = -1
    occupied = torch.rand(200, generator=generator, device=DEVICE) < 0.7
    beam, index, children = select(candidates, rank, k, 3, occupied, True)
    assert torch.equal(rank.gather(1, index).sort().values, rank.topk(k).values.sort().values)
    assert all(len(set(row.tolist())) == k for row in index)
    assert torch.equal(candidates.gather(1, index), beam)
    expected = beam.unsqueeze(-1) * 3 + torch.arange(1, 4, device=DEVICE)
    real = (beam.unsqueeze(-1) >= 0) & occupied[expected.clamp(min=0)]
    assert torch.equal(children, expected.where(real, -1).flatten(1))


def test_ties_at_the_threshold_are_cut_to_k(generator):
    rank = torch.zeros(2, 10, device=DEVICE)
    beam, index, children = select(torch.arange(10, device=DEVICE).unsqueeze(0), rank, 4, 2, None, False)
    assert beam.tolist() == [[0, 1, 2, 3]] * 2 == index.tolist()
    assert children.shape == (2, 0)


def test_labels_go_up_as_the_definition_says(generator):
    arity, height, targets = 3, 4, 11
    first = (arity**height - 1) // (arity - 1)
    leaves = torch.randint(0, arity**height, (6, targets), generator=generator, device=DEVICE) + first
    leaves[0, 3:] = -1
    leaves[1] = -1
    nodes = [leaves.sort(dim=1).values]
    for _ in range(height):
        nodes.append(torch.div(nodes[-1] - 1, arity, rounding_mode="floor"))
    nodes = torch.stack(nodes[::-1], dim=1)
    score_of = draw(generator, 6, 500).round(decimals=0)  # with ties
    children = (nodes[:, :-1].unsqueeze(-1) * arity + torch.arange(1, arity + 1, device=DEVICE)).flatten(2)
    logits = score_of.unsqueeze(1).expand(-1, height, -1).gather(2, children.clamp(min=0))
    found = pass_up(nodes, logits, arity)
    for row in range(6):
        label = {int(n): True for n in leaves[row] if n >= 0}
        for level in range(height, -1, -1):
            if level < height:
                for n in nodes[row, level].tolist():
                    below = [n * arity + 1 + j for j in range(arity)]
                    top = max(float(score_of[row, c]) for c in below) if n >= 0 else 0
                    label[n] = n >= 0 and any(float(score_of[row, c]) == top and label.get(c, False) for c in below)
            assert found[row, level].tolist() == [n >= 0 and label[n] for n in nodes[row, level].tolist()]


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # of some versions of torch
def test_touched_rows_move_as_adam_would_move_them(generator):
    weight = draw(generator, 300, 24)
    expected = weight.cpu().clone().requires_grad_()
    plain = torch.optim.SparseAdam([expected], lr=0.01)
    first, second, grad = torch.zeros_like(weight), torch.zeros_like(weight), torch.zeros_like(weight)
    touched = torch.zeros(300, dtype=torch.uint8, device=DEVICE)
    for step in range(1, 4):
        rows = torch.randperm(300, generator=generator, device=DEVICE)[:50]
        values = draw(generator, 50, 24)
        grad[rows], touched[rows] = values, 1
        expected.grad = torch.sparse_coo_tensor(rows.unsqueeze(0).cpu(), values.cpu(), (300, 24), check_invariants=True)
        plain.step()
        at = torch.tensor(float(step), device=DEVICE)
        adam(weight, grad, first, second, touched, torch.tensor(0.01, device=DEVICE), at, 0.9, 0.999, 1e-8)
        torch.testing.assert_close(weight.cpu(), expected.detach(), rtol=1e-4, atol=1e-5)
        assert not grad.any()
        assert not touched.any()


@pytest.mark.extended
@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("name", ["otm", "tdm-positives", "plt"])
def test_a_methods_loss_and_gradients_do_not_depend_on_who_computes_them(monkeypatch, generator, name, share):
    tree = bt.Tree(torch.randperm(50, generator=torch.Generator().manual_seed(0)))
    method = {"otm": bt.otm(4), "tdm-positives": bt.methods.tdm_positives(5), "plt": bt.plt()}[name]
    x = torch.randint(-1, 50, (3, 12), generator=generator, device=DEVICE)
    y = torch.randint(-1, 50, (3, 6), generator=generator, device=DEVICE)
    found = []
    for fits in (False, True):
        monkeypatch.setattr(kernels, "fits", lambda tensor, fits=fits: fits)
        scorer = bt.DeepScorer(tree.num_nodes, scale=1.0, share=share)
        model = bt.TreeModel(tree, scorer, chained=method.chained, first_level=2).to(DEVICE)
        loss = method.loss(model, x, y, torch.Generator(DEVICE).manual_seed(0))
        loss.backward()
        found.append([loss.detach(), *(p.grad for p in model.parameters())])
    for plain, fast in zip(*found, strict=True):
        assert near(fast, plain, 5e-2 if ON_GPU else 1e-4)


# Products with rows


@pytest.mark.parametrize("dim", [5, 24, 192])
def test_products_are_those_with_the_rows_of_the_nodes(generator, dim):
    rows, user = draw(generator, 40, dim), draw(generator, 3, dim)
    nodes = torch.randint(-1, 40, (3, 21), generator=generator, device=DEVICE)
    for asked in (nodes, nodes[:1]):
        expected = (rows[asked.clamp(min=0)] * user.unsqueeze(1)).sum(-1).masked_fill(asked == bt.PAD, 0.0)
        torch.testing.assert_close(dots(rows, user, asked), expected, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(dots(rows.half(), user, asked), expected, atol=0.05, rtol=1e-2)


# The highest below a node


@pytest.mark.extended
@pytest.mark.parametrize(("arity", "rows", "entries"), [(2, 1, 40), (2, 3, 7), (3, 2, 90), (2, 2, 1)])
def test_maxima_are_those_of_the_leaves_below(generator, arity, rows, entries):
    tree = bt.Tree(torch.randperm(100, generator=torch.Generator().manual_seed(1)), arity)
    items = torch.randint(-1, 30, (rows, entries), generator=generator, device=DEVICE).cpu()
    scores = draw(generator, rows, entries).cpu()
    leaves, first = tree.leaf_of_item(items), tree.level(tree.height).start
    totals = torch.zeros(rows, len(tree.level(tree.height)) + 1)
    totals = totals.scatter_add_(1, (leaves - first).where(leaves != bt.PAD, totals.shape[1] - 1), scores)[:, :-1]
    found = SubtreeMax(tree.to(DEVICE), leaves.to(DEVICE), scores.to(DEVICE))
    for level in range(1, tree.height + 1):
        span, width = tree.level(level), arity ** (tree.height - level)
        highest = totals.clamp(min=0).unflatten(1, (-1, width)).amax(2) if width > 1 else totals
        nodes = torch.randint(span.start - 1, span.stop, (rows, 70)).masked_fill_(torch.rand(rows, 70) < 0.1, bt.PAD)
        nodes = nodes.where(nodes >= span.start, bt.PAD)
        for asked in (nodes, nodes[:1]):
            real = (asked != bt.PAD).expand(rows, -1)
            wanted = highest.gather(1, (asked - span.start).clamp(min=0).expand(rows, -1))[real]
            here = asked.to(DEVICE)
            torch.testing.assert_close(found.at(level, here).cpu()[real], wanted)
            compiled = maxima(found.keys, found.scores, found.runs, here, span, width, rows)
            torch.testing.assert_close(compiled.cpu()[real], wanted)


@pytest.mark.parametrize(("users", "leaves", "group"), [(1, 256, 32), (3, 256, 128), (70, 128, 8), (2, 81, 1)])
def test_products_are_added_to_all_leaves(generator, users, leaves, group):
    """Also those of users whose numbers are too large for a half."""
    given = [
        Table(draw(generator, leaves, dim).half(), weight, draw(generator, users, dim) * scale)
        for dim, weight, scale in ((5, 0.7, 1.0), (70, 1e-6, 1e6))
    ]
    total, shared = draw(generator, users, leaves), draw(generator, leaves)
    blocked = torch.rand(leaves, generator=generator, device=DEVICE) < 0.3
    total[0, 5] = -torch.inf
    for some, same, closed in ((given, shared, blocked), (given[:1], None, None), ([], shared, None)):
        expected = total.double()
        for rows, weight, of_users in some:
            expected += weight * of_users.double() @ rows.double().T
        expected = expected if same is None else expected + same
        expected = expected if closed is None else expected.masked_fill(closed, -torch.inf)
        for add in (add_tables, scan.add_tables):
            scores = total.clone()
            highest = add(scores, some, same, closed, group)
            torch.testing.assert_close(scores.double(), expected, rtol=1e-4, atol=1e-3)
            assert torch.equal(highest, scores.unflatten(1, (-1, group)).amax(2))


@pytest.mark.skipif(ON_GPU, reason="the interpreter is for machines without a GPU")
def test_a_scan_by_kernels_finds_what_brute_force_finds(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    tree = random_tree(2, 480, 9, generator, 20)
    parts = random_scorers(tree, generator)
    parts = {name: parts[name] for name in ("factors", "memory", "repeats", "sequence")}
    parts["popularity"] = PopularityScorer.from_counts(tree, torch.arange(480))
    model = bt.TreeModel(tree, SumScorer(parts, tree.height)).eval()
    x = torch.randint(-1, 480, (3, 20), generator=generator)
    expected = bt.brute_force(model, x, m=5, exclude=x)
    assert scan.group_size(tree, 5) > 1
    monkeypatch.setattr(beam, "search_parts", lambda *arguments: None)
    monkeypatch.setattr(kernels, "fits", lambda tensor: tensor.is_floating_point())
    check_equal(bt.retrieve(model, x, m=5, exclude=x, search="scan"), expected, model, x)
