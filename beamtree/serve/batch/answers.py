"""Parts of users answered on Ray: each worker loads the model once, and takes a part whenever it is free."""

from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from beamtree.answers.answer import Tally
from beamtree.answers.parts import Answerer, Part, Work
from beamtree.answers.question import Question
from beamtree.serve.batch.cluster import TRIES, Cluster, await_worker, check_mark, mark, plain_errors


class Worker:
    """An `Answerer` in a process of its own."""

    def __init__(self, theirs: str, question: Question, device: str) -> None:
        self.theirs, self.answerer = theirs, Answerer(question, device)

    def start(self) -> None:
        """Say that there is a place for this worker; a ValueError where it has other versions."""
        check_mark(self.theirs)

    def answer(self, part: Part) -> Tally:
        """Write the answers to one part."""
        self.start()  # it may have been started anew, on another machine
        return self.answerer.answer(part)


def on_cluster(cluster: Cluster, device: str, gpus: float | None = None) -> Work:
    """Work that is done by the workers of a cluster.

    Args:
        cluster: where they are.
        device: what each computes on, cpu or cuda; which GPU is Ray's choice.
        gpus: how much of a GPU each takes; unless given, a whole one on cuda, else none.
    """
    if device not in ("cpu", "cuda"):
        raise ValueError(f"device={device}: choose cpu or cuda; Ray gives each worker its GPU")
    share = (0.0 if device == "cpu" else 1.0) if gpus is None else gpus
    there = cluster.resources.get("GPU", 0.0)
    if share > 1:
        raise ValueError(f"gpus={share:g}: a worker computes on one GPU, so give 1 or less")
    if share > there and device == "cpu":
        raise ValueError(f"gpus={share:g}: a worker on cpu needs no GPU, and the cluster has none: leave gpus out")
    if share > there:
        raise ValueError(f"device={device}: a worker takes {share:g} GPU, and the cluster has none: choose device=cpu")
    most = cluster.workers if not share else min(cluster.workers, int(there / share))

    def work(question: Question, parts: Sequence[Part]) -> Iterator[Tally]:
        # Over many parts a worker may be lost many times, over the same part only so often.
        kind = cluster.ray.remote(num_cpus=1, num_gpus=share, max_restarts=-1, max_task_retries=TRIES)(Worker)
        workers = [kind.remote(mark(), _anywhere(question), device) for _ in range(min(most, len(parts)))]
        # There may be no place for some of them, so who has started takes a part. Nobody keeps who has none: a place
        # is needed where another worker was lost.
        busy = {worker.start.remote(): worker for worker in workers}
        del workers
        await_worker(cluster.ray, list(busy), "GPU" if share else "CPU")
        waiting, left = deque(parts), len(parts)
        while left:
            (told,), _ = cluster.ray.wait(list(busy))
            with plain_errors():
                tally: Tally | None = cluster.ray.get(told)
            worker = busy.pop(told)
            if waiting:
                busy[worker.answer.remote(_anywhere(waiting.popleft()))] = worker
            del worker
            if tally is not None:
                left -= 1
                yield tally

    return work


def _anywhere(asked: Any) -> Any:
    """The same with paths that do not depend on the folder of a process."""
    return asked._replace(**{name: each.absolute() for name, each in asked._asdict().items() if isinstance(each, Path)})
