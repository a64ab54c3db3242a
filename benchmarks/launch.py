"""The same program on several ranks of one thread on this machine, as torchrun would start them."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def measured(size: int, words: Sequence[str] = (), **variables: str) -> list[dict[str, float]]:
    """What each of some ranks of this very program measured: the last line that it prints, as JSON."""
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(size), **variables}
    started = []
    for rank in range(size):
        own = {**os.environ, **where, "RANK": str(rank), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, *sys.argv, *words]
        started.append(subprocess.Popen(command, env=own, stdout=subprocess.PIPE, text=True))
    answers = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        raise SystemExit("a rank failed")
    return [json.loads(answer.splitlines()[-1]) for answer in answers]
