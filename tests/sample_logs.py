"""Small logs whose structure is known."""

import random

import polars as pl
import torch


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
