"""A simulated market that resembles a real one: users whose interests drift along a hidden tree of categories.

Items lie on a line, popular and rare ones mixed, and the line is divided into a tree of categories, DEPTH levels deep.
A user has a few interests, each a category of the lowest level. From one phase of the user's events to the next, an
interest stays, moves to a sibling or, rarely, to a cousin. An event draws an item, mostly from an interest, sometimes
from a sibling of it, sometimes from the whole market. All draws are by popularity, so an item's share of the events is
its weight, and Zipf's law holds whatever the users do.

With contexts, a user has a country and uses several devices, and some items are sold in one country or at some hours of
the day. An event that draws an item which its context does not sell draws again, a few times.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain, count, islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from polars.io.plugins import register_io_source

from beamtree.files.atomic import check_replaceable, check_writable
from beamtree.files.staging import move_into_place, staging_folder

DEPTH = 4  # levels of categories below the whole market
ITEM = DEPTH + 1  # the level of the items themselves
CATEGORY = 60  # items in a category of the lowest level, about
ZIPF = 0.67  # the r-th item weighs r^-ZIPF: the top 1 % of items have 0.01^(1 - ZIPF) = 22 % of the events
SPREAD = 1.164  # σ of log-normal events per user: the 99th percentile is 15 times the median
INTERESTS = (0.6, 0.3, 0.1)  # probabilities of a user's first, second and third interest
PHASE = 8  # events from one phase to the next, on average
STAY, SIBLING = 0.6, 0.3  # probabilities that an interest stays or moves to a sibling; else it moves to a cousin
INSIDE, BESIDE = 0.7, 0.2  # probabilities of an event from the interest or a sibling; else it is from anywhere
FIRST_DAY, YEAR = 1_700_000_000, 365 * 86_400  # users arrive within a year; seconds since 1970
PAUSE = 21_600.0  # seconds between a user's events, on average
COUNTRIES = {"DE": 0.4, "FR": 0.25, "US": 0.2, "JP": 0.15}  # and the share of the users in each
DEVICES = {"phone": 0.6, "desktop": 0.3, "tablet": 0.1}  # and the share of the events on each
LOCAL, DAILY = 0.4, 0.2  # shares of the items that are sold in one country, and at some hours of the day
DAYPART = 6  # hours in which such an item is sold
DRAWS = 8  # of an event, at most, for an item that its context sells
BLOCK = 1 << 20  # events drawn at once; another number gives another market
PART = 8  # blocks in a part file

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Market:
    """Items by their position on the line, and the categories over them."""

    number: Ints  # the number in an item's id, unrelated to its position [M]
    edges: list[Floats]  # of each level: the weight before each category, and at level ITEM before each item
    arity: int  # categories below a category

    def draw(self, category: Ints, level: int, below: int, chance: Floats) -> Ints:
        """Draw a category or item of level `below` in each category of `level`, by popularity; chance is in [0, 1)."""
        low, high = self.edges[level][category], self.edges[level][category + 1]
        return _search(self.edges[below], low + chance * (high - low))

    def paths(self) -> pl.Series:
        """The category of every item on the line, as a path such as 3/1/4/2 [M]."""
        leaf = pl.Series(np.arange(self.arity**DEPTH))
        steps = [(leaf // self.arity**level % self.arity).cast(pl.String) for level in reversed(range(DEPTH))]
        path = pl.select(pl.concat_str(steps, separator="/")).to_series()
        return path.gather(self.categories())

    def categories(self) -> Ints:
        """The number of the category of every item on the line [M]."""
        number: Ints = np.arange(len(self.number)) * self.arity**DEPTH // len(self.number)
        return number


@dataclass(frozen=True)
class Sales:
    """Where and when each item is sold, by its position [M]."""

    kind: Floats  # in [0, 1): below LOCAL in one country only, below LOCAL + DAILY at some hours only
    country: Ints
    opens: Ints  # the first of these hours

    @classmethod
    def draw(cls, items: int, rng: np.random.Generator) -> "Sales":
        """Drawn at random."""
        return cls(rng.random(items), rng.integers(len(COUNTRIES), size=items), rng.integers(24, size=items))

    def sell(self, position: Ints, country: Ints, hour: Ints) -> NDArray[np.bool_]:
        """Whether items are sold to countries at hours [E]."""
        kind = self.kind[position]
        abroad = (kind < LOCAL) & (self.country[position] != country)
        is_daily = (kind >= LOCAL) & (kind < LOCAL + DAILY)
        sold: NDArray[np.bool_] = ~(abroad | (is_daily & ((hour - self.opens[position]) % 24 >= DAYPART)))
        return sold


def simulate(
    out: Path,
    *,
    users: int,
    items: int,
    events: int,
    seed: int = 0,
    contexts: bool = False,
    on_events: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    """Write a market as Parquet: a file if `out` ends in .parquet, else a folder of part files.

    The columns are user, item and timestamp (seconds), and with contexts country and device, user by user, the oldest
    event first. A file beside it, NAME.items.parquet, has every item's category and name. Returns a description of the
    market.

    Args:
        out: the file or folder to write.
        users: how many.
        items: how many.
        events: how many.
        seed: same seed, same market.
        contexts: whether some items are sold in one country, or at some hours, only.
        on_events: called with the number of events written since the last call.
    """
    _check_options(out, users, items, events, seed)
    rng = np.random.default_rng(seed)
    market = _draw_market(items, rng)
    counts = _events_per_user(users, events, rng)
    item_ids = _ids("i", market.number)
    sold = np.zeros(items, np.int64)
    sales = Sales.draw(items, np.random.default_rng([seed, 0])) if contexts else None

    def frames() -> Iterator[pl.DataFrame]:
        for block, (first, last) in enumerate(_blocks(counts)):
            block_rng = np.random.default_rng([seed, block + 1])
            user, leaf, position, time = _draw_events(market, counts[first:last], block_rng)
            more: dict[str, pl.Series] = {}
            if sales is not None:
                position, more = _in_context(market, sales, user, leaf, position, time, block_rng)
            sold[:] += np.bincount(position, minlength=items)
            user_ids = _ids("u", np.arange(first, last))
            columns = {"user": user_ids.gather(user), "item": item_ids.gather(position), "timestamp": time}
            yield pl.DataFrame(columns | more)
            if on_events is not None:
                on_events(len(user))

    names = item_names(pl.Series(market.categories()), market.arity)
    catalogue = pl.DataFrame({"item": item_ids, "category": market.paths(), "name": names}).sort("item")
    with _drafts(items_file(out), out) as (items_draft, draft):
        catalogue.write_parquet(items_draft)
        if out.suffix == ".parquet":
            _write(frames(), draft)
        else:
            _write_parts(frames(), draft)
    return {
        "users": users,
        "items": items,
        "events": events,
        "seed": seed,
        "categories": market.arity**DEPTH,
        "items_with_events": int((sold > 0).sum()),
        "top_percent_share": float(np.sort(sold)[-max(1, items // 100) :].sum() / events),
        "events_per_user": {"median": float(np.median(counts)), "p99": float(np.percentile(counts, 99))},
    }


def items_file(out: Path) -> Path:
    """The file of a market's categories: beside it, since a folder of events has no other files."""
    return out.with_name(out.name.removesuffix(".parquet") + ".items.parquet")


def _check_options(out: Path, users: int, items: int, events: int, seed: int) -> None:
    for name, number in (("users", users), ("items", items)):
        if number < 1:
            raise ValueError(f"{name}={number}: a market needs at least one")
    if events < users:
        raise ValueError(f"events={events} with users={users}: every user has at least one event")
    if seed < 0:
        raise ValueError(f"seed={seed} is negative")
    if out.suffix == ".parquet":
        check_writable(out)
        return
    check_replaceable(out)
    if out.exists() and not all(part.match("part-*.parquet") for part in out.iterdir()):
        raise ValueError(f"{out} exists and holds something else: choose another name")


def _draw_market(items: int, rng: np.random.Generator) -> Market:
    arity = max(1, round((items / CATEGORY) ** (1 / DEPTH)))
    weight = np.arange(1, items + 1, dtype=np.float64) ** -ZIPF
    rng.shuffle(weight)
    before = np.concatenate([[0.0], weight.cumsum()])  # [M + 1]
    edges = [before[-(-np.arange(arity**level + 1) * items // arity**level)] for level in range(ITEM)]
    return Market(rng.permutation(items), [*edges, before], arity)


def _events_per_user(users: int, events: int, rng: np.random.Generator) -> Ints:
    """At least one each, and `events` in all [U]."""
    ends = rng.lognormal(sigma=SPREAD, size=users).cumsum()
    ends *= (events - users) / ends[-1]
    ends[-1] = events - users
    more: Ints = np.diff(np.floor(ends).astype(np.int64), prepend=0)
    return 1 + more


def _blocks(counts: Ints) -> Iterator[tuple[int, int]]:
    """The first user, and the one after the last, of each block of about BLOCK events."""
    ends = counts.cumsum()
    edges = np.searchsorted(ends, np.arange(BLOCK, ends[-1], BLOCK))
    return pairwise(np.unique([0, *edges, len(counts)]).tolist())


def _draw_events(market: Market, counts: Ints, rng: np.random.Generator) -> tuple[Ints, Ints, Ints, Ints]:
    """The user (counted from the first), the item's category and position and the time of all events of some users."""
    user = np.repeat(np.arange(len(counts)), counts)  # [E]
    starts = counts.cumsum() - counts
    begins = rng.random(len(user)) < 1 / PHASE
    begins[starts] = True
    phase = begins.cumsum() - 1  # [E]
    interests = _draw_interests(market, user[begins], phase[starts], rng)  # [phases, 3]
    which = np.searchsorted(np.cumsum(INTERESTS[:-1]), rng.random(len(user)), side="right")
    leaf = interests[phase, which]
    where = rng.random(len(user))
    beside = np.flatnonzero((where >= INSIDE) & (where < INSIDE + BESIDE))
    leaf[beside] = market.draw(leaf[beside] // market.arity, DEPTH - 1, DEPTH, rng.random(len(beside)))
    anywhere = np.flatnonzero(where >= INSIDE + BESIDE)
    leaf[anywhere] = market.draw(np.zeros_like(anywhere), 0, DEPTH, rng.random(len(anywhere)))
    position = market.draw(leaf, DEPTH, ITEM, rng.random(len(user)))
    return user, leaf, position, _draw_times(user, starts, rng)


def _in_context(
    market: Market, sales: Sales, user: Ints, leaf: Ints, position: Ints, time: Ints, rng: np.random.Generator
) -> tuple[Ints, dict[str, pl.Series]]:
    """The positions of the items of events [E], drawn again where a context does not sell them; and the contexts."""
    country = rng.choice(len(COUNTRIES), size=user.max() + 1, p=list(COUNTRIES.values()))[user]
    device = rng.choice(len(DEVICES), size=len(user), p=list(DEVICES.values()))
    hour = time // 3600 % 24
    for _ in range(DRAWS):
        refused = np.flatnonzero(~sales.sell(position, country, hour))
        position[refused] = market.draw(leaf[refused], DEPTH, ITEM, rng.random(len(refused)))
    names = {"country": (COUNTRIES, country), "device": (DEVICES, device)}
    return position, {column: pl.Series(list(of)).gather(number) for column, (of, number) in names.items()}


def _draw_interests(market: Market, user: Ints, firsts: Ints, rng: np.random.Generator) -> Ints:
    """The interests in each phase [phases, 3]; `firsts` are the users' first phases."""
    interests = []
    for _ in INTERESTS:
        move = rng.random(len(user))
        move[firsts] = 1.0
        home = market.draw(np.zeros_like(firsts), 0, DEPTH - 2, rng.random(len(firsts)))
        parent = market.draw(home[user], DEPTH - 2, DEPTH - 1, rng.random(len(user)))
        parent = _carry_forward(parent, move >= STAY + SIBLING)
        leaf = market.draw(parent, DEPTH - 1, DEPTH, rng.random(len(user)))
        interests.append(_carry_forward(leaf, move >= STAY))
    return np.stack(interests, axis=1)


def _carry_forward(values: Ints, drawn: NDArray[np.bool_]) -> Ints:
    """Each value replaced by the last one that is drawn; the first always is."""
    return values[np.maximum.accumulate(np.where(drawn, np.arange(len(values)), 0))]


def _draw_times(user: Ints, starts: Ints, rng: np.random.Generator) -> Ints:
    """Times in seconds, ascending along each user's events [E]."""
    since: Ints = (1 + rng.exponential(PAUSE, len(user)).astype(np.int64)).cumsum()
    arrival = FIRST_DAY + rng.integers(YEAR, size=len(starts))
    return since + (arrival - since[starts])[user]


def _search(edges: Floats, weight: Floats) -> Ints:
    """The interval between edges that contains each weight."""
    order = weight.argsort()  # searching in order is cache-friendly: five times faster over millions of items
    index = np.empty(len(weight), np.int64)
    index[order] = np.searchsorted(edges, weight[order], side="right") - 1
    return np.minimum(index, len(edges) - 2)  # a sum may round up to the last edge


def _ids(letter: str, numbers: Ints) -> pl.Series:
    """Ids such as i0004567."""
    digits = pl.lit(pl.Series(numbers)).cast(pl.String).str.zfill(7)
    return pl.select(pl.format(letter + "{}", digits)).to_series()


@contextmanager
def _drafts(*outs: Path) -> Iterator[tuple[Path, ...]]:
    """Temporary paths, which are moved into place at the end and removed after an error."""
    with ExitStack() as stack:
        drafts = tuple(stack.enter_context(staging_folder(out)) / out.name for out in outs)
        try:
            yield drafts
        except pl.exceptions.PolarsError as error:  # such as a full disk
            raise OSError(f"{outs[-1]} cannot be written: {error}") from error
        for out, draft in zip(outs, drafts, strict=True):
            move_into_place(draft, out)


def _write(frames: Iterator[pl.DataFrame], path: Path) -> None:
    """Stream frames into a file."""
    first = next(frames)

    def source(*_: object) -> Iterator[pl.DataFrame]:
        return chain([first], frames)

    register_io_source(source, schema=first.schema).sink_parquet(path, compression_level=1)


def _write_parts(frames: Iterator[pl.DataFrame], folder: Path) -> None:
    folder.mkdir()
    for part in count():
        first = next(frames, None)
        if first is None:
            return
        _write(chain([first], islice(frames, PART - 1)), folder / f"part-{part:05}.parquet")


# Names of items

PLACES = ("garden", "kitchen", "office", "bedroom", "workshop", "boat", "studio", "school", "nursery", "camp", "hall")
THINGS = ("lamp", "chair", "kettle", "clock", "basket", "shelf", "mirror", "blanket", "box", "bench", "jug", "tray")
MATERIALS = ("oak", "steel", "linen", "glass", "wool", "copper", "paper", "clay", "cork", "leather", "silk", "stone")
COLOURS = ("red", "blue", "green", "white", "black", "yellow", "grey", "brown", "orange", "violet", "silver", "pink")
WORDS = (PLACES, THINGS, MATERIALS, COLOURS)


def item_names(category: pl.Series, arity: int) -> pl.Series:
    """Names such as "red oak lamp for the garden, 17", from the sorted category numbers of the items [M].

    A category is a path of `arity` choices on each of four levels, and each choice is a word. If there are more choices
    than words, words are repeated with a number.
    """
    chosen = []
    for level, words in enumerate(WORDS):
        digit = category // arity ** (len(WORDS) - 1 - level) % arity
        chosen.append(pl.Series([_word(words, n) for n in range(arity)]).gather(digit))
    place, thing, material, colour = chosen
    number = (pl.int_range(pl.len()).over("category") + 1).cast(pl.String)
    frame = pl.DataFrame({"category": category, "place": place, "thing": thing, "material": material, "colour": colour})
    name = pl.format("{} {} {} for the {}, {}", "colour", "material", "thing", "place", number)
    return frame.select(name).to_series()


def _word(words: tuple[str, ...], n: int) -> str:
    repeat, index = divmod(n, len(words))
    return f"{words[index]} {repeat + 1}" if repeat else words[index]
