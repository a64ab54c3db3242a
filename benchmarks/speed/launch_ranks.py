"""Start the same program on several ranks of one thread on this machine, as torchrun would."""

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


def run_ranks(size: int, words: Sequence[str] = (), **variables: str) -> list[dict[str, float]]:
    """Run this program on several ranks. Returns the last line that each prints, read as JSON."""
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(size), **variables}
    processes = []
    for rank in range(size):
        environment = {**os.environ, **group, "RANK": str(rank), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, *sys.argv, *words]
        processes.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
    outputs = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise SystemExit("a rank failed")
    return [json.loads(output.splitlines()[-1]) for output in outputs]
