"""Parts of users answered on Ray: each worker loads the model once, and takes a part whenever it is free."""

from collections.abc import Iterator, Sequence
from typing import Any

from beamtree.answers.answer import Tally
from beamtree.answers.parts import Answerer, Part, Work
from beamtree.answers.question import Question
from beamtree.bulk.cluster import TRIES, Cluster, check_mark, mark, plain_errors


class Worker:
    """An `Answerer` in a process of its own."""

    def __init__(self, theirs: str, question: Question, device: str) -> None:
        self.theirs, self.answerer = theirs, Answerer(question, device)

    def answer(self, part: Part) -> Tally:
        """Write the answers to one part."""
        check_mark(self.theirs)
        return self.answerer.answer(part)


def on_cluster(cluster: Cluster, device: str, gpus: float | None = None) -> Work:
    """Work that is done by the workers of a cluster.

    Args:
        cluster: where they are.
        device: what each computes on.
        gpus: how much of a GPU each takes; unless given, a whole one on cuda, else none.
    """
    share = (0.0 if device == "cpu" else 1.0) if gpus is None else gpus
    there = cluster.resources.get("GPU", 0.0)
    if share > there:
        raise ValueError(f"gpus={share:g}: a worker needs as much, and the cluster has {there:g}")
    most = cluster.workers if not share else min(cluster.workers, int(there / share))

    def work(question: Question, parts: Sequence[Part]) -> Iterator[Tally]:
        kind = cluster.ray.remote(num_cpus=1, num_gpus=share, max_restarts=TRIES, max_task_retries=TRIES)(Worker)
        free = [kind.remote(mark(), question, device) for _ in range(min(most, len(parts)))]
        waiting, busy = list(parts)[::-1], dict[Any, Any]()
        while waiting or busy:
            while waiting and free:
                worker = free.pop()
                busy[worker.answer.remote(waiting.pop())] = worker
            done, _ = cluster.ray.wait(list(busy))
            with plain_errors():
                tally: Tally = cluster.ray.get(done[0])
            free.append(busy.pop(done[0]))
            yield tally

    return work
