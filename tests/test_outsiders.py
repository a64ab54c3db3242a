"""A scorer, a method and a tree builder from outside the package: trained, saved, loaded and compared."""

import importlib.util
from functools import partial
from pathlib import Path

import pytest
import torch

import beamtree as bt
from beamtree.compare import Plan, Row, compare, tree_row
from beamtree.compare.results import markdown
from beamtree.ingest.simulate import simulate

EXAMPLES = Path(__file__).parent.parent / "examples"


def load_example(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SCORER, TREE, METHOD = (load_example(f"your_own_{name}") for name in ("scorer", "tree", "method"))
OWN = bt.Method(
    "beam-and-children", partial(METHOD.beam_and_children, beam_size=10), bt.otm(10).labels, chained=False, walks=True
)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("outsiders")
    simulate(folder / "market.parquet", users=400, items=120, events=10_000)
    bt.prepare(folder / "market.parquet", folder / "prepared")
    return bt.load_data(folder / "prepared")


@pytest.fixture(scope="module")
def shop(data):
    how = {"scorer": SCORER.mean_scorer, "tree": TREE.tree_by_id, "method": OWN}
    return bt.Recommender(**how, beam_size=10, batch_size=40, steps=60, lr=0.02, seed=1).fit(data)


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


def test_no_rows_of_nodes_no_carrying_over(shop):
    with pytest.raises(ValueError, match="MeanScorer has no rows of nodes"):
        shop.model.on_tree(bt.random_tree(shop.data.num_items))


def test_they_are_rows_of_a_comparison(data, tmp_path):
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
    plan = Plan(
        data, bt.random_tree(data.num_items), tmp_path, beam_size=10, batch_size=40, steps=20, m=(5, 10), test_beam=50
    )
    found = compare(plan, ["popularity", "otm", "mine"], own)
    assert [result.row for result in found] == ["popularity", "otm", "mine"]
    assert "| mine |" in markdown(found).replace(" † ", " ")
    again = compare(plan, ["mine"], own)  # read, not trained again
    assert torch.equal(again[0].values, found[2].values)
    assert bt.load_model(tmp_path / "mine", scorers=[SCORER.MeanScorer]).ids[0] == data.items[0]


def test_a_method_is_what_it_does_and_not_what_it_is_called(data, tmp_path):
    """Two methods of one name are two methods: a run of one does not go on with the other."""
    from beamtree.train import Checkpoints

    tree = bt.random_tree(data.num_items)
    impostor = bt.Method("otm", partial(METHOD.beam_and_children, beam_size=10), bt.otm(10).labels, walks=True)
    assert impostor != bt.otm(10)
    run = partial(bt.fit, data=data.train, steps=2, batch_size=20)
    model = bt.TreeModel(tree, bt.DeepScorer(tree.num_nodes))
    run(model, method=bt.otm(10), checkpoints=Checkpoints(tmp_path / "run"))
    with pytest.raises(ValueError, match="candidates=beam_candidates"):
        run(model, method=impostor, checkpoints=Checkpoints(tmp_path / "run", resume=True))
