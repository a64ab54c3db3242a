"""Means over users or runs, their intervals and pictures, and what was seen."""

import math

import pytest
import torch

import beamtree as bt
from beamtree import PAD
from beamtree.data import BeforeAfter, Events
from beamtree.diagnose.inspect import INTERVAL
from beamtree.evaluate import Evaluation, Score, leaving_out, measure
from beamtree.evaluate.metrics import METRICS, bootstrap, hits, num_relevant, paired_p
from beamtree.research import plots
from beamtree.research.compare import Result
from beamtree.research.paper.cells import STUDENT, Cell, cell, half_interval
from beamtree.research.paper.timing import batch_times
from beamtree.train.optimizer import adam


def make_market(users=40, items=30, seed=0):
    generator = torch.Generator().manual_seed(seed)
    counts = torch.randint(4, 15, (users,), generator=generator)
    offsets = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
    chosen = torch.randint(0, items, (int(offsets[-1]),), generator=generator).int()
    return BeforeAfter(Events(offsets, chosen, "market"))


def make_model(items=30):
    tree = bt.random_tree(items, seed=1)
    return bt.TreeModel(tree, bt.DeepScorer(tree.num_nodes, scale=1.0))


def test_ndcg_and_hit_rate_are_numbers_to_do_in_your_head():
    items, y = torch.tensor([[7, 1, 2], [7, 8, 9]]), torch.tensor([[1, 5], [1, 5]])
    values = {name: metric(hits(items, y), num_relevant(y), 3).tolist() for name, metric in METRICS.items()}
    assert values["ndcg"][0] == pytest.approx((1 / math.log2(3)) / (1 + 1 / math.log2(3)))
    assert values["hit_rate"][0] == 1
    assert values["mrr"][0] == 1 / 2
    assert {value[1] for value in values.values()} == {0}
    for metric in METRICS.values():
        perfect = metric(hits(torch.tensor([[5, 1]]), y[:1]), num_relevant(y[:1]), 2)
        assert perfect.tolist() == pytest.approx([1])


def test_bootstrap_intervals_are_as_wide_as_the_mean_is_uncertain():
    values = torch.randn(400, 2, generator=torch.Generator().manual_seed(1)) * torch.tensor([1.0, 3.0])
    low, high = bootstrap(values, rounds=2000)
    error = values.double().std(0) / 20
    assert torch.allclose(high - low, 2 * 1.96 * error, rtol=0.1)
    assert ((low < values.mean(0)) & (values.mean(0) < high)).all()
    again = bootstrap(values, rounds=2000)
    assert torch.equal(low, again[0])


def test_evaluate_is_the_mean_over_users_of_what_retrieve_finds():
    users, model = make_market(), make_model()
    found = bt.evaluate(model, users, beam_size=10, m=(5, 10), metrics=("recall", "ndcg"), batch_size=7)
    x, y = users.batch(torch.arange(len(users)))
    items, _ = bt.retrieve(model, x, beam_size=10, m=10)
    by_hand = [
        len(set(row[:5].tolist()) & set(ys.tolist()) - {PAD}) / len(set(ys.tolist()) - {PAD})
        for row, ys in zip(items, y, strict=True)
    ]
    assert found["recall", 5] == pytest.approx(sum(by_hand) / len(by_hand))
    assert found.users == 40
    assert all(score.low <= score.value <= score.high for score in found.scores)
    assert "@10" in str(found)
    assert "recall" in str(found)
    assert "40 users; in brackets the 95 % interval" in str(found)
    assert repr(found) == str(found)


def test_what_was_seen_is_neither_retrieved_nor_expected():
    users, model = make_market(), make_model()
    rows = torch.arange(len(users))
    asked = []

    def find(x, exclude):
        items, _ = bt.retrieve(model, x, beam_size=30, m=30, exclude=exclude)
        asked.append(items)
        for row, left_out in zip(items, exclude, strict=True):
            assert not set(row.tolist()) & set(left_out.tolist()) - {PAD}
        return items

    found = measure(find, users, m=(30,), exclude_seen=True, batch_size=len(users))
    new = [
        set(ys.tolist()) - set(seen.tolist()) - {PAD}
        for ys, seen in zip(users.batch(rows)[1], users.seen(rows), strict=True)
    ]
    assert found.users == sum(1 for targets in new if targets)
    assert found["recall", 30] == pytest.approx(1.0)  # all that is not seen is retrieved


def test_brute_force_is_a_beam_that_loses_nothing():
    users, model = make_market(), make_model()
    x, _ = users.batch(torch.arange(12))
    for chained in (False, True):
        model.chained = chained
        items, scores = bt.brute_force(model, x, m=8, leaves_at_once=7)
        wide, wide_scores = bt.retrieve(model, x, beam_size=30, m=8)
        torch.testing.assert_close(scores, wide_scores)
        assert torch.equal(items, wide)


def test_an_unknown_metric_is_named():
    with pytest.raises(ValueError, match=r"metric 'map' is unknown: choose from precision, .*mrr"):
        bt.evaluate(make_model(), make_market(), beam_size=10, m=(5,), metrics=("map",))
    for nothing in ({"m": ()}, {"metrics": ()}):
        with pytest.raises(ValueError, match="nothing to measure: give an m and a metric of precision"):
            measure(lambda x, exclude: x, make_market(), **nothing)


def test_a_function_of_your_own_is_a_metric():
    users, model = make_market(), make_model()

    def wanted_and_missed(hit, relevant, m):
        """How many relevant items are not among the first m."""
        return relevant - hit[:, :m].sum(1)

    found = bt.evaluate(model, users, beam_size=10, m=(5, 10), metrics=("recall", wanted_and_missed))
    assert list(found) == [(name, m) for name in ("recall", "wanted_and_missed") for m in (5, 10)]
    x, y = users.batch(torch.arange(len(users)))
    items, _ = bt.retrieve(model, x, beam_size=10, m=10)
    for m in (5, 10):
        missed = [len(set(ys.tolist()) - {PAD} - set(row[:m].tolist())) for row, ys in zip(items, y, strict=True)]
        assert found["wanted_and_missed", m] == pytest.approx(sum(missed) / len(missed))
    assert "wanted_and_missed" in str(found)


def test_a_frame_holds_one_row_for_each_score():
    found = bt.evaluate(make_model(), make_market(), beam_size=10, m=(5, 10), metrics=("recall", "mrr"))
    rows = found.to_frame().to_dicts()
    assert rows == [score.record() for score in found.scores]
    assert [(row["metric"], row["m"]) for row in rows] == list(found)


def test_a_plain_row_leaves_out_what_it_is_told_to_and_finds_as_many():
    """Ten items, best first by number; 0, 1 and 2 are left out for one user, nothing for the other."""

    def retrieve(x, m):
        items = torch.nn.functional.pad(torch.arange(min(m, 10)), (0, max(0, m - 10)), value=PAD)
        return items.expand(len(x), -1), -items.float().where(items != PAD, torch.inf).expand(len(x), -1)

    x, exclude = torch.zeros(2, 1), torch.tensor([[2, 0, 1], [PAD, PAD, PAD]])
    assert leaving_out(retrieve, 4)(x, exclude).tolist() == [[3, 4, 5, 6], [0, 1, 2, 3]]
    assert leaving_out(retrieve, 9)(x, exclude).tolist() == [[3, 4, 5, 6, 7, 8, 9, PAD, PAD], [*range(9)]]
    assert leaving_out(retrieve, 4)(x, exclude[:, :0]).tolist() == [[0, 1, 2, 3]] * 2


def test_numbers_beside_each_other_do_not_run_together():
    scores = [Score(metric, m, 1.0, 1.0, 1.0) for metric in ("recall", "precision") for m in (10, 200)]
    heads, *lines = (line.split("  ") for line in str(Evaluation(scores, torch.zeros(3, 2, 2))).splitlines())
    assert [head.strip() for head in heads if head] == ["%", "@10", "@200"]
    for line in lines[:-1]:  # the last says what the brackets are
        assert [cell.strip() for cell in line if cell][-2:] == ["100.00 [100.00, 100.00]"] * 2


def test_p_of_a_paired_difference_is_that_of_the_normal_distribution():
    ours = torch.tensor([[1.0], [2.0], [3.0], [6.0]])
    theirs = torch.tensor([[0.0], [2.0], [1.0], [3.0]])  # differences 1, 0, 2, 3: mean 1.5, std 1.29
    expected = math.erfc(1.5 / (math.sqrt(5 / 3) / 2) / math.sqrt(2))
    assert float(paired_p(ours, theirs)) == pytest.approx(expected, rel=1e-6)
    assert float(paired_p(ours, ours)) == 1.0


def test_logs_too_short_for_windows_are_told():
    short = BeforeAfter(Events(torch.tensor([0, 3]), torch.tensor([1, 2, 3]), "short"))
    tree = bt.random_tree(4)
    with pytest.raises(ValueError, match="needs a user with eight events"):
        bt.fit(bt.TreeModel(tree, bt.DeepScorer(tree.num_nodes)), short.sliding_windows(), bt.hsm(), steps=1)


def test_one_metric_and_one_m_need_no_list():
    users, model = make_market(), make_model()
    listed = bt.evaluate(model, users, beam_size=10, m=(10,), metrics=("recall",))
    assert dict(bt.evaluate(model, users, beam_size=10, m=10, metrics="recall")) == dict(listed)
    assert dict(bt.evaluate(model, users, beam_size=10, m=10, metrics=METRICS["recall"])) == dict(listed)
    for nothing in ({"m": ()}, {"metrics": ()}):
        with pytest.raises(ValueError, match="nothing to measure: give an m and a metric of precision"):
            bt.evaluate(model, users, beam_size=10, **nothing)


def test_two_metrics_of_one_name_are_told_in_any_order():
    def recall(hit, relevant, m):
        return hit[:, 0]

    for metrics in (("recall", recall), (recall, "recall")):
        with pytest.raises(ValueError, match="two metrics are called 'recall'"):
            measure(lambda x, exclude: x, make_market(), metrics=metrics)


def test_nobody_to_measure_is_told():
    nobody = BeforeAfter(Events(torch.tensor([0]), torch.empty(0, dtype=torch.int32), "nobody"))
    with pytest.raises(ValueError, match="there are no users to measure"):
        bt.evaluate(make_model(), nobody, beam_size=10, m=5)


def test_it_says_whether_seen_items_and_users_were_left_out():
    """Of three users the first chose nothing that she had not seen."""
    events = torch.tensor([1, 2, 1, 2, 1, 2, 3, 4, 5, 6, 5, 7]).int()
    users = BeforeAfter(Events(torch.tensor([0, 4, 8, 12]), events, "three"))
    found = bt.evaluate(make_model(), users, beam_size=10, m=5, exclude_seen=True)
    assert (found.users, found.users_asked, found.exclude_seen) == (2, 3, True)
    assert str(found).endswith("seen items left out; so were 1 of 3 users, who chose nothing new")
    later = BeforeAfter(Events(torch.tensor([0, 4, 8]), events[4:], "two"))
    assert str(bt.evaluate(make_model(), later, beam_size=10, m=5, exclude_seen=True)).endswith("\nseen items left out")
    assert "left out" not in str(bt.evaluate(make_model(), users, beam_size=10, m=5))


def test_what_is_left_of_few_items_is_filled_up():
    """A search that has no more items, and whose scores are whole numbers."""
    items = torch.arange(6)
    find = leaving_out(lambda x, m: (items[:m].expand(len(x), -1), -items[:m].expand(len(x), -1)), 4)
    exclude = torch.tensor([[0, 2, 3, 5], [4, PAD, PAD, PAD]])
    assert find(torch.zeros(2, 1), exclude).tolist() == [[1, 4, PAD, PAD], [0, 1, 2, 3]]


def test_few_runs_have_wide_intervals():
    """Of 1, 2, 3, 4, 5 the mean is 3 and its error √0.5; 95 % of Student's t with 4 degrees are within 2.776."""
    found = cell("table", {}, [1.0, 2.0, 3.0, 4.0, 5.0], None, None)
    assert found.half == pytest.approx(2.776 * math.sqrt(0.5))
    assert half_interval(1.0, 31) == pytest.approx(2.042 / math.sqrt(31))
    assert half_interval(1.0, 32) == pytest.approx(INTERVAL / math.sqrt(32))
    assert half_interval(0.5, 1) == INTERVAL * 0.5  # one run over many users
    stats = pytest.importorskip("scipy.stats")
    assert list(STUDENT) == pytest.approx([stats.t.ppf(0.975, n) for n in range(1, 31)], abs=6e-4)


def test_pictures_mark_the_best_and_say_what_is_drawn(tmp_path, monkeypatch):
    def result(row, values, kept=False):
        return Result(row, values.view(-1, 1, 1), (10,), ("recall",), 1.0, 2.0, 3, (), "cpu", kept)

    figures = []
    monkeypatch.setattr(plots, "save_figure", lambda figure, path: figures.append(figure))
    high = torch.rand(50, generator=torch.Generator().manual_seed(0)) / 10 + 0.9
    plots.plot_comparison([result("otm", high, True), result("als", high / 2)], tmp_path / "table.png")
    cells = [Cell("table2", {"row": r, "m": 1}, v, 0.1, 5, None, None) for r, v in (("plt", 3.0), ("otm", 2.0))]
    plots.plot_bars(cells, tmp_path / "table2.png")
    (bars,), (panel,) = figures[0].axes, figures[1].axes
    assert bars.get_xlim() == (0, 100)
    assert [label.get_text() for label in bars.get_yticklabels()] == ["otm †", "als"]
    caption = figures[0].get_supxlabel().replace("\n", " ")
    assert "50 users, seen items left in; bars: the mean over users, lines: its 95 % interval" in caption
    assert "green: the best row" in caption
    assert "† training found nothing better" in caption
    assert [(text.get_text(), text.xy[0]) for text in panel.texts] == [("best", 1)]


def test_timing_measures_every_method():
    cells = batch_times(5, 4, 4, 2, adam, "cpu")
    assert [cell.key["row"] for cell in cells] == ["plt", "tdm", "otm"]
    assert all(cell.value > 0 for cell in cells)
