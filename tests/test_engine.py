"""The engine: batching, load control, load shedding, deadlines, and swaps between batches."""

import asyncio
import json
import shutil
import threading
import time
from concurrent.futures import Future

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from serving import ITEMS, Gate, SteadyLoad, loaded, make_engine, make_model, open_shop, save_run, submit

import beamtree as bt
from beamtree.query import Filter, MaskCache, RecommendRequest, Searcher, allowed_items
from beamtree.serve.engine.engine import BusyError, DeadlineError, Job, StoppedError
from beamtree.serve.engine.load_control import MAX_STEPS, LoadControl, narrow_beam
from beamtree.serve.engine.loop_future import LoopFuture, LoopResults
from beamtree.serve.engine.model_slot import ModelSlot, RunWatcher
from beamtree.serve.engine.served_run import LoadedRun, read_tuned_beam
from beamtree.storage.tuned import save_tuned_beam


@pytest.fixture(scope="module")
def shop():
    return loaded()


@pytest.fixture
def engine(shop):
    made = make_engine(shop)
    yield made
    made.stop()


def alone(shop, history, **options):
    """The result for one history without the engine."""
    searcher = Searcher(shop.live.model, shop.live.model.ids)
    return searcher.recommend(RecommendRequest([history], **options)).results[0]


def test_a_request_gets_what_the_library_finds(engine, shop):
    response = submit(engine, ["i3", "nobody", "i5"], ["i9"], m=7).result(60)
    for found, history in zip(response.results, (["i3", "nobody", "i5"], ["i9"]), strict=True):
        expected = alone(shop, history, beam_size=20, m=7)
        assert found.items == expected.items
        assert found.scores == pytest.approx(expected.scores, rel=1e-5)
    assert response.results[0].unknown == ["nobody"]
    assert (response.version, response.short, response.narrowed_from) == ("abc", 0, None)


def test_requests_that_wait_together_are_searched_together_and_each_gets_its_own(engine, shop):
    gate = Gate(engine)
    many = [(["i1", f"i{n}"], 1 + n % 9, n % 2 == 0) for n in range(12)]
    futures = [submit(engine, history, m=m, exclude_seen=seen) for history, m, seen in many]
    gate.open()
    for (history, m, seen), each in zip(many, futures, strict=True):
        response = each.result(60)
        expected = alone(shop, history, beam_size=20, m=m, exclude_seen=seen)
        assert response.results[0].items == expected.items
        assert response.batch_size == 6  # those that leave out seen items, and those that do not


def test_no_more_are_searched_together_than_is_quick(engine):
    gate = Gate(engine)
    engine._seconds_per_row = engine.load_control.degrade_after / 10  # a tenth of what is slow for each history
    futures = [submit(engine, ["i1"], seconds=1e6) for _ in range(30)]
    gate.open()
    assert futures[0].result(60).batch_size == 10
    assert all(each.result(60).batch_size <= 30 for each in futures)


def test_what_was_asked_together_may_differ_in_its_filter(engine):
    gate = Gate(engine)
    some = submit(engine, ["i1"], m=3, filter=Filter(allowed=("i7", "i8", "unknown")))
    books = submit(engine, ["i1"], m=30, filter=Filter(category="Books", exclude=("i1",)))
    none = submit(engine, ["i1"], m=3, filter=Filter(allowed=("unknown",)))
    gate.open()
    assert set(some.result(60).results[0].items) == {"i7", "i8"}
    assert set(books.result(60).results[0].items) == {f"i{n}" for n in range(3, ITEMS, 2)}
    assert none.result(60).results[0].items == []
    assert [each.result(60).num_allowed for each in (some, books, none)] == [2, 29, 0]
    assert [each.result(60).short for each in (some, books, none)] == [0, 0, 0]


def test_a_loop_gets_every_result_once_from_another_thread():
    async def wait_for_all():
        results = LoopResults(asyncio.get_running_loop())
        futures = [LoopFuture(results) for _ in range(2000)]
        for future in futures[::7]:
            future.waiter.cancel()

        def settle():
            for number, future in enumerate(futures):
                if number % 3 == 0:
                    future.set_exception(KeyError(number) if number % 2 else StopIteration())
                else:
                    future.set_result(number)
                if number % 100 == 0:
                    time.sleep(0.001)  # in which the loop takes what is there

        thread = threading.Thread(target=settle)
        thread.start()
        found = await asyncio.gather(*(future.waiter for future in futures), return_exceptions=True)
        thread.join()
        return futures, found

    futures, found = asyncio.run(wait_for_all())
    for number, (future, result) in enumerate(zip(futures, found, strict=True)):
        assert future.set_running_or_notify_cancel() is False
        if number % 7 == 0:
            assert isinstance(result, asyncio.CancelledError)
        elif number % 3 == 0:
            assert isinstance(result, KeyError if number % 2 else RuntimeError)
        else:
            assert result == number


def test_results_for_a_closed_loop_are_dropped():
    loop = asyncio.new_event_loop()
    results = LoopResults(loop)
    futures = [LoopFuture(results) for _ in range(2)]
    loop.close()
    for future in futures:
        future.set_result(1)
    assert not any(future.done() for future in futures)


def test_a_search_that_fails_spoils_no_other(engine):
    gate = Gate(engine)
    good, bad = submit(engine, ["i1"], m=3), submit(engine, [object()], m=3)
    wrong = submit(engine, ["i1"], m=30, beam_size=20)
    failing = Future()
    engine.submit(Job(failing, read=lambda searcher: 1 / 0))
    gate.open()
    assert len(good.result(60).results[0].items) == len(bad.result(60).results[0].items) == 3
    assert isinstance(wrong.exception(60), ValueError)
    assert isinstance(failing.exception(60), ZeroDivisionError)
    assert len(submit(engine, ["i1"], m=3).result(60).results[0].items) == 3


def test_a_full_queue_takes_no_more_and_loses_nothing(shop):
    engine = make_engine(shop, max_queue=5)
    gate = Gate(engine)
    futures = [submit(engine, ["i1"], m=3) for _ in range(5)]
    with pytest.raises(BusyError):
        submit(engine, ["i1"], m=3)
    assert engine.waiting == 5
    gate.open()
    assert all(len(each.result(60).results[0].items) == 3 for each in futures)
    assert engine.waiting == 0
    engine.stop()


def test_what_passed_its_deadline_or_was_cancelled_is_not_searched(engine):
    gate = Gate(engine)
    late, kept = submit(engine, ["i1"], seconds=0.002), submit(engine, ["i1"])
    assert submit(engine, ["i1"]).cancel()
    time.sleep(0.005)
    gate.open()
    assert isinstance(late.exception(60), DeadlineError)
    assert kept.result(60).batch_size == 1


def test_a_queue_that_would_be_answered_too_late_takes_no_more(engine):
    gate = Gate(engine)
    engine._seconds_per_row = 1.0  # a history takes a second
    submit(engine, ["i1"], ["i2"])
    with pytest.raises(BusyError, match="before its deadline"):
        submit(engine, ["i1"], seconds=1.0)
    submit(engine, ["i1"], seconds=10.0)
    gate.open()


def test_a_narrowed_beam_is_reported_and_never_below_m(shop):
    engine = make_engine(shop, beam_size=40)
    engine.load_control = SteadyLoad(1)
    narrow, wide = submit(engine, ["i1"], m=3).result(60), submit(engine, ["i1"], m=30).result(60)
    assert (narrow.beam_size, narrow.narrowed_from) == (20, 40)
    assert (wide.beam_size, wide.narrowed_from) == (30, 40)
    assert len(wide.results[0].items) == 30
    assert engine.current_beam == 20
    engine.stop()


def test_the_longest_wait_of_a_batch_is_what_narrows_the_beam(shop):
    engine = make_engine(shop)
    gate, engine.load_control = Gate(engine), SteadyLoad(0)
    futures = [submit(engine, ["i1"]), submit(engine, ["i2"])]
    time.sleep(0.06)
    gate.open()
    assert max(each.result(60).queue_seconds for each in futures) >= engine.load_control.waits[0] >= 0.06
    engine.stop()


def test_without_requests_the_beam_is_soon_as_wide_as_before(shop):
    engine = make_engine(shop)
    submit(engine, ["i1"]).result(60)
    engine.load_control.step = 1
    time.sleep(0.5)
    assert engine.steps_narrowed == 0
    assert submit(engine, ["i1"]).result(60).narrowed_from is None
    engine.stop()


def test_monitoring_does_not_widen_the_beam(shop):
    engine = make_engine(shop)
    submit(engine, ["i1"]).result(60)
    time.sleep(0.3)  # long enough for one step
    engine.load_control.step = MAX_STEPS
    assert engine.steps_narrowed < MAX_STEPS
    assert engine.load_control.step == MAX_STEPS
    engine.stop()


def test_after_a_stop_what_waits_is_answered_and_nothing_more_is_taken(shop):
    engine = make_engine(shop)
    gate = Gate(engine)
    futures = [submit(engine, ["i1"], m=3) for _ in range(3)]
    stopping = threading.Thread(target=engine.stop)
    stopping.start()
    gate.open()
    stopping.join(60)
    assert [len(each.result(60).results[0].items) for each in futures] == [3, 3, 3]
    with pytest.raises(StoppedError):
        submit(engine, ["i1"])


@given(
    st.integers(1, 500) | st.lists(st.integers(1, 500), min_size=4, max_size=4).map(tuple),
    st.none() | st.integers(1, 500) | st.lists(st.integers(1, 500), min_size=4, max_size=4).map(tuple),
    st.integers(0, MAX_STEPS),
    st.integers(1, 50),
)
def test_a_narrowed_beam_is_never_wider_and_never_below_m(beam, tuned, step, m):
    def widths(found):
        return (found,) * 4 if isinstance(found, int) else found

    asked = tuple(max(m, width) for width in widths(beam)) if isinstance(beam, tuple) else max(m, beam)
    found = narrow_beam(asked, step, m, tuned)
    assert all(m <= width <= most for width, most in zip(widths(found), widths(asked), strict=True))
    if step:
        further = narrow_beam(asked, step - 1, m, tuned)
        assert all(a <= b for a, b in zip(widths(found), widths(further), strict=True))
    else:
        assert found == asked


def test_the_beam_is_as_wide_as_before_two_seconds_after_the_load():
    """Batches every 10 ms: two seconds of long waits, then short ones without time to spare."""
    control, now = LoadControl(0.04), 100.0
    for _ in range(200):
        now += 0.01
        control.observe(now, 0.5, 0.0)
    assert control.step == MAX_STEPS
    end = now + 2.0
    while control.step:
        now += 0.01
        control.observe(now, 0.01, 0.0)
    assert now < end


def test_waits_that_are_neither_long_nor_short_change_nothing():
    control, now = LoadControl(0.04), 100.0
    control.observe(now, 0.05, 0.0)
    for _ in range(500):
        now += 0.01
        assert control.observe(now, 0.03, 0.0) == 1


names = [f"i{n}" for n in range(ITEMS)]
some_names = st.lists(st.sampled_from([*names, "unknown"]), max_size=70).map(tuple)


@given(
    st.none() | some_names, some_names, st.sampled_from([None, "Books", "films/OLD", "nothing"]),
    st.lists(st.sampled_from(names), max_size=5), st.booleans(), st.integers(1, 70),
)  # fmt: skip
def test_m_items_come_back_wherever_m_are_allowed(allowed, exclude, category, history, exclude_seen, m):
    shop, filter = loaded(MODEL), Filter(allowed, exclude, category)
    request = RecommendRequest([history], m=m, beam_size=m, exclude_seen=exclude_seen, filter=filter)
    response = shop.searcher().recommend(request)  # with the narrowest possible beam
    left = set(names if allowed is None else allowed) & set(names) - set(exclude)
    if category is not None:
        paths = {name: shop.live.catalogue.categories[int(name[1:])].lower() + "/" for name in left}
        left = {name for name in left if paths[name].startswith(category.lower() + "/")}
    assert response.num_allowed == len(left)
    if exclude_seen:
        left -= set(history)
    found = response.results[0].items
    assert len(found) == len(set(found)) == min(m, len(left))
    assert set(found) <= left
    assert response.short == 0


MODEL = make_model()


def test_a_wide_beam_under_a_filter_finds_what_brute_force_finds():
    generator = torch.Generator().manual_seed(0)
    for size in (1, 2, 7, 30, ITEMS):
        chosen = tuple(f"i{n}" for n in torch.randperm(ITEMS, generator=generator)[:size].tolist())
        request = RecommendRequest([["i4", "i2"]], beam_size=ITEMS, filter=Filter(chosen))
        response = loaded(MODEL).searcher().recommend(request)
        x = torch.full((1, 69), bt.PAD)
        x[0, :2] = torch.tensor([2, 4])
        best, _ = bt.brute_force(MODEL, x, m=10, allowed=allowed_items(Filter(chosen), MODEL.ids))
        assert response.results[0].items == [f"i{n}" for n in best[0].tolist() if n != bt.PAD]


def test_a_repeated_filter_makes_no_second_mask_and_a_new_model_makes_one():
    masks, model, other = MaskCache(), make_model(), make_model(seed=1)
    mask, count = masks.get(Filter(("i1",)), model, model.ids)
    assert count == 1
    assert masks.get(Filter(("i1",)), model, model.ids)[0] is mask
    assert masks.get(Filter(("i1",)), other, other.ids)[0] is not mask


# Swaps


def test_a_new_run_is_swapped_in_without_a_failed_request(tmp_path):
    runs = [save_run(tmp_path / str(seed), ITEMS + 10 * seed, seed) for seed in range(3)]
    engine = make_engine(open_shop(runs[0]))
    slot = ModelSlot(engine, open_shop)
    outcomes, ended = [], threading.Event()

    def keep_asking():
        while not ended.is_set():
            outcomes.append(submit(engine, ["i1", "i2"], m=5).result(60))

    thread = threading.Thread(target=keep_asking)
    thread.start()
    digests = {engine.loaded.digest}
    for turn in range(6):
        digests.add(slot.load(runs[turn % 3]).result().digest)
        time.sleep(0.02)
    ended.set()
    thread.join()
    assert all(len(each.results[0].items) == 5 for each in outcomes)
    assert {each.version for each in outcomes} == digests
    assert len(digests) == 3
    engine.stop()
    slot.close()


def test_a_run_that_cannot_be_served_changes_nothing(tmp_path):
    good, bad = save_run(tmp_path / "good"), save_run(tmp_path / "bad", seed=1)
    weights = json.loads((bad / "settings.json").read_text())["files"]["weights"]["file"]
    (bad / weights).write_bytes(b"nothing")
    engine, reloads = make_engine(open_shop(good)), []
    slot = ModelSlot(engine, open_shop, reloads.append)
    for run in (bad, tmp_path / "nowhere"):
        with pytest.raises(ValueError, match="stays as it was"):
            slot.load(run).result()
    assert [each.error is None for each in reloads] == [False, False]
    assert slot.last_reload.run == "nowhere"
    assert submit(engine, ["i1"]).result(60).version == open_shop(good).digest
    engine.stop()
    slot.close()


def test_another_run_in_the_same_place_is_found_and_a_broken_one_is_not_served(tmp_path):
    place = tmp_path / "current"
    place.symlink_to(save_run(tmp_path / "one"))
    engine, reloads = make_engine(open_shop(place)), []
    changed = threading.Condition()

    def hear(reload):
        with changed:
            reloads.append(reload)
            changed.notify()

    slot = ModelSlot(engine, open_shop, hear)
    watcher = RunWatcher(lambda: place, engine, lambda: slot.load(place, place.name).result(), 0.01)

    def point(folder):
        with changed:
            (tmp_path / "next").symlink_to(folder)
            (tmp_path / "next").replace(place)
            count = len(reloads)
            assert changed.wait_for(lambda: len(reloads) > count, 60)
        return reloads[-1]

    assert point(save_run(tmp_path / "two", seed=2)).error is None
    second = engine.loaded.digest
    broken = save_run(tmp_path / "broken", seed=3)
    for path in broken.glob("*.safetensors"):
        path.unlink()
    assert point(broken).error is not None
    assert engine.loaded.digest == second
    assert point(tmp_path / "one").error is None
    assert engine.loaded.digest != second
    watcher.close()
    engine.stop()
    slot.close()


def test_the_beam_that_was_read_tuned_beam_this_model_is_found_and_no_other(tmp_path):
    run, other = save_run(tmp_path / "run"), save_run(tmp_path / "other", seed=1)
    assert read_tuned_beam(run, MODEL) is None
    save_tuned_beam(run, {"beam_size": [9, 8, 7, 6, 5]})
    assert read_tuned_beam(run, MODEL) == (9, 8, 7, 6, 5)
    assert open_shop(run).tuned_beam == (9, 8, 7, 6, 5)
    shutil.copy(run / "tune.json", other)
    assert read_tuned_beam(other, MODEL) is None
    (run / "tune.json").write_text("[")
    assert read_tuned_beam(run, MODEL) is None


def test_a_tuned_beam_is_not_used_where_a_level_was_added():
    shop = loaded(tuned_beam=12)
    levels = MODEL.tree.height + 1 - MODEL.first_level
    for tuned, found in ((12, 12), ((9,) * levels, (9,) * levels), ((9,) * (levels - 1), None), (None, None)):
        assert LoadedRun(shop.live, "shop", "abc", tuned_beam=tuned).fitting_tuned_beam == found


def test_a_tuned_beam_is_what_load_narrows_to_first():
    engine = make_engine(loaded(tuned_beam=12), beam_size=40)
    engine.load_control = SteadyLoad(1)
    assert submit(engine, ["i1"], m=3).result(60).beam_size == 12
    engine.stop()
