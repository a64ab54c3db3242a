"""When items began: with their first event in the log, or when they were added; and how old they are at a time."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from beamtree.data.inputs import NO_TIME
from beamtree.data.times import DAY

AGE = "age_days"  # what expressions call the age of an item
NO_AGES = f"{AGE}: items have no age, because this model has no log whose times are dates or Unix times"


@dataclass(frozen=True, eq=False)
class ItemStarts:
    """When each item began, in seconds since 1970. It never changes: `changed` makes another one."""

    of_log: Callable[[], np.ndarray]  # of the items of a log, NO_TIME for one without events; read when it is needed
    added: Mapping[int, int] = field(default_factory=dict)  # of items that were added since

    def changed(self, items: Sequence[int], seconds: Sequence[int]) -> "ItemStarts":
        """The same with items that were added."""
        return ItemStarts(self.of_log, {**self.added, **dict(zip(items, seconds, strict=True))})

    def seconds(self, count: int) -> np.ndarray:
        """Those of the first items, NO_TIME where it is not known [count]."""
        result, of_log = np.full(count, NO_TIME), self.of_log()[:count]
        result[: len(of_log)] = of_log
        known = {item: at for item, at in self.added.items() if item < count}
        result[list(known)] = list(known.values())
        return result

    def ages(self, count: int, time: int) -> np.ndarray:
        """How many days old the first items are at a time: 0 before they began, NaN where it is not known [count]."""
        starts = self.seconds(count)
        return np.where((starts == NO_TIME) | (time == NO_TIME), np.nan, np.maximum(time - starts, 0) / DAY)
