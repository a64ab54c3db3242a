from dataclasses import replace
from functools import partial

import oracle
import pytest
import torch
from conftest import cases
from hypothesis import given

import beamtree as bt
from beamtree import PAD, methods, targets
from beamtree.scorers import FixedScorer
from beamtree.targets import any_relevant

# Every row with whether its labels are ẑ.
ROWS = {
    "plt": (bt.plt(), False),
    "tdm": (bt.tdm(5), False),
    "tdm-positives": (methods.tdm_positives(5), False),
    "otm": (bt.otm(3), True),
    "otm-no-beam": (methods.otm_no_beam(5), True),
    "otm-no-optest": (methods.otm_no_optest(3), False),
    "otm-mixed": (bt.otm_mixed(3, 5), True),
    "otm-mixed-all": (methods.otm_mixed_all(3, 5), True),
    "otm-stochastic": (methods.otm_stochastic(3), True),
}
# Rows with losses of their own, which tests/test_losses.py has, and one of single targets, which is below.
OTHERS = {
    "hsm": bt.hsm(),
    "otm-margin": methods.otm_margin(3),
    "otm-level-weights": methods.otm_level_weights(3),
    "dtr": methods.dtr(5),
}
ALL = {**{name: method for name, (method, _) in ROWS.items()}, **OTHERS}


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("whole_level", [4, 0])
@given(case=cases(max_items=20))
def test_loss_is_equation_2_over_the_rows_own_nodes_and_labels(name, whole_level, case):
    method, optimal = ROWS[name]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(targets, "WHOLE_LEVEL_FACTOR", whole_level)
        model = case.model(method.chained)
        x = FixedScorer.every(len(case.y))
        loss = method.loss(model, x, case.y, torch.Generator().manual_seed(1))
        drawn = list(
            method.candidates(model.query(x), any_relevant(case.tree, case.y), torch.Generator().manual_seed(1))
        )
    expected = 0.0
    for _, nodes in drawn:
        for row, relevant in enumerate(case.relevant):
            score = case.logits[row].tolist().__getitem__
            for n in nodes.expand(len(case.y), -1)[row].tolist():
                if n == PAD:
                    continue
                if optimal:
                    label = oracle.z_hat(case.slots, case.b, case.height, n, relevant, score)
                else:
                    label = oracle.z(case.slots, case.b, case.height, n, relevant)
                expected += oracle.bce(label, score(n))
    assert float(loss) == pytest.approx(expected, rel=1e-9)


def test_every_row_of_the_table_is_under_test():
    assert set(ALL) == set(methods.METHODS)


def test_a_row_is_found_by_its_name_and_takes_the_numbers_it_needs():
    for name, method in ALL.items():
        assert methods.sized(name, beam_size=3, nodes=5).describe() == method.describe()
        assert method.name == name
    with pytest.raises(ValueError, match="method 'svm' is unknown: choose from plt, hsm, tdm, "):
        methods.sized("svm", 3, 5)


def test_methods_are_the_same_if_all_their_parts_are():
    for name, method in ALL.items():
        again = methods.sized(name, beam_size=3, nodes=5)
        assert again == method  # a step on a GPU is recorded once for each method
        assert hash(again) == hash(method)
    assert bt.otm(3) != bt.otm(4)
    assert bt.otm_mixed(3, 5) != bt.otm_mixed(3, 6)
    assert bt.otm(3) != replace(bt.otm(3), labels=methods.every_positive)  # of one name
    assert methods.otm_margin(3) != methods.otm_margin(4)
    assert methods.otm_margin(3) != replace(methods.otm_level_weights(3), name="otm-margin")


def test_a_method_describes_itself_by_its_functions_and_their_numbers():
    assert bt.otm_mixed(3, 5).describe() == {
        "method": "otm-mixed",
        "candidates": "beam_and_leaves(beam_size=3, extra=5)",
        "labels": "best_child",
        "chained": False,
        "single_target": False,
        "walks": True,
    }
    assert methods.otm_margin(3).describe()["objective"] == "bce_and_margin(beam_size=3)"
    described = [str(method.describe()) for method in ALL.values()]
    described += [str(method.describe()) for method in (bt.otm(4), bt.otm_mixed(3, 6), bt.otm_mixed(4, 5))]
    assert len(set(described)) == len(described)


def test_the_methods_that_walk_are_those_that_train_on_a_beam():
    assert {name for name, method in ALL.items() if method.uses_beam} == {
        "otm", "otm-no-optest", "otm-mixed", "otm-mixed-all", "otm-stochastic", "otm-margin", "otm-level-weights"
    }  # fmt: skip


def test_only_plt_and_hsm_chain_their_probabilities():
    assert {name for name, method in ALL.items() if method.chained} == {"plt", "hsm"}


@given(cases(max_items=20))
def test_hsm_is_plt_on_one_target_at_a_time(case):
    model = case.model(chained=True)
    x = FixedScorer.every(len(case.y))
    generator = torch.Generator()
    whole = bt.hsm().loss(model, x, case.y, generator)
    parts = [
        bt.plt().loss(model, x[row : row + 1], torch.tensor([[item]]), generator)
        for row, relevant in enumerate(case.relevant)
        for item in relevant
    ]
    assert float(whole) == pytest.approx(float(sum(parts)), rel=1e-9)


def test_mixed_adds_random_nodes_where_asked():
    tree = bt.random_tree(200)
    model = bt.TreeModel(tree, bt.LinearScorer(tree.num_nodes, 3))
    query = model.query(torch.randn(2, 3))

    def widths(method):
        drawn = method.candidates(query, [], torch.Generator().manual_seed(0))
        return [int((nodes != PAD).sum(1).max()) for _, nodes in drawn]

    beam, leaf, every = (widths(m) for m in (bt.otm(4), bt.otm_mixed(4, 20), methods.otm_mixed_all(4, 20)))
    assert leaf[:-1] == beam[:-1]
    assert leaf[-1] > beam[-1]
    assert all(more > less for more, less in zip(every[3:], beam[3:], strict=True))


def test_gradient_flows_only_to_trained_nodes(generator):
    tree = bt.random_tree(40)
    model = bt.TreeModel(tree, bt.LinearScorer(tree.num_nodes, 3))
    x, y = torch.randn(2, 3), torch.tensor([[3, 7], [9, PAD]])
    trained = {
        int(n)
        for _, nodes in methods.otm(3).candidates(model.query(x), any_relevant(tree, y), generator)
        for n in nodes.flatten()
        if n != PAD
    }
    methods.otm(3).loss(model, x, y, generator).backward()
    moved = set(model.scorer.table.weight.grad.abs().sum(1).nonzero().flatten().tolist())
    assert moved == trained


def test_samplers_that_one_function_made_are_told_apart():
    """What a function was made with is part of what a method is."""

    def every(step):
        def sampler(query, positives, generator):
            yield from ((level, query.tree.mask.nodes(level)[::step].unsqueeze(0)) for level in query.levels)

        return sampler

    first, second = (bt.Method("own", every(step), bt.plt().labels).describe() for step in (1, 2))
    assert first["candidates"] != second["candidates"]
    given = bt.Method("own", partial(every, 3), bt.plt().labels).describe()
    assert given["candidates"].endswith("every(3)")
