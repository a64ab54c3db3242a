"""Several ranks on this machine, as torchrun would start them."""

import multiprocessing
import os
import socket
import traceback

import torch

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
