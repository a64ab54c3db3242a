"""The page in a browser: choose, recommend, explain, slide, compare, share; recorded and live.

They run in Debian's Chromium, without a network.
"""

import re
from types import SimpleNamespace
from urllib.parse import parse_qs

import pytest
import torch
from command import wait_for
from page_data import SIZES, make_catalogue, make_model, recorded, sample_users, user_names
from serving import serving

from beamtree.data import Ids
from beamtree.data.catalogue import Catalogue
from beamtree.diagnose.explain import explain, without_part
from beamtree.diagnose.explore import inspect_for_page, losses_as_dict, page, record
from beamtree.live import LiveModel
from beamtree.live.users import Users
from beamtree.query import UNKNOWN_USER, History, Searcher
from beamtree.query.reasons import reasons
from beamtree.serve.engine.served_run import LoadedRun
from beamtree.serve.http.access import Access
from beamtree.serve.http.service import Service
from beamtree.tree import PAD

PHONE = {"width": 390, "height": 844}


class Watch:
    """A tab, what it complained about and whom it asked."""

    def __init__(self, browser, **how):
        self.context = browser.new_context(viewport=how.pop("viewport", {"width": 1100, "height": 720}), **how)
        self.tab = self.context.new_page()
        self.trouble, self.asked = [], []
        self.tab.on(
            "console", lambda message: message.type in ("error", "warning") and self.trouble.append(message.text)
        )
        self.tab.on("pageerror", lambda error: self.trouble.append(str(error)))
        self.tab.on("request", lambda request: self.asked.append(request.url))

    def open(self, address):
        self.tab.goto("about:blank")
        self.tab.goto(address)
        self.tab.wait_for_selector("html[data-ready]")
        return self.tab

    def state(self):
        """What the address says, once it is written."""
        fragment = settled(self.tab).evaluate("location.hash")[1:]
        return {key: values[0] for key, values in parse_qs(fragment).items()}


@pytest.fixture
def watch(browser):
    watch = Watch(browser)
    yield watch
    watch.context.close()
    assert not watch.trouble


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(page(recorded()[2]), encoding="utf-8")
    return f"file://{path}"


def settled(tab):
    """Wait until the page shows what was asked for, and the address says so."""
    tab.wait_for_selector("html:not([data-address=pending])", state="attached")
    tab.wait_for_selector("main[aria-busy=false]", state="attached")
    return tab


def names_shown(tab):
    settled(tab)
    return tab.locator("#list .name").all_text_contents()


def expected(user, size, model=0):
    """The recorded search, and the titles that are shown for what it found."""
    _, _, data = recorded()
    search = data["models"][model]["searches"][user][SIZES.index(size)]
    return search, [shown_title(data, item) for item, _ in search["found"]]


def shown_title(data, item):
    return without_controls(data["items"]["title"][item] or data["items"]["id"][item])


def without_controls(title):
    """A title as it is shown."""
    title = title.encode("utf-8", "replace").decode()
    return re.sub(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069]", " ", title)


# Recorded


def test_the_file_opens_and_shows_recommendations_without_asking_anybody(watch, address):
    tab = watch.open(f"{address}#k=20&m=10")
    assert names_shown(tab) == expected(0, 20)[1][:10]
    assert "10 items" in tab.locator("#found .head").inner_text()
    assert [url for url in watch.asked if not url.startswith(("file:", "data:"))] == []
    assert tab.locator("#tree").get_attribute("aria-label").startswith("The search, level by level. level 2:")


def test_hostile_titles_are_text(watch, address):
    tab = watch.open(f"{address}#k=20")
    shown = tab.inner_text("body")
    assert "</script><script>window.hit = 1</script>" in shown
    for place in ("compare", "losses", "map"):
        tab.click(f"#tab-{place}")
        settled(tab)
    tab.keyboard.press("/")
    tab.fill("#query", "<img")
    tab.wait_for_timeout(100)
    assert tab.evaluate("window.hit") is None
    assert tab.locator("img").count() == 0
    assert tab.title().startswith("run </title>")


def test_another_user_is_chosen_by_the_list_the_buttons_and_the_search(watch, address):
    tab = watch.open(f"{address}#k=20")
    people = [user["id"] for user in recorded()[2]["users"]]
    tab.select_option("#user", people[2])
    assert names_shown(tab) == expected(2, 20)[1][:10]
    assert watch.state()["user"] == people[2]
    tab.keyboard.press("Escape")
    tab.locator("#who button").last.click()
    assert names_shown(tab) == expected(3, 20)[1][:10]
    tab.click("#find")
    tab.fill("#query", people[4])
    tab.keyboard.press("Enter")
    wait_for(lambda: tab.locator("#finder[open]").count() == 0)
    assert names_shown(tab) == expected(4, 20)[1][:10]


def test_sliders_answer_from_what_is_recorded(watch, address):
    tab = watch.open(f"{address}#k=20&m=5")
    slide(tab, "k", SIZES.index(40))
    search, titles = expected(0, 40)
    assert tab.locator("#controls output").first.inner_text() == "40"
    assert f"{search['scored']:,}" in tab.inner_text("#controls")
    assert names_shown(tab) == titles[:5]
    slide(tab, "m", 30)
    assert names_shown(tab) == titles[:30]
    found = sum(path[2] is not None and path[2] <= 30 for path in search["paths"])
    assert f"{found} of {len(search['paths'])} for this user" in tab.inner_text("#controls")
    assert f"{found} of {len(search['paths'])} found" in tab.inner_text("#truth")
    slide(tab, "k", 0)
    assert watch.state() == {"k": "5", "m": "5"}
    assert tab.locator("#cost circle").count() == len(SIZES)
    tab.locator("#cost circle").last.click()
    assert watch.state()["k"] == "40"


def slide(tab, name, value):
    """As a hand does: a slider takes part in the keys, so its value is set and it tells so."""
    tab.eval_on_selector(
        f"#{name}",
        "(slider, value) => { slider.value = value; slider.dispatchEvent(new Event('input', { bubbles: true })); }",
        value,
    )
    settled(tab)


def test_why_an_item_was_lost_is_told_as_it_was_recorded(watch, address):
    search, _ = expected(0, 10)
    place, path = next((n, path) for n, path in enumerate(search["paths"]) if len(path) > 6)
    level, _, to, below, decided, parts, _ = path[6]
    tab = watch.open(f"{address}#k=10")
    settled(tab).locator("#truth .item").nth(place).click()
    told = tab.inner_text("#why")
    data = recorded()[2]
    assert f"Lost on level {level}" in told
    assert re.sub(r"\s+", " ", shown_title(data, to)).strip() in re.sub(r"\s+", " ", told)
    kept = next(each for each in search["levels"] if each[0] == level)
    step = path[5][level - search["levels"][0][0]]
    assert f"{abs(step[1] - kept[5]):.3f} below the last of {kept[2]} nodes kept" in told
    assert f"{step[2]} candidate" in told
    assert f"Decisive part: {decided}" in told
    assert tab.locator("#why .parts tbody tr").count() == len(parts)
    assert tab.locator("#why .decided th").inner_text() == decided
    assert tab.locator("#why .margin").count() == len(path[5])
    assert watch.state()["item"] == data["items"]["id"][path[0]]
    assert below >= 1


def test_an_item_that_was_found_is_told_too(watch, address):
    tab = watch.open(f"{address}#k=20")
    tab.locator("#list .item").nth(2).click()
    assert "ound at rank 3" in tab.inner_text("#why")
    tab.locator("#list .item").nth(2).click()
    assert "Select an item" in tab.inner_text("#why")


@pytest.mark.extended
def test_two_models_stand_side_by_side(watch, address):
    tab = watch.open(f"{address}#k=20&m=10&tab=compare")
    first, second = expected(0, 20)[1][:10], expected(0, 20, model=1)[1][:10]
    columns = tab.locator(".column")
    assert columns.nth(0).locator(".name").all_text_contents() == first
    assert columns.nth(1).locator(".name").all_text_contents() == second
    shared = len(set(first) & set(second))
    assert f"{shared} of 10 items are the same" in tab.inner_text("#view")
    assert tab.locator(".only").count() == 2 * (10 - shared)
    tab.select_option("#other", "3")
    settled(tab)
    assert columns.nth(1).locator(".name").all_text_contents() == expected(0, 20, model=3)[1][:10]
    tab.select_option("#beam-k2", "40")
    settled(tab)
    assert columns.nth(1).locator(".name").all_text_contents() == expected(0, 40, model=3)[1][:10]
    assert tab.locator(".outcomes tbody tr").count() == len(recorded()[2]["users"][0]["truth"])
    assert watch.state() == {"k": "20", "tab": "compare", "other": "3", "k2": "40"}


@pytest.mark.extended
def test_the_address_restores_what_was_shown(browser, watch, address):
    tab = watch.open(f"{address}#k=20")
    tab.locator("#truth .item").first.click()
    slide(tab, "m", 7)
    tab.click("#layout")
    tab.keyboard.press("ArrowUp")
    tab.click("#in")
    tab.click("#theme")
    state = watch.state()
    assert {"k", "m", "item", "layout", "level", "from", "to", "theme"} <= set(state)
    other = Watch(browser)
    again = other.open(tab.evaluate("location.href"))
    for part in ("#why", "#truth", "#found", "#controls"):
        assert again.inner_text(part) == tab.inner_text(part)
    assert other.state() == state
    assert again.get_attribute("html", "data-theme") == "dark"
    tab.wait_for_timeout(900)  # until the layouts have changed over
    assert pixels(again) == pixels(tab)
    other.context.close()


def pixels(tab):
    """The tree as it is drawn, but for the outline of what the pointer is at."""
    tab.mouse.move(2, 2)
    tab.wait_for_timeout(60)
    return tab.eval_on_selector("#tree", "canvas => canvas.toDataURL()")


@pytest.mark.extended
def test_an_address_may_say_anything(watch, address):
    for nonsense in ("k=abc&m=-4", "tab=%3Cscript%3E&user=nobody", "from=9&to=2&level=77", "item=x&k=1e99"):
        assert len(names_shown(watch.open(f"{address}#{nonsense}"))) >= 1
    tab = watch.open(f"{address}#model=99&other=-3&node=1e9")
    for place in ("compare", "losses", "map", "search"):
        tab.click(f"#tab-{place}")
        assert settled(tab).locator("#error").is_hidden()


def test_everything_is_at_the_keys(watch, address):
    tab = watch.open(f"{address}#k=20")
    last = recorded()[0].tree.height
    tab.keyboard.press("ArrowUp")
    assert watch.state()["level"] == str(last - 1)
    tab.keyboard.press("ArrowDown")
    assert "level" not in watch.state()
    tab.keyboard.press("ArrowRight")
    first = recorded()[2]["users"][0]["truth"][0]
    assert watch.state()["item"] == recorded()[2]["items"]["id"][first]
    for key, place in (("2", "compare"), ("3", "losses"), ("4", "map"), ("1", "search")):
        tab.keyboard.press(key)
        assert tab.get_attribute(f"#tab-{place}", "aria-selected") == "true"
    tab.keyboard.press("l")
    assert watch.state()["layout"] == "scale"
    tab.keyboard.press("?")
    assert tab.locator("#manual[open]").count() == 1
    tab.keyboard.press("Escape")
    tab.keyboard.press("/")
    assert tab.evaluate("document.activeElement.id") == "query"
    tab.keyboard.press("Escape")
    wait_for(lambda: tab.locator("dialog[open]").count() == 0)
    wait_for(lambda: tab.evaluate("document.activeElement.id") != "query")  # a key in a field is a letter
    tab.keyboard.press("]")
    wait_for(lambda: watch.state().get("user") == recorded()[2]["users"][1]["id"])


@pytest.mark.extended
def test_a_replay_goes_down_level_by_level_until_it_is_stopped(watch, address):
    tab = watch.open(f"{address}#k=20")
    before = pixels(tab)
    tab.keyboard.press("Space")
    first = int(watch.state()["level"])
    assert first < recorded()[0].tree.height
    assert pixels(tab) != before
    tab.keyboard.press("Space")
    stopped = watch.state()["level"]
    tab.wait_for_timeout(900)  # longer than a step takes
    assert watch.state()["level"] == stopped
    tab.keyboard.press("Space")
    wait_for(lambda: "level" not in watch.state(), seconds=60)  # all levels are shown
    assert pixels(tab) == before


@pytest.mark.extended
def test_a_leaf_is_chosen_on_the_tree_and_the_wheel_zooms(watch, address):
    tab = watch.open(f"{address}#k=5")
    box = tab.locator("#tree").bounding_box()
    for across in range(12, 60):
        tab.mouse.click(box["x"] + box["width"] * across / 64, box["y"] + box["height"] - 90)
        if "item" in watch.state():
            break
    assert "item" in watch.state()
    tab.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    tab.mouse.wheel(0, -400)
    state = watch.state()
    assert float(state["to"]) - float(state["from"]) < 0.6
    tab.keyboard.press("0")
    assert "from" not in watch.state()


@pytest.mark.extended
def test_losses_and_the_map_are_drawn(watch, address):
    tab = watch.open(f"{address}#k=10&m=5&tab=losses")
    _, _, data = recorded()
    paths = [path for user in range(5) for path in expected(user, 10)[0]["paths"]]
    found = sum(path[2] is not None and path[2] <= 5 for path in paths) / len(paths)
    assert f"{len(paths)} items" in tab.inner_text("#view")
    assert f"found: {found * 100:.1f} %" in tab.get_attribute("#view svg.loss", "aria-label")
    tab.click("#tab-map")
    drawn = tab.eval_on_selector(
        "canvas.map",
        "canvas => new Set(canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data).size",
    )
    assert drawn > 10
    box = tab.locator("canvas.map").bounding_box()
    tab.mouse.click(box["x"] + 40, box["y"] + 60)
    assert int(watch.state()["node"]) > 0
    assert tab.locator(".crumbs button").count() >= 2
    tab.locator(".crumbs button").first.click()
    assert "node" not in watch.state()
    assert data["models"][0]["map"]["items"][0] == 180


@pytest.mark.extended
def test_light_and_dark_follow_the_system_and_the_switch(browser, address):
    dark = Watch(browser, color_scheme="dark")
    tab = dark.open(address)
    assert tab.get_attribute("html", "data-theme") == "dark"
    tab.keyboard.press("d")
    assert tab.get_attribute("html", "data-theme") == "light"
    assert dark.state()["theme"] == "light"
    dark.context.close()


@pytest.mark.extended
@pytest.mark.parametrize("place", ["search", "compare", "losses", "map"])
def test_on_a_phone_nothing_is_wider_than_the_screen(browser, address, place):
    phone = Watch(browser, viewport=PHONE, has_touch=True, is_mobile=True)
    tab = phone.open(f"{address}#tab={place}&k=20")
    assert tab.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    assert not phone.trouble
    phone.context.close()


def test_without_titles_ids_are_shown(watch, tmp_path):
    model = make_model()
    data = record({"run": model}, sample_users(), user_names(), Catalogue.of_ids(model.ids), count=1, beam_sizes=(10,))
    (tmp_path / "page.html").write_text(page(data), encoding="utf-8")
    tab = watch.open(f"file://{tmp_path}/page.html")
    assert all(re.fullmatch(r"i\d+", name) for name in names_shown(tab))


# Live


HISTORIES = {"ann": [3, 5, 8, 13, 21, 34], "bob": [1, 2]}
SHOP = make_model()


def sendable(title):
    """A title as a table can hold it: no halves of characters."""
    return title and title.encode("utf-8", "replace").decode()


CATALOGUE = make_catalogue(SHOP)
CATALOGUE = Catalogue(SHOP.ids, [sendable(title) for title in CATALOGUE.titles], CATALOGUE.categories)


class Shop(LiveModel):
    """A model with two users."""

    @property
    def users(self):
        return Users(SimpleNamespace(users=Ids(list(HISTORIES)), distinct_users=Ids(sorted(HISTORIES))), {}, {})

    def history(self, user, ids=None):
        return History(HISTORIES[user]) if user in HISTORIES else UNKNOWN_USER


def open_shop(run):
    log = SimpleNamespace(users=Ids(list(HISTORIES)), test=sample_users(), val=[])
    return LoadedRun(Shop(SHOP, catalogue=CATALOGUE), "shop", "abc", data=log)


@pytest.fixture
def server(tmp_path):
    with serving(Service(tmp_path, open_shop, timeout=20)) as client:
        yield f"http://127.0.0.1:{client.port}/"


def ask(history, items=(), k=100, m=10, without=None):
    """What the library says of a history of ids."""
    numbers = [int(item[1:]) for item in history]
    x = torch.full((1, 69), PAD)
    x[0, : len(numbers)] = torch.tensor(numbers[::-1])
    model = SHOP if without is None else without_part(SHOP, without)
    return explain(model, x, beam_size=k, m=m, items=[int(item[1:]) for item in items])


def titles_of(found):
    return [without_controls(CATALOGUE.titles[item] or f"i{item}") for item, _ in found.found]


def test_live_a_user_is_chosen_and_the_newest_events_are_hidden(server, watch):
    tab = watch.open(server)
    assert "Choose a user" in tab.inner_text("#view")
    tab.keyboard.press("/")
    tab.fill("#query", "ann")
    tab.locator("#finder .item").first.click()
    tab.wait_for_selector("#list .item")
    assert names_shown(tab) == titles_of(ask(["i3"], ["i5", "i8", "i13", "i21", "i34"]))
    assert tab.locator("#truth .item").count() == 5
    tab.fill("#hide", "2")
    tab.press("#hide", "Enter")
    wait_for(lambda: tab.locator("#truth .item").count() == 2)
    assert names_shown(tab) == titles_of(ask(["i3", "i5", "i8", "i13"], ["i21", "i34"]))
    assert watch.state() == {"user": "ann", "hide": "2"}
    assert all(url.startswith((server, "about:", "data:")) for url in watch.asked)


@pytest.mark.extended
def test_live_any_item_is_explained_and_every_beam_is_searched(server, watch):
    tab = watch.open(f"{server}#user=ann&hide=3&k=8&m=4")
    path = ask(["i3", "i5", "i8"], ["i13", "i21", "i34"], k=8, m=4).items[0]
    tab.locator("#truth .item").first.click()
    tab.wait_for_selector("#why .what")
    words = f"Lost on level {path.pruned.step.level}" if path.pruned else f"at rank {path.rank}"
    assert words in tab.inner_text("#why")
    slide(tab, "k", 5)
    wait_for(lambda: tab.locator("#controls output").first.inner_text() == "32")
    assert names_shown(tab) == titles_of(ask(["i3", "i5", "i8"], k=32, m=4))
    tab.wait_for_selector("#cost circle")
    tab.locator("#list .item").nth(3).click()
    wait_for(lambda: "at rank 4" in tab.inner_text("#why"))
    assert tab.locator("#why .margin").count() == SHOP.tree.height - 1


@pytest.mark.extended
def test_live_the_events_that_give_an_item_its_score_are_shown(server, watch):
    history = [3, 5, 8, 13, 21, 34, 7, 40, 2]  # more than are shown one by one
    names = [f"i{item}" for item in history]
    tab = watch.open(f"{server}#history={'%09'.join(names)}&hide=0&k=50&m=10")
    best = ask(names, k=50).found[0][0]
    tab.locator("#list .item").first.click()
    tab.wait_for_selector("#reasons")
    (found,) = reasons(Searcher(SHOP, SHOP.ids, catalogue=CATALOGUE), [History(history)], [best])[0]
    events = list(dict.fromkeys((row.place, row.event) for row in found if row.place is not None))
    shown = tab.locator("#reasons th").evaluate_all("all => all.map((each) => each.firstChild.textContent)")
    title = CATALOGUE.titles[events[0][1]] or f"i{events[0][1]}"
    assert shown[:5] == [without_controls(CATALOGUE.titles[item] or f"i{item}") for _, item in events[:5]]
    assert f"{len(events) - 5} other events" in shown
    assert shown[-1] == "no event"
    assert f"Because of {without_controls(title)}." in tab.inner_text("#why").replace("\u00a0", " ")
    numbers = [text.replace("−", "-") for text in tab.locator("#reasons td").all_text_contents()]
    assert sum(map(float, numbers)) == pytest.approx(sum(row.contribution for row in found), abs=0.01)


@pytest.mark.extended
def test_live_losses_are_counted_over_users_of_the_log(server, watch):
    tab = watch.open(f"{server}#user=ann&hide=2&k=10&m=5&tab=losses")
    told = losses_as_dict(inspect_for_page(SHOP, sample_users(), 200))
    wait_for(lambda: told["advice"] in tab.inner_text("#view"))
    assert f"{told['users']} users, k = 100" in tab.inner_text("#view")
    assert tab.locator("#view svg.loss").count() == 2
    assert "Counting" not in tab.inner_text("#view")
    assert watch.trouble == []


@pytest.mark.extended
def test_live_a_history_is_typed_and_taken_apart(server, watch):
    tab = watch.open(server)
    for text in ("i17", "i44"):
        tab.keyboard.press("/")
        tab.fill("#query", text)
        tab.wait_for_selector("#finder .item:has(.text)")
        tab.locator("#finder .item:has(.text)").first.click()
        settled(tab)
    assert names_shown(tab) == titles_of(ask(["i17", "i44"]))
    assert watch.state()["history"] == "i17\ti44"
    tab.locator("#history .drop").first.click()
    wait_for(lambda: tab.locator("#history .past").count() == 1)
    assert names_shown(tab) == titles_of(ask(["i17"]))


@pytest.mark.extended
def test_live_a_part_of_the_score_is_left_out_beside_the_whole(server, watch):
    tab = watch.open(f"{server}#user=ann&hide=2&k=20&tab=compare&other=1")
    tab.wait_for_selector(".column")
    second = tab.locator(".column").nth(1).locator(".name").all_text_contents()
    assert second == titles_of(ask(["i3", "i5", "i8", "i13"], k=20, without="memory"))


@pytest.mark.extended
def test_live_what_the_server_refuses_is_shown(server, browser):
    watch = Watch(browser)
    tab = watch.open(f"{server}#user=zoe")
    tab.wait_for_selector("#error:not([hidden])")
    assert "there is no such user: search with" in tab.inner_text("#error")
    watch.context.close()


@pytest.mark.extended
def test_live_a_token_is_asked_for_and_kept_for_the_session(browser, tmp_path):
    with serving(Service(tmp_path, open_shop, timeout=20, access=Access(read="secret word"))) as client:
        watch = Watch(browser)
        watch.tab.goto(f"http://127.0.0.1:{client.port}/#user=ann")
        watch.tab.fill("#token", "secret word")
        watch.tab.press("#token", "Enter")
        watch.tab.wait_for_selector("#list .item")
        assert "secret" not in watch.tab.evaluate("location.href")
        watch.context.close()
