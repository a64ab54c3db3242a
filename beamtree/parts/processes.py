"""What fitting a part needs to know of other processes: here there are none. `beamtree.distributed` has several."""

from collections.abc import Sequence
from typing import TypeVar

from torch import Tensor

from beamtree.closed_form.part_weights import Candidates
from beamtree.model import BatchPart

T = TypeVar("T")


class Processes:
    """One process. With several, all of them call every method, in the same order."""

    is_single = True  # whether this is the only process
    rank = 0  # of this process
    candidates: type[Candidates] = Candidates

    def broadcast(self, value: T) -> T:
        """The value of the first process: a choice that everything after it depends on."""
        return value

    def share(self, total: int) -> BatchPart:
        """This process's rows of a batch."""
        return BatchPart(0, total, total)

    def sum_gradients(self, weights: Sequence[Tensor]) -> None:
        """Give every process the sums of the gradients of weights that all have."""


ALONE = Processes()
