"""Small logs whose structure is known."""

import datetime
import random
from itertools import pairwise

import numpy as np
import polars as pl
import torch

from beamtree import PAD
from beamtree.data import Events
from beamtree.data.ids import write_ids
from beamtree.data.prepared import write_folder


def cyclic_log(users=120, items=60, seed=0, repeats=False):
    """Each user walks around the ten items of one of six groups, most often to the next one."""
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for user in range(users):
        position, group = int(torch.randint(10, (1,), generator=generator)), user % 6
        for time in range(12):
            rows.append((f"u{user:03}", f"i{(group * 10 + position) % items:02}", time))
            position = (position + (0 if repeats and time % 2 else 1)) % 10
    return pl.DataFrame(rows, schema=["user", "item", "time"], orient="row")


def random_log(prefix="i", users=20, items=25, seed=0):
    """Twelve events of each user, without times."""
    draw = random.Random(seed)
    rows = [(f"u{user}", f"{prefix}{draw.randrange(items)}") for user in range(users) for _ in range(12)]
    return pl.DataFrame(rows, schema=["user", "item"], orient="row")


def shelf_log(users=300, seed=0):
    """Every user has twenty to thirty of the forty items of a shelf, in no order."""
    draw = np.random.default_rng(seed)
    rows = [
        (f"u{user:03}", f"i{user % 4 * 40 + item:03}")
        for user in range(users)
        for item in draw.permutation(40)[: draw.integers(20, 31)]
    ]
    return pl.DataFrame(rows, schema=["user", "item"], orient="row")


def write_log(folder, rows):
    """Write (user, item, time) to a file in the folder; returns its path."""
    path = folder / "log.parquet"
    pl.DataFrame(rows, schema=["user", "item", "time"], orient="row").write_parquet(path)
    return path


def random_events(seed, users=40, longest=20, items=30):
    """Events of which small items have most, and the last two items none."""
    generator = torch.Generator().manual_seed(seed)
    counts = torch.randint(1, longest, (users,), generator=generator)
    chosen = (torch.rand(int(counts.sum()), generator=generator) ** 2 * (items - 2)).int()
    return Events(torch.nn.functional.pad(counts.cumsum(0), (1, 0)), chosen, "test")


def random_histories(seed, rows=6, length=5, items=30):
    """Histories with gaps; the first is empty."""
    generator = torch.Generator().manual_seed(seed + 1)
    x = torch.randint(0, items, (rows, length), generator=generator)
    x[torch.rand(x.shape, generator=generator) < 0.3] = PAD
    x[0] = PAD
    return x


def write_prepared(folder, events, item_ids, user_ids, **sections):
    """A folder of prepared data with so many users in each of `train`, `val` and `test`."""

    def fill(draft):
        np.save(draft / "offsets.npy", events.offsets.numpy())
        np.save(draft / "events.npy", events.items.numpy().astype(np.int32))
        write_ids(draft / "items.txt", item_ids)
        write_ids(draft / "users.txt", user_ids)
        return {"num_users": len(events), "num_items": len(item_ids), "users": sections}

    write_folder(folder, fill)


def some_events(counts, num_items, seed=0):
    generator = torch.Generator().manual_seed(seed)
    offsets = torch.tensor([0, *counts]).cumsum(0)
    return Events(offsets, torch.randint(num_items, (int(offsets[-1]),), generator=generator), "some")


def walks(users, items, length):
    """Users who walk around a ring of items, each with a stride of their own: only the order tells the next item."""
    generator = torch.Generator().manual_seed(0)
    start = torch.randint(items, (users, 1), generator=generator)
    stride = torch.tensor([1, 2, 3, 5, 7])[torch.randint(5, (users, 1), generator=generator)]
    item = (start + stride * torch.arange(length)) % items
    user, time = torch.meshgrid(torch.arange(users), torch.arange(length), indexing="ij")
    columns = {"user": user, "item": item, "time": time}
    return pl.DataFrame({name: column.flatten().numpy() for name, column in columns.items()})


def tours(users, items, length, leaps=0.2):
    """Users who follow one of four orders of the items, and sometimes leap: two items tell which, and so the next one.

    In a walk around a ring pairs of directions of taste are equally strong, and rounding chooses from each pair. Here
    no two are, so that fits which round otherwise find the same.
    """
    draw = np.random.default_rng(0)
    following = np.stack([draw.permutation(items) for _ in range(4)])

    def anywhere():
        return (items * draw.random(users) ** 1.5).astype(int)

    order, item, columns = draw.integers(4, size=users), anywhere(), []
    for _ in range(length):
        columns.append(item)
        item = np.where(draw.random(users) < leaps, anywhere(), following[order, item])
    user, time = np.meshgrid(np.arange(users), np.arange(length), indexing="ij")
    return pl.DataFrame({"user": user.ravel(), "item": np.stack(columns, axis=1).ravel(), "time": time.ravel()})


DEVICES = ("phone", "desktop")

FIRST_TIME = 1_700_000_000


def device_log(users=300, pairs=60, seed=0, useful=True):
    """Each user likes some pairs of items: the first of a pair is chosen on the phone, the second on the desktop."""
    draw = np.random.default_rng(seed)
    rows = []
    for user in range(users):
        liked = draw.choice(pairs, 12, replace=False)
        for t in range(int(draw.integers(8, 24))):
            device = int(draw.integers(2))
            item = 2 * int(draw.choice(liked)) + (device if useful else int(draw.integers(2)))
            rows.append((f"u{user}", f"i{item:03}", FIRST_TIME + 5000 * t, DEVICES[device], "x" if t % 3 else None))
    return pl.DataFrame(rows, schema=["user", "item", "timestamp", "device", "other"], orient="row")


ITEM_NAMES = [f"i{number:02}" for number in range(60)]


def shop_table():
    """The price of item n is n, its stock n % 4, and its brand one of five."""
    return pl.DataFrame(
        {
            "item": ITEM_NAMES,
            "name": [f"Title {number}" for number in range(60)],
            "category": [f"group {number // 10}" for number in range(60)],
            "price": range(60),
            "stock": [number % 4 for number in range(60)],
            "brand": [f"brand {number % 5}" for number in range(60)],
            "new": [number % 2 == 0 for number in range(60)],
            "released": [datetime.date(2026, 1, 1) + datetime.timedelta(number) for number in range(60)],
            "genres": [["all", f"genre {number % 3}"] for number in range(60)],
        }
    )


def repeating_events(users=30, longest=9, seed=0, num_items=12):
    """Users with 2 to 9 events, repeats among them."""
    generator = torch.Generator().manual_seed(seed)
    counts = torch.randint(2, longest + 1, (users,), generator=generator)
    items = torch.randint(num_items, (int(counts.sum()),), generator=generator).int()
    return Events(torch.nn.functional.pad(counts.cumsum(0), (1, 0)), items, "made up")


def by_user(events):
    return [events.items[a:b].tolist() for a, b in pairwise(events.offsets.tolist())]
