"""A part of the score written outside the package takes part in everything: examples/custom_part.py."""

import copy
import importlib.util
from pathlib import Path

import polars as pl
import pytest
import torch
from serving import make_service, serving

import beamtree as bt
from beamtree.diagnose.explain import parts_of, without_part
from beamtree.live.live_model import LiveModel
from beamtree.live.renewal import renew
from beamtree.parts import Part
from beamtree.scorers import MemoryScorer, SubtreeMaxScorer

EXAMPLE = Path(__file__).parent.parent / "examples" / "custom_part.py"
SPEC = importlib.util.spec_from_file_location("custom_part", EXAMPLE)
OWN = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(OWN)


class NewsScorer(SubtreeMaxScorer):
    """How often each item was chosen since the log ended."""

    newest_event = 0

    def __init__(self, num_items, seed=0):
        super().__init__()
        self.register_buffer("counts", torch.zeros(num_items))

    def entries(self, x):
        best = self.counts.topk(10)
        return best.indices.expand(len(x), -1), best.values.expand(len(x), -1)

    def with_items(self, old, new, items):
        scorer = NewsScorer(new.num_items)
        scorer.counts[: len(self.counts)] = self.counts
        return scorer

    def with_events(self, tree, events, *, in_place=False):
        scorer = self if in_place else copy.deepcopy(self)
        scorer.retired = events.since
        scorer.counts.index_add_(0, events.items, torch.ones(len(events.items)))
        return scorer

    def settings(self):
        return {"num_items": len(self.counts)}


class NewsPart(Part):
    """It is always accepted."""

    name = "news"

    def fit(self, fitting):
        return NewsScorer(fitting.tree.num_items)

    def add(self, parts, fitting):
        return parts.with_part(self.name, self.fit(fitting), 1.0)


def fashion(seasons=(0, 1), users=300):
    """In each season every user chooses each of the thirty items that are in fashion then with probability 1/3."""
    rows = []
    for season in seasons:
        generator = torch.Generator().manual_seed(season)
        for user in range(users):
            order = torch.randperm(30, generator=generator)
            chosen = order[torch.rand(30, generator=generator) < 1 / 3] + 30 * season
            rows += [(f"u{user}", f"i{item}", 100_000 * season + 1000 * at + user) for at, item in enumerate(chosen)]
    return pl.DataFrame(rows, schema=["user", "item", "time"], orient="row")


@pytest.fixture(scope="module")
def shops():
    return {
        name: bt.Recommender(steps=0, parts=parts).fit(fashion(), val_users=60, verbose=False)
        for name, parts in (("without", ()), ("with", (OWN.RecentPart(),)))
    }


def test_it_is_fitted_accepted_and_reported(capsys):
    shop = bt.Recommender(steps=0, parts=(OWN.RecentPart(),)).fit(fashion(), val_users=60)
    assert "The recent part raises recall on 60 validation users by" in capsys.readouterr().err
    assert shop.model.scorer.weight_of("recent") > 0
    assert shop.model.scorer.hyperparameters["recent"]["gain"] > 0
    assert shop.progress.summary(1000)


def test_it_is_left_out_where_it_says_nothing(capsys):
    class Nothing(OWN.RecentPart):
        def fit(self, fitting):
            return super().fit(fitting).scaled(0.0)

    shop = bt.Recommender(steps=0, parts=(Nothing(),)).fit(fashion(), val_users=60)
    assert "The recent part was left out: 60 validation users do not find more with it." in capsys.readouterr().err
    assert "recent" not in shop.model.scorer.names


def test_more_is_found_with_it(shops):
    found = {name: shop.evaluate(m=10, metrics="recall")["recall", 10] for name, shop in shops.items()}
    assert found["with"] > found["without"]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_search_finds_what_scoring_every_item_does(shops, device):
    model = shops["with"].model.to(device)
    x = torch.tensor([[3, 4], [50, -1]], device=device)
    _, scores = bt.retrieve(model, x, beam_size=model.tree.num_items, m=10)
    prepared = model.scorer.prepare(model.tree, x)
    leaves = model.tree.leaf_of_item(torch.arange(model.tree.num_items, device=device)).unsqueeze(0)
    with torch.no_grad():
        every = model.scorer.calibrated(model.tree.height, model.scorer(prepared, model.tree.height, leaves))
    torch.testing.assert_close(scores, every.topk(10).values.sigmoid().log(), rtol=1e-3, atol=1e-4)
    model.to("cpu")


def test_it_is_saved_loaded_explained_and_served(shops, tmp_path):
    shop = shops["with"]
    shop.save(tmp_path / "run")
    loaded = bt.Recommender.load(tmp_path / "run")  # its scorer is one of the package
    history = shop.ids.names[:3]
    assert loaded.recommend(history, m=5).equals(shop.recommend(history, m=5))
    best = shop.recommend(history, m=1)["item"][0]
    assert "recent" in shop.explain(history, best)["part"].to_list()
    assert "recent" in parts_of(shop.model)
    assert "recent" not in parts_of(without_part(shop.model, "recent"))
    with serving(make_service(tmp_path / "run", beam_size=400)) as client:
        (answer,) = client.post("/v1/recommend", json={"history": history, "m": 5}).json()["results"]
    assert answer["items"] == shop.recommend(history, m=5)["item"].to_list()


def test_it_is_fitted_again_with_all_events(shops, tmp_path):
    """After a refit, an update and a renewal it counts the newest events; without the part given it stays."""
    shop = shops["with"]
    data = shop.data
    everything = data.joined(data.sections)
    newest = everything.times[everything.span()].argsort(stable=True)[-1000:]
    counts = torch.bincount(everything.item_numbers()[newest].long(), minlength=data.num_items)
    expected = (counts / counts.max()).sqrt()
    assert torch.allclose(
        shop.model.scorer.part("recent").item_vectors(shop.model.tree).squeeze(1), expected, atol=1e-3
    )
    shop.save(tmp_path / "run")
    before = shop.model.scorer.part("recent").table.weight.clone()
    renew(tmp_path / "run", fashion([2]), force=True, verbose=False)
    stays = bt.Recommender.load(tmp_path / "run")
    known = range(data.num_items)
    assert torch.equal(
        stays.model.scorer.part("recent").item_vectors(stays.model.tree)[known].squeeze(1).half(),
        shop.model.scorer.part("recent").item_vectors(shop.model.tree).squeeze(1).half(),
    )
    renew(tmp_path / "run", fashion([3]), force=True, parts=(OWN.RecentPart(),), verbose=False)
    renewed = bt.Recommender.load(tmp_path / "run").model.scorer.part("recent")
    assert not torch.equal(renewed.table.weight[: len(before)], before[: len(renewed.table.weight)])


def test_new_items_and_events_change_it_at_once(tmp_path):
    shop = bt.Recommender(steps=0, parts=(NewsPart(),)).fit(fashion(users=100), val_users=20, verbose=False)
    live, x = LiveModel(shop.model), torch.tensor([[3, 4], [50, -1]])
    live.record_events([("u1", ["new"] * 5, None)], "kept until the item comes")
    live.update_items({"new": {"like": ["i3"]}, **{f"more {each}": {"like": ["i40"]} for each in range(80)}})
    assert live.model.tree.height > shop.model.tree.height
    first = live.model.scorer.part("news")
    live.record_events([("u2", ["new", "i7"], None)])
    changed = live.model.scorer.part("news")
    assert changed is first  # its own, and so changed in place
    assert {live.ids.name(item): int(changed.counts[item]) for item in changed.counts.nonzero().flatten().tolist()} == {
        "new": 6,
        "i7": 1,
    }
    assert bt.retrieve(live.model, x, beam_size=200, m=1)[0].flatten().tolist() == 2 * live.ids.find(["new"])
    assert not shop.model.scorer.part("news").counts.any()  # the model that was given goes on as it was
    live.retire_events(1_700_000_000 * 1_000_000)
    assert live.model.scorer.part("news").retired == 1_700_000_000
    bt.save_model(live.model, tmp_path / "model")
    loaded = bt.load_model(tmp_path / "model", scorers=[NewsScorer])
    assert torch.equal(loaded.scorer.part("news").counts, changed.counts)


def test_a_second_memory_takes_new_items(shops):
    model = copy.deepcopy(shops["without"].model)
    memory = next(part for part in model.scorer.scorers().values() if isinstance(part, MemoryScorer))
    live = LiveModel(model.with_scorer(model.scorer.with_part("own", copy.deepcopy(memory), 0.5)))
    live.update_items({"new": {"like": ["i3"]}})
    assert live.model.scorer.part("own").num_items == model.tree.num_items + 1


def test_two_parts_of_one_name_are_refused():
    with pytest.raises(ValueError, match="two parts of the name 'recent': give one of them another"):
        bt.Recommender(steps=0, parts=(OWN.RecentPart(), OWN.RecentPart())).fit(fashion(users=40), verbose=False)


class Unfitted(Part):
    name = "unfitted"


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (OWN.RecentPart(), "give a list of parts"),
        ((OWN.RecentPart,), "is no part: give objects of classes that derive from Part"),
        ((Unfitted(),), "Unfitted needs a method fit"),
        *(
            ((type("Own", (OWN.RecentPart,), {"name": name})(),), r"Own\.name=.*: give it another word for a name")
            for name in (None, "", "my.part", "two words", "items", "weights", "scales", "follows")
        ),
    ],
)
def test_what_cannot_be_a_part_is_refused_before_the_log_is_read(parts, message):
    for options in ({}, {"minutes": 5, "sequence": False}):  # which asks for the names of the parts
        with pytest.raises(ValueError, match=message):
            bt.Recommender(steps=0, parts=parts, **options)


def test_a_log_without_what_it_needs_is_refused():
    with pytest.raises(ValueError, match="`parts`: recent needs the times of events"):
        bt.Recommender(steps=0, parts=(OWN.RecentPart(),)).fit(fashion(users=40).drop("time"), verbose=False)


@pytest.mark.parametrize("how", [{"recipe": "deep"}, {"method": "plt"}])
def test_it_needs_a_sum(how):
    with pytest.raises(ValueError, match="`parts` needs closed-form parts: use the recipe beamtree"):
        bt.Recommender(**how, parts=(OWN.RecentPart(),)).fit(fashion(users=40), verbose=False)
