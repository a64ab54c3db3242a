"""Small logs whose structure is known."""

import random

import numpy as np
import polars as pl
import torch

from beamtree.data import Events
from beamtree.data.ids import write_ids
from beamtree.data.prepared import write_folder
from beamtree.tree import PAD


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
