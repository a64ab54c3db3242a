"""A morning: an item that nobody bought before sells, is found at noon, and fades."""

import random
import shutil
from functools import partial

import oracle
import polars as pl
import pytest
from serving import make_service, open_shop, serving

import beamtree as bt
from beamtree.data.times import DAY
from beamtree.live import Journal, renew
from beamtree.live.events import Event, events_entry

START = 1_704_067_200  # 2024-01-01
DAYS, HOUR = 140, 3600
END = START + DAYS * DAY
FASHIONS, SEASON = 4, 28  # items that are in fashion together, and for how many days


def fashion(day, draw):
    return f"fashion {day // SEASON}.{draw.randrange(FASHIONS)}"


def shop_log(users=240):
    """Half of the events are what is in fashion at that time, the others one of five items of the user's group."""
    draw, rows = random.Random(0), []
    for user in range(users):
        for _ in range(20):
            at = draw.randrange(DAYS * DAY)
            item = fashion(at // DAY, draw) if draw.random() < 0.5 else f"group {user % 12}.{draw.randrange(5)}"
            rows.append((f"u{user}", item, START + at))
    return pl.DataFrame(rows, schema=["user", "item", "time"], orient="row").sort("user", "time")


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    shop = bt.Recommender(steps=0, sequence=False)
    date = pl.from_epoch(pl.Series([END - 14 * DAY])).dt.to_string("%Y-%m-%d")[0]
    shop.fit(shop_log(), split=f"time:{date}", val_users=150, test_users=50, verbose=False)
    folder = tmp_path_factory.mktemp("morning") / "run"
    shop.save(folder)
    return folder


@pytest.fixture
def shop(fitted):
    return bt.Recommender.load(fitted)


def firsts(shop, m=5):
    return {user: shop.recommend([f"group {user}.0", f"group {user}.1"], m=m)["item"].to_list() for user in range(12)}


def found(shop, item, m=5):
    """By how many of twelve kinds of users, none of whom ever met it."""
    return sum(item in items for items in firsts(shop, m).values())


def morning(live, item, buyers=40):
    """It sells from 9 to 12, and other items as ever."""
    draw = random.Random(1)
    for sale in range(buyers):
        at = (END + 9 * HOUR + sale * 3 * HOUR // buyers) * 10**6
        live.record_events([(f"early {sale}", [item], at)])
        live.record_events([(f"other {sale}", [fashion(DAYS - 1, draw)], at)])


def week_after(live):
    draw = random.Random(2)
    for sale in range(400):
        at = (END + 12 * HOUR + sale * 7 * DAY // 400) * 10**6
        live.record_events([(f"later {sale}", [fashion(DAYS - 1, draw)], at)])


def test_what_sells_in_the_morning_is_found_at_noon_and_fades_a_week_later(shop):
    assert "trend" in shop.model.scorer.names
    shop.update_items({"tent": {"like": ["group 0.0"]}})
    live = shop._live_model()
    assert found(shop, "tent") <= 1  # where it was placed
    morning(live, "tent")
    assert found(shop, "tent") == 12
    at_noon = [items.index("tent") for items in firsts(shop, 60).values()]
    week_after(live)
    later = [(*items, "tent").index("tent") for items in firsts(shop, 60).values()]
    assert all(one > other for one, other in zip(later, at_noon, strict=True))
    assert found(shop, "tent") <= 1


def test_it_is_found_after_saving_and_loading(shop, tmp_path):
    shop.update_items({"tent": {"like": ["group 0.0"]}})
    morning(shop._live_model(), "tent")
    shop.save(tmp_path / "run")
    again = bt.Recommender.load(tmp_path / "run")
    assert found(again, "tent") == 12
    assert firsts(again) == firsts(shop)


def test_a_service_that_hears_of_the_sales_finds_it_and_so_does_the_next_one(fitted, tmp_path):
    """The second service starts with what the first one wrote down."""

    def finds(client):
        asked = [{"history": [f"group {user}.0", f"group {user}.1"], "m": 5} for user in range(12)]
        replies = [client.post("/v1/recommend", json=request).json() for request in asked]
        return sum("tent" in reply["results"][0]["items"] for reply in replies)

    for start in range(2):
        journal = Journal(tmp_path / "changes")
        service = make_service(fitted, partial(open_shop, journal=journal))
        with serving(service) as client:
            if not start:
                client.put("/v1/items/tent", json={"like": ["group 0.0"]}).raise_for_status()
                assert finds(client) <= 1
                sales = [(f"early {sale}", END + 9 * HOUR + sale * 300) for sale in range(40)]
                events = [{"user": user, "items": ["tent"], "time": at} for user, at in sales]
                client.post("/v1/events", json={"events": events}).raise_for_status()
            assert finds(client) == 12
        service.close()
        journal.close()


def test_sales_of_an_item_count_when_it_is_added(shop):
    morning(shop._live_model(), "tent")
    shop.update_items({"tent": {"like": ["group 0.0"]}})
    assert found(shop, "tent") == 12


def test_a_date_in_the_future_is_a_mistake(shop):
    before, live, date = firsts(shop), shop._live_model(), 4_000_000_000 * 10**6
    with pytest.raises(ValueError, match="an event of 2096-10-02 is in the future"):
        live.record_events([("u1", ["fashion 0.0"], date)])
    live.apply([events_entry("u1", [Event("fashion 0.0", date, END * 10**6)])])  # from a journal of an earlier version
    assert firsts(shop) == before


def test_an_update_refits_trends_to_the_events_with_their_times(shop):
    trend = shop.model.scorer.part("trend")
    rows = [(f"new {sale}", "fashion 0.0", END + 2 * DAY + sale) for sale in range(30)]
    shop.update(pl.DataFrame(rows, schema=["user", "item", "time"], orient="row"))
    later = shop.model.scorer.part("trend")
    assert later.origin == END + 2 * DAY + 29
    assert later.half_lives == trend.half_lives
    assert found(shop, "fashion 0.0") == 12


def test_a_renewal_counts_what_a_fit_to_all_events_counts(fitted, tmp_path):
    """Of three users, who are too few to hold events out."""
    log, run = shop_log(), shutil.copytree(fitted, tmp_path / "run")
    new = [
        (f"u{user}", f"group {user}.0", END + 20 * DAY + user * DAY + twice) for user in range(3) for twice in (0, 60)
    ]
    new += [("u0", "tent", END + 20 * DAY)]
    assert renew(run, pl.DataFrame(new, schema=log.schema, orient="row"), force=True, verbose=False).saved
    model = bt.Recommender.load(run).model
    trend, rows = model.scorer.part("trend"), [(*row, 1.0) for row in [*log.rows(), *new]]
    assert trend.origin == trend.newest == END + 22 * DAY + 60
    for column, half_life in enumerate(trend.half_lives):
        expected = oracle.trend_counts(rows, half_life)
        found = dict(zip(model.ids, trend.counts[:, column].tolist(), strict=True))
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-6)
