"""Commands that search over ranks: the first runs the command, and the others hold their parts of its models."""

import os
from collections.abc import Callable
from pathlib import Path

import torch

from beamtree import __version__
from beamtree.checks import check_device
from beamtree.distributed.group import PeerLostError, Ranks, connect
from beamtree.distributed.load_shard import load_part
from beamtree.distributed.remote_search import Coordinator, follow
from beamtree.model import TreeModel
from beamtree.storage.runs import check_run, open_model
from beamtree.storage.settings import fingerprint

OpenModel = Callable[[Path], TreeModel]


def run_command(command: str, run: Path, device: str, work: Callable[[OpenModel], None]) -> None:
    """Run a command that searches: alone, or on the first of the ranks that torchrun started."""
    ranks = connect(device)
    if ranks.size > 1:
        run_on_first(ranks, command, run, device, work)
    else:
        work(lambda folder: open_model(folder, device))


def run_on_first(
    ranks: Ranks,
    command: str,
    run: Path,
    device: str,
    work: Callable[[OpenModel], None],
    on_lost: Callable[[PeerLostError], None] | None = None,
) -> None:
    """Run a command on the first of several ranks.

    Args:
        ranks: the ranks.
        command: its name.
        run: the run of this rank; others in the same folder can be opened too.
        device: where this rank searches.
        work: the command, as a function of a function that opens runs.
        on_lost: called when a rank has ended.
    """
    parent = run.absolute().parent

    def open_part(name: str) -> tuple[TreeModel, str]:
        folder = parent / name
        check_run(folder)
        check_device(device)
        where = f"cuda:{torch.cuda.current_device()}" if device == "cuda" else device
        return load_part(folder, ranks, where), fingerprint(folder)

    ranks.check_equal(beamtree=__version__, command=command, run=run.absolute().name, device=device)
    if not ranks.is_first:
        follow(ranks, open_part)
        return
    coordinator = Coordinator(ranks, open_part, on_lost)
    try:
        work(lambda folder: coordinator.open(os.path.relpath(folder.absolute(), parent)))
    finally:
        coordinator.close()
