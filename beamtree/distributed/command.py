"""A command over ranks: the first runs it, and the others hold their parts of its models."""

import os
from collections.abc import Callable
from pathlib import Path

import torch

from beamtree import __version__
from beamtree.distributed.group import LostError, Ranks, join
from beamtree.distributed.load_shard import load_part
from beamtree.distributed.remote_search import Lead, follow
from beamtree.model import TreeModel, check_device
from beamtree.storage.settings import fingerprint
from beamtree.train.runs import check_run, open_model

OpenModel = Callable[[Path], TreeModel]


def wherever(command: str, run: Path, device: str, work: Callable[[OpenModel], None]) -> None:
    """Run a command that searches: alone, or on the first of the ranks that torchrun started."""
    now = join(device)
    if now.size > 1:
        over_ranks(now, command, run, device, work)
    else:
        work(lambda folder: open_model(folder, device))


def over_ranks(
    now: Ranks,
    command: str,
    run: Path,
    device: str,
    work: Callable[[OpenModel], None],
    on_lost: Callable[[LostError], None] | None = None,
) -> None:
    """Run a command on the first of several ranks.

    Args:
        now: the ranks.
        command: what it is called.
        run: the run that this rank was given; others beside it may be opened too.
        device: where this rank searches.
        work: what it does; it opens runs as it is told.
        on_lost: hears of a rank that ended.
    """
    beside = run.absolute().parent

    def open_part(name: str) -> tuple[TreeModel, str]:
        folder = beside / name
        check_run(folder)
        check_device(device)
        here = f"cuda:{torch.cuda.current_device()}" if device == "cuda" else device
        return load_part(folder, now, here), fingerprint(folder)

    now.same(beamtree=__version__, command=command, run=run.absolute().name, device=device)
    if not now.is_first:
        follow(now, open_part)
        return
    lead = Lead(now, open_part, on_lost)
    try:
        work(lambda folder: lead.open(os.path.relpath(folder.absolute(), beside)))
    finally:
        lead.close()
