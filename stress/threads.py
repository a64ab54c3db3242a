"""One recommender in several threads: eight that read, three that change items, and one that updates.

Every writer has items of its own, so the state after all changes is known. An item whose removal has returned must not
be in the answer of a call that begins afterwards.
"""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

import polars as pl

import beamtree as bt
from stress.sandbox import Sandbox

READERS, WRITERS = 8, 3
OWN_ITEMS = 12  # of a writer: trained ones, and as many new ones


class Shop:
    """A recommender, and what the writers know of its items."""

    def __init__(self, recommender: bt.Recommender, seed: int) -> None:
        self.recommender, self.seed = recommender, seed
        self.trained = [*recommender.ids]
        self.started: Counter[str] = Counter()  # changes of each item that have begun
        self.hidden: dict[str, int] = {}  # items whose removal has returned, and the changes begun until then
        self.added: set[str] = set()  # by updates
        self.counts: Counter[str] = Counter()  # calls and faults
        self.end = threading.Event()

    def write(self, writer: int) -> None:
        """Add, remove and forget the items of one writer."""
        rng = random.Random(self.seed * 100 + writer)
        own = self.trained[writer :: WRITERS + 1][:OWN_ITEMS]
        own += [f"new {writer} {number}" for number in range(OWN_ITEMS)]
        shop = self.recommender
        while not self.end.is_set():
            item, kind = rng.choice(own), rng.random()
            self.started[item] += 1
            self.hidden.pop(item, None)
            if kind < 0.5:
                shop.update_items([item])
                shop.update_items({item: {"like": [self.trained[-1]], "title": f"Title {rng.randrange(9)}"}})
                continue
            (shop.remove_items if kind < 0.8 or item in self.trained else shop.forget_items)([item])
            self.hidden[item] = self.started[item]
            self.counts["removals"] += 1

    def update(self) -> None:
        """Bring new users with new items."""
        turn = 0
        while not self.end.is_set():
            log = {"user": [f"user {turn}"] * 2, "item": [self.trained[-1], f"updated {turn}"], "time": [900, 901]}
            self.recommender.update(pl.DataFrame(log))
            self.added.add(f"updated {turn}")
            turn += 1
        self.counts["updates"] += turn

    def read(self, reader: int) -> None:
        """Ask in all ways, and count what must not be."""
        rng = random.Random(self.seed * 100 + 50 + reader)
        shop, known = self.recommender, {*self.trained}
        users = shop.data.users[:5]
        ways: list[Callable[[], pl.DataFrame]] = [
            lambda: shop.recommend(rng.sample(self.trained, 3), m=100, beam_size=200),
            lambda: shop.recommend(self.trained[-2:], m=100, beam_size=200, exclude=rng.sample(self.trained, 2)),
            lambda: shop.recommend(users=rng.sample(users, 2), m=100, beam_size=200),
            lambda: shop.similar(self.trained[-1], m=100, beam_size=200),
            lambda: shop.item_vectors(),
        ]
        while not self.end.is_set():
            before, added = dict(self.hidden), set(self.added)
            items = {*rng.choice(ways)()["item"]}
            self.counts["reads"] += 1
            removed = [item for item in items & before.keys() if self.started[item] == before[item]]
            self.counts["removed items shown"] += len(removed)
            strange = [item for item in items - known if not item.startswith(("new ", "updated "))]
            self.counts["items without an id"] += len(strange)
            if len(items) > 100:  # all of them
                self.counts["updates not seen"] += len(added - items)

    def expected(self) -> set[str]:
        """The items that are visible when all threads have ended."""
        changed = {item for item in self.started if item not in self.hidden}
        return ({*self.trained} - self.hidden.keys()) | changed | self.added


def run_threads(recommender: bt.Recommender, seconds: float, seed: int) -> tuple[Counter[str], list[str]]:
    """Let all threads work for some seconds. Returns what they counted, and the faults."""
    shop, errors = Shop(recommender, seed), list[str]()

    def guarded(work: Callable[..., None], *args: int) -> None:
        try:
            work(*args)
        except Exception as error:
            errors.append(f"{type(error).__name__}: {error}")
            shop.end.set()

    work = [(shop.read, number) for number in range(READERS)] + [(shop.write, number) for number in range(WRITERS)]
    threads = [threading.Thread(target=guarded, args=each) for each in [*work, (shop.update,)]]
    for thread in threads:
        thread.start()
    end = time.monotonic() + seconds
    while time.monotonic() < end and not shop.end.is_set():
        time.sleep(0.05)
    shop.end.set()
    for thread in threads:
        thread.join()
    visible, expected = {*recommender.item_vectors()["item"]}, shop.expected()
    wrong = ("removed items shown", "items without an id", "updates not seen")
    faults = [f"{shop.counts[name]:,} {name}" for name in wrong if shop.counts[name]]
    if visible != expected:
        faults.append(f"{len(visible):,} items are visible instead of {len(expected):,}")
    return shop.counts, errors + faults


def trials(sandbox: Sandbox, rng: random.Random) -> Iterator[tuple[str, list[str]]]:
    """Endless trials of three seconds: (description, faults)."""
    while True:
        recommender = bt.Recommender.load(sandbox.reference / "run")
        yield "threads", run_threads(recommender, 3.0, rng.randrange(1 << 20))[1]
