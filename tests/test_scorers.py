"""The contract that every scorer meets. A new scorer needs one line in SCORERS_UNDER_TEST."""

import pytest
import torch
from sample_scorers import (
    histories,
    make_context,
    make_deep,
    make_deep_without_sharing,
    make_factors,
    make_fixed,
    make_linear,
    make_memory,
    make_popularity,
    make_repeats,
    make_sequence,
    make_sum,
    make_sum_with_context,
    make_trend,
)

import beamtree as bt
from beamtree import PAD, losses
from beamtree.scorers import (
    SCORERS,
    DeepScorer,
    LinearScorer,
    linear,
)

SCORERS_UNDER_TEST = {
    "linear": make_linear,
    "fixed": make_fixed,
    "deep": make_deep,
    "deep, no sharing": make_deep_without_sharing,
    "memory": make_memory,
    "repeats": make_repeats,
    "factors": make_factors,
    "popularity": make_popularity,
    "trend": make_trend,
    "sequence": make_sequence,
    "context": make_context,
    "sum": make_sum,
    "sum with context": make_sum_with_context,
}


@pytest.fixture(params=SCORERS_UNDER_TEST)
def scored(request):
    torch.manual_seed(0)
    tree = bt.random_tree(50, arity=3, seed=1)
    scorer, x = SCORERS_UNDER_TEST[request.param](tree)
    return tree, scorer, x


def test_every_registered_scorer_is_under_test():
    tree = bt.random_tree(50)
    assert set(SCORERS) <= {type(make(tree)[0]) for make in SCORERS_UNDER_TEST.values()}


def test_a_scorer_is_made_from_its_settings(scored):
    """As `load_model` makes it: without a seed, and with the weights of the one that was saved."""
    tree, scorer, x = scored
    kinds = {kind.__name__: kind for kind in SCORERS}
    other = type(scorer).from_settings(scorer.settings(), kinds)
    assert other.settings() == scorer.settings()
    other.load_state_dict(scorer.state_dict())
    found, expected = (each.whole_level(each.prepare(tree, x), tree, 2) for each in (other, scorer))
    assert torch.equal(found, expected)


def test_a_node_scores_the_same_in_any_company(scored):
    tree, scorer, x = scored
    prepared = scorer.prepare(tree, x)
    for level in range(1, tree.height + 1):
        span = tree.level(level)
        whole = scorer.whole_level(prepared, tree, level)
        assert whole.shape == (len(x), len(span))
        assert whole.isfinite().all()
        nodes = torch.randint(span.start, span.stop, (len(x), 6))
        torch.testing.assert_close(scorer(prepared, level, nodes), whole.gather(1, nodes - span.start))
        shared = nodes[:1]
        torch.testing.assert_close(scorer(prepared, level, shared), whole[:, shared[0] - span.start])


def test_users_do_not_influence_each_other(scored):
    tree, scorer, x = scored
    level = tree.height
    together = scorer.whole_level(scorer.prepare(tree, x), tree, level)
    alone = torch.cat([scorer.whole_level(scorer.prepare(tree, x[i : i + 1]), tree, level) for i in range(len(x))])
    torch.testing.assert_close(together, alone)


def test_contributions_add_up_to_the_score_and_an_empty_entry_gives_nothing(scored):
    tree, scorer, x = scored
    leaves = tree.leaf_of_item(torch.arange(tree.num_items))
    with torch.no_grad():
        expected = scorer(scorer.prepare(tree, x), tree.height, leaves.unsqueeze(0))
    empty = (x == PAD) if x.dtype == torch.int64 else torch.zeros_like(x, dtype=torch.bool)
    for items in (torch.arange(tree.num_items).unsqueeze(0), torch.stack([torch.randperm(50)[:9] for _ in x])):
        parts = scorer.contributions_by_part(tree, x, items).values()
        found = sum(part.entries.sum(-1) + part.rest for part in parts)
        torch.testing.assert_close(found, expected.gather(1, items.expand(len(x), -1)), rtol=1e-4, atol=1e-4)
        for part in parts:
            assert part.entries.shape == (len(x), items.shape[1], x.shape[1])
            assert not part.entries.movedim(1, 2)[empty].any()


@pytest.mark.parametrize("whole_level", [4096, 0])
def test_pad_scores_below_every_node_and_takes_no_gradient(scored, monkeypatch, whole_level):
    tree, scorer, x = scored
    monkeypatch.setattr(linear, "WHOLE_LEVEL_SIZE", whole_level)
    nodes = torch.tensor([[tree.level(2).start, PAD]])
    for some in (nodes, nodes.expand(len(x), -1)):
        logits = scorer(scorer.prepare(tree, x), 2, some)
        assert (logits[:, 1] == -torch.inf).all()
        assert logits[:, 0].isfinite().all()
        weights = [weight for weight in scorer.parameters() if weight.requires_grad]
        if weights:
            scorer.zero_grad()
            losses.bce(logits, torch.zeros(len(x), 2, dtype=torch.bool)).backward()
            assert all(weight.grad.isfinite().all() for weight in weights)


def literal_deep(tree, scorer, x, node):
    """Supplement C.3 as it is written: x(n), ten windows, concatenated with the row of n, for one user and node."""

    def vector(n):
        row = scorer.table.weight[n]
        return row + vector(int(tree.parent(torch.tensor(n)))) if scorer.share and n > 0 else row

    level = int(tree.level_of(torch.tensor(node)))
    pooled, start = [], 0
    for size in (1, 1, 1, 2, 2, 2, 10, 10, 20, 20):
        real = [int(item) for item in x[start : start + size] if item != PAD]
        lifted = [int(tree.ancestor(tree.leaf_of_item(torch.tensor(item)), level)) for item in real]
        rows = [vector(n) for n in lifted]
        pooled.append(sum(rows) / len(rows) if rows else torch.zeros(24))
        start += size
    values = torch.cat([*pooled, vector(node)])  # 264
    weight = torch.cat([scorer.of_user.weight, scorer.of_node.weight], dim=1)
    values = weight @ values + scorer.of_user.bias
    for slope, layer in zip(scorer.slopes, scorer.layers, strict=True):
        values = layer.weight @ torch.where(values > 0, values, slope * values) + layer.bias
    return values[0]


@pytest.mark.parametrize("share", [True, False])
def test_deep_scores_are_those_of_the_literal_tiled_computation(share):
    torch.manual_seed(0)
    tree = bt.random_tree(50, arity=3, seed=1)
    scorer, x = DeepScorer(tree.num_nodes, scale=1.0, share=share), histories(50)
    assert scorer.of_user.in_features + scorer.of_node.in_features == 264
    prepared = scorer.prepare(tree, x)
    for level in (1, 2, tree.height):
        nodes = tree.mask.nodes(level)[:5]
        ours = scorer(prepared, level, nodes.unsqueeze(0))
        literal = torch.stack([torch.stack([literal_deep(tree, scorer, row, int(n)) for n in nodes]) for row in x])
        torch.testing.assert_close(ours, literal)


@pytest.mark.parametrize("share", [True, False])
def test_a_scorer_that_starts_from_vectors_is_their_product(share):
    """Σ_d |u_d + n_d| - |u_d - n_d|, where u is the mean of the windows and a node stands for the items below it."""
    torch.manual_seed(0)
    tree, vectors = bt.random_tree(40, arity=3, seed=2), torch.randn(40, 30)
    scorer = DeepScorer(tree.num_nodes, share=share).start_from(tree, vectors)
    with torch.no_grad():
        scorer.table.weight.zero_()
        scorer.table.add_means(tree, vectors[:, :24], share=share)
        table = scorer.table.vectors(tree) if share else scorer.table.weight
        for node in range(tree.num_nodes):
            items = [int(i) for i in tree.item_of_leaf(torch.tensor(tree.leaves(node))) if i != PAD]
            if items:
                torch.testing.assert_close(table[node], vectors[items, :24].mean(0), rtol=1e-4, atol=1e-4)
        x = histories(40)
        prepared = scorer.prepare(tree, x)
        pooled = scorer._pool(tree, prepared.vectors, x).view(7, tree.height + 1, 10, 24).mean(2)  # u
        for level in (1, tree.height):
            nodes = tree.mask.nodes(level)[:6]
            u, n = pooled[:, level].unsqueeze(1), table[nodes].unsqueeze(0)
            expected = ((u + n).abs() - (u - n).abs()).sum(-1) - 2
            torch.testing.assert_close(scorer(prepared, level, nodes.unsqueeze(0)), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("share", [True, False])
def test_a_deep_scorer_that_learns_nothing_says_the_same(share):
    """For one user and for many."""
    torch.manual_seed(0)
    tree = bt.random_tree(50, arity=3, seed=1)
    scorer, x = DeepScorer(tree.num_nodes, scale=1.0, share=share), histories(50)
    for _ in range(2):
        for users in (x, x[:1]):
            prepared = scorer.prepare(tree, users)
            with torch.no_grad():
                still = scorer.prepare(tree, users)
            for level in range(1, tree.height + 1):
                nodes = torch.cat([tree.mask.nodes(level)[:5], torch.tensor([PAD])]).expand(len(users), -1)
                for some in (nodes, nodes[:1]):
                    with torch.no_grad():
                        found = scorer(still, level, some)
                    torch.testing.assert_close(found, scorer(prepared, level, some))
        scorer(prepared, 1, tree.mask.nodes(1).unsqueeze(0)).sum().backward()
        torch.optim.SGD(scorer.parameters(), lr=1e-2).step()  # and again with other weights


def test_a_deep_scorer_refuses_what_is_no_history():
    scorer = DeepScorer(7)
    for x in (torch.randn(2, 69), torch.zeros(69, dtype=torch.int64)):
        with pytest.raises(ValueError, match="this scorer takes histories"):
            scorer.check(x)


def test_a_deep_scorer_reads_the_newest_69_events():
    tree, scorer = bt.random_tree(30), DeepScorer(bt.random_tree(30).num_nodes)
    x, leaves = torch.randint(30, (2, 128)), torch.arange(30).unsqueeze(0)
    at_leaves = tree.leaf_of_item(leaves)
    expected = scorer(scorer.prepare(tree, x[:, :69]), tree.height, at_leaves)
    torch.testing.assert_close(scorer(scorer.prepare(tree, x), tree.height, at_leaves), expected)


def test_linear_scores_are_the_products_of_section_5_1():
    tree = bt.random_tree(20)
    scorer = LinearScorer(tree.num_nodes, 3)
    x = torch.randn(2, 3)
    theta, bias = scorer.table.weight[:, :3], scorer.table.weight[:, 3]
    expected = x @ theta.T + bias
    for level in range(1, tree.height + 1):
        span = tree.level(level)
        ours = scorer.whole_level(scorer.prepare(tree, x), tree, level)
        torch.testing.assert_close(ours, expected[:, span.start : span.stop])


def test_linear_gathers_where_a_level_is_large(monkeypatch):
    """Gathering rows and multiplying a whole level are two ways to the same logits and gradients."""
    tree = bt.random_tree(60)
    scorer = LinearScorer(tree.num_nodes, 3)
    x, nodes = torch.randn(4, 3), torch.tensor(tree.level(6))[:10].expand(4, -1)
    results = []
    for size in (4096, 0, 8):
        monkeypatch.setattr(linear, "WHOLE_LEVEL_SIZE", size)
        prepared = scorer.prepare(tree, x)
        logits = scorer(prepared, 6, nodes)
        (grad,) = torch.autograd.grad(logits.square().sum(), scorer.table.weight)
        results.append((logits, grad, scorer.whole_level(prepared, tree, 6)))
    for other in results[1:]:
        for ours, theirs in zip(results[0], other, strict=True):
            torch.testing.assert_close(ours, theirs)


def test_a_search_before_the_loss_does_not_cost_the_gradient():
    tree = bt.random_tree(20)
    model = bt.TreeModel(tree, LinearScorer(tree.num_nodes, 3))
    query = model.query(torch.randn(2, 3))
    list(bt.beam.walk(query, 4))
    assert query.logits(1, torch.tensor([[1, 2]])).requires_grad


def test_moving_a_model_moves_its_tree_and_no_other_models():
    tree = bt.random_tree(20)
    model, other = (bt.TreeModel(tree, LinearScorer(tree.num_nodes, 3)) for _ in range(2))
    model.to("meta")
    assert model.tree.device.type == "meta"
    assert other.tree.device.type == "cpu"
    bt.retrieve(other, torch.randn(2, 3), m=2)


def test_weights_are_not_the_data_of_the_same_seed():
    data = bt.gaussian(100, 10, -1.0, train=200, test=1, seed=3)
    drawn = set(torch.cat([data.weights.flatten(), data.train.x.flatten()]).tolist())
    weights = LinearScorer(199, 10, seed=3).table.weight.detach()
    assert len(drawn & set(weights.flatten().tolist())) < 5
    assert torch.equal(weights, LinearScorer(199, 10, seed=3).table.weight)
    assert not torch.equal(weights, LinearScorer(199, 10, seed=4).table.weight)
    assert float(LinearScorer(5000, 10, scale=0.1).table.weight.detach().std()) == pytest.approx(0.1, rel=0.02)


def test_a_scorer_of_an_earlier_version_is_told_the_new_name():
    with pytest.raises(TypeError, match=r"Old\.context is called `prepare`"):
        type("Old", (bt.Scorer,), {"context": lambda self, tree, x: x})
