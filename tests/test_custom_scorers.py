"""A scorer, a method and a tree builder from outside the package: trained, saved, loaded and compared."""

import importlib.util
import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

import beamtree as bt
from beamtree.evaluate import leaving_out
from beamtree.research.compare import Experiment, Retriever, Row, compare, markdown, records, tree_row
from beamtree.research.compare.runner import total_steps
from beamtree.train.recipes import RECIPES

EXAMPLES = Path(__file__).parent.parent / "examples"


def load_example(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SCORER, TREE, METHOD = (load_example(f"custom_{name}") for name in ("scorer", "tree", "method"))
OWN = bt.Method(
    "beam-and-children",
    partial(METHOD.beam_and_children, beam_size=10),
    bt.otm(10).labels,
    chained=False,
    uses_beam=True,
)


@pytest.fixture(scope="module")
def shop(market_data):
    how = {"scorer": SCORER.mean_scorer, "tree": TREE.tree_by_id, "method": OWN}
    return bt.Recommender(**how, beam_size=10, batch_size=40, steps=60, lr=0.02, seed=1).fit(market_data)


def test_they_learn_together(shop):
    assert isinstance(shop.model.scorer, SCORER.MeanScorer)
    assert shop.progress.best > shop.progress.start
    order = [shop.data.items[int(item)] for item in shop.model.tree.items() if item != bt.PAD]
    assert order == sorted(order)


def test_they_are_saved_and_loaded_with_their_classes(shop, tmp_path):
    shop.save(tmp_path / "run")
    again = bt.Recommender.load(tmp_path / "run", scorers=[SCORER.MeanScorer])
    history = shop.data.items.names[:4]
    assert again.recommend(history, m=5).equals(shop.recommend(history, m=5))
    assert torch.equal(again.model.scorer.vectors, shop.model.scorer.vectors)
    with pytest.raises(ValueError, match=r"holds a MeanScorer, .* pass its class, scorers=\[MeanScorer\]"):
        bt.Recommender.load(tmp_path / "run")


def test_unknown_item_numbers_are_rejected_before_they_reach_the_scorer(shop):
    with pytest.raises(ValueError, match="9999"):
        bt.retrieve(shop.model, torch.tensor([[9999]]), beam_size=10, m=5)


def test_no_rows_of_nodes_no_carrying_over(shop):
    with pytest.raises(ValueError, match="MeanScorer has no rows of nodes"):
        shop.model.on_tree(bt.random_tree(shop.data.num_items))


def make_experiment(data, folder, **more):
    settings = {"beam_size": 10, "batch_size": 40, "steps": 2, "m": (5, 10), "test_beam": 50, **more}
    return Experiment(data, bt.random_tree(data.num_items), folder, **settings)


def test_they_are_rows_of_a_comparison(market_data, tmp_path):
    own = {
        "mine": Row(
            tree_row,
            "tree",
            OWN,
            scorer=SCORER.mean_scorer,
            tree=TREE.tree_by_id,
            scorers=(SCORER.MeanScorer,),
        )
    }
    experiment = make_experiment(market_data, tmp_path, steps=20)
    found = compare(experiment, ["popularity", "otm", "mine"], own)
    assert [result.row for result in found] == ["popularity", "otm", "mine"]
    assert "| mine |" in markdown(found).replace(" † ", " ")
    again = compare(experiment, ["mine"], own)  # read, not trained again
    assert torch.equal(again[0].values, found[2].values)
    assert bt.load_model(tmp_path / "mine", scorers=[SCORER.MeanScorer]).ids[0] == market_data.items[0]


def test_a_method_is_what_it_does_and_not_what_it_is_called(market_data, tmp_path):
    """Two methods of one name are two methods: a run of one does not go on with the other."""
    from beamtree.train import Checkpoints

    tree = bt.random_tree(market_data.num_items)
    impostor = bt.Method("otm", partial(METHOD.beam_and_children, beam_size=10), bt.otm(10).labels, uses_beam=True)
    assert impostor != bt.otm(10)
    run = partial(bt.fit, data=market_data.train, steps=2, batch_size=20)
    model = bt.TreeModel(tree, bt.DeepScorer(tree.num_nodes))
    run(model, method=bt.otm(10), checkpoints=Checkpoints(tmp_path / "run"))
    with pytest.raises(ValueError, match="candidates=beam_candidates"):
        run(model, method=impostor, checkpoints=Checkpoints(tmp_path / "run", resume=True))


def first_items(name, row, experiment, on_message):
    """A row that finds the same items for everybody."""
    items = torch.arange(experiment.data.num_items)
    found = leaving_out(lambda x, m: (items[:m].expand(len(x), -1), -items[:m].expand(len(x), -1)), max(experiment.m))
    return Retriever(found, num_bytes=0)


def last_items(name, row, experiment, on_message):
    """The opposite."""
    items = torch.arange(experiment.data.num_items).flip(0)
    found = leaving_out(lambda x, m: (items[:m].expand(len(x), -1), items[:m].expand(len(x), -1)), max(experiment.m))
    return Retriever(found, num_bytes=0)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (Row(tree_row, "tree", bt.otm(10)), "method=plt, not otm"),
        (Row(tree_row, "tree", replace(bt.plt(), labels=bt.otm(10).labels)), "labels=every_positive, not best_child"),
        (Row(tree_row, "tree", bt.plt(), scorer=SCORER.mean_scorer), "scorer=None, not mean_scorer"),
        (Row(tree_row, "tree", bt.plt(), tree=TREE.tree_by_id), "tree="),
        (Row(tree_row, "tree", bt.plt(), joint=True), "joint=False, not True"),
    ],
)
def test_a_finished_row_is_not_another_of_the_same_name(market_data, tmp_path, other, said):
    experiment, first = make_experiment(market_data, tmp_path), Row(tree_row, "tree", bt.plt())
    before = compare(experiment, ["mine"], {"mine": first})
    with pytest.raises(ValueError, match=rf"mine\.json was made with {said}"):
        compare(experiment, ["mine"], {"mine": other})
    assert torch.equal(compare(experiment, ["mine"], {"mine": first})[0].values, before[0].values)


def test_a_finished_row_without_a_tree_is_not_another_of_the_same_name(market_data, tmp_path):
    experiment = make_experiment(market_data, tmp_path)
    compare(experiment, ["mine"], {"mine": Row(first_items)})
    with pytest.raises(ValueError, match=r"mine\.json was made with make=first_items, not last_items"):
        compare(experiment, ["mine"], {"mine": Row(last_items)})


def test_a_comparison_takes_metrics_and_a_recipe_of_your_own(market_data, tmp_path):
    def missed(hit, relevant, m):
        """The share of relevant items that are not among the first m."""
        return 1 - hit[:, :m].sum(1) / relevant

    recipe = replace(RECIPES["beamtree"], lr=0.01)
    experiment = make_experiment(market_data, tmp_path, metrics=("recall", missed), recipe=recipe)
    found = compare(experiment, ["otm"])[0]
    assert found.metrics == ("recall", "missed")
    assert found.evaluation["missed", 10] == pytest.approx(1 - found.evaluation["recall", 10])
    assert {"recall", "missed"} < {cell["metric"] for cell in json.loads(json.dumps(records([found])))}
    assert torch.equal(compare(experiment, ["otm"])[0].values, found.values)
    assert json.loads((tmp_path / "otm" / "run.json").read_text())["recipe"] == "own"
    with pytest.raises(ValueError, match=r"recipe_parts=.*'lr': 0.01"):
        compare(replace(experiment, recipe=replace(recipe, lr=0.02)), ["otm"])


def test_a_row_of_yours_called_tdm_is_trained_as_you_say(market_data, tmp_path):
    compare(make_experiment(market_data, tmp_path / "table"), ["tdm"])
    assert not bt.load_model(tmp_path / "table" / "tdm").scorer.lift  # the history at its leaves, as published
    compare(make_experiment(market_data, tmp_path / "mine"), ["tdm"], {"tdm": Row(tree_row, "tree", bt.tdm(20))})
    assert bt.load_model(tmp_path / "mine" / "tdm").scorer.lift


def broken(name, row, experiment, on_message):
    raise ValueError("it does not work here")


def test_a_row_that_fails_does_not_cost_the_table(market_data, tmp_path):
    said = []
    experiment = make_experiment(market_data, tmp_path, on_message=said.append)
    own = {"broken": Row(broken), "jtm": Row(broken, "tree", "tdm"), "mine": Row(first_items)}
    found = compare(experiment, ["broken", "mine", "popularity"], own)
    assert [result.row for result in found] == ["mine", "popularity"]
    assert "broken: skipped: it does not work here" in said
    with pytest.raises(ValueError, match="it does not work here"):
        compare(experiment, ["broken"], own)
    found = compare(experiment, ["popularity", "otm", "jtm"], own)
    assert [result.row for result in found] == ["popularity"]
    assert "otm: skipped: it shares the tree of jtm, which was skipped" in said


def test_a_metric_that_fails_fails_before_any_training(market_data, tmp_path):
    def wrong(hit, relevant, m):
        raise ValueError("no such thing")

    with pytest.raises(ValueError, match="no such thing"):
        compare(make_experiment(market_data, tmp_path, metrics=(wrong,)), ["otm"])
    assert not (tmp_path / "otm").exists()


def test_the_steps_of_rows_of_your_own_are_counted(market_data, tmp_path):
    own = {"mine": Row(tree_row, "tree", OWN), "first": Row(first_items), "learned": Row(tree_row, "tree", joint=True)}
    experiment = make_experiment(market_data, tmp_path, steps=100)
    assert total_steps(experiment, ["mine", "first", "otm"], own) == 200
    assert total_steps(experiment, ["learned"], own) == 175
