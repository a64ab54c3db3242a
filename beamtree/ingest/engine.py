"""Who works on a log, and in what shares: this process, or those of a cluster (`beamtree.serve.batch`)."""

from collections.abc import Callable, Iterable, Iterator
from itertools import starmap
from typing import Any, NamedTuple

Run = Callable[[Callable[..., Any], Iterable[tuple[Any, ...]]], Iterator[Any]]


class Engine(NamedTuple):
    """A way to call a function of this package with many arguments.

    The functions write to files that all can see, whole and under names that depend on the arguments alone. So one that
    is called again, after the process that ran it was lost, does no harm.
    """

    run: Run  # gives the results in the order of the arguments
    rows: int | None  # of the log in one share; None: all in one


HERE = Engine(starmap, None)
