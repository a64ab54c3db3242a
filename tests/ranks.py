"""Several ranks on this machine, as torchrun would start them."""

import multiprocessing
import os
import socket
import traceback

import torch

from beamtree.distributed.sharded_table import ShardedTable
from beamtree.distributed.sharding import is_sharded
from beamtree.distributed.training import join

# Ranks are copies of one process that has imported all of this once: that takes seconds, and a copy none.
FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(["beamtree", "pytest"])


def run_ranks(size, work, *arguments, seconds=120):
    """What `work(*arguments)` returns on each of some ranks: plain things, such as lists and numbers."""
    found, port = FORKED.Queue(), free_port()
    ranks = [FORKED.Process(target=_begin, args=(rank, size, port, found, work, arguments)) for rank in range(size)]
    for process in ranks:
        process.start()
    try:
        results = dict(_answer(found, seconds) for _ in ranks)
    finally:
        for process in ranks:
            process.join(10)
            process.kill()
    return [results[rank] for rank in range(size)]


def _answer(found, seconds):
    rank, good, value = found.get(timeout=seconds)
    assert good, f"rank {rank}: {value}"
    return rank, value


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def environment(rank, size, port):
    """What torchrun tells a rank."""
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    return where | {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size)}


def _begin(rank, size, port, found, work, arguments):
    os.environ.update({"BEAMTREE_TIME_LIMIT": "60"} | environment(rank, size, port))
    torch.set_num_threads(1)
    try:
        found.put((rank, True, work(*arguments)))
    except BaseException:
        found.put((rank, False, traceback.format_exc()))


def whole(model):
    """All weights of a model, of whichever rank they are."""
    weights = {name: value.tolist() for name, value in model.scorer.state_dict().items()}
    if is_sharded(model):
        table = model.scorer.table
        assert isinstance(table, ShardedTable)
        rows = torch.zeros(table.num_nodes, table.weight.shape[1], dtype=table.weight.dtype)
        ranks = table.shard.ranks
        for place, (nodes, own) in enumerate(table.shard.spans()):
            if place or ranks.is_first:
                rows[nodes.start : nodes.stop] = table.weight.detach()[own]
        weights["table.weight"] = ranks.sum_(rows).tolist()
    return weights


def farthest(one, other):
    one, other = (
        {name: torch.tensor(value, dtype=torch.float64) for name, value in each.items()} for each in (one, other)
    )
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def errors_of(work, *arguments):
    join()
    try:
        work(*arguments)
    except (ValueError, OSError) as error:
        return str(error)
    return ""
