"""What is done about load: when the beam is narrowed, by how much, and when it widens again."""

from beamtree.serve.engine.source import Beam

STEPS = 3  # how often the beam is halved at most
GRACE = 0.05  # seconds in which a narrower beam must show that it helps
QUIET = 0.6  # seconds without a long wait after which a wider beam is tried
SOON = 0.25  # the same where the search has been waiting for work
IDLE = 0.4  # as much of the time at least


def narrowed(beam: Beam, step: int, m: int, tuned: Beam | None = None) -> Beam:
    """A beam after some steps of narrowing: the tuned one first, where there is one, then half of it each time.

    It never gets wider, and no level gets narrower than m: with m nodes on every level m items are found.
    """
    if step == 0:
        return beam
    base, halvings = (tuned, step - 1) if tuned is not None else (beam, step)
    if isinstance(beam, int) and isinstance(base, int):
        return min(beam, max(m, base >> halvings))
    levels = len(beam if isinstance(beam, tuple) else base if isinstance(base, tuple) else ())
    pairs = zip(_widths(beam, levels), _widths(base, levels), strict=True)
    return tuple(min(width, max(m, narrow >> halvings)) for width, narrow in pairs)


def _widths(beam: Beam, levels: int) -> tuple[int, ...]:
    return (beam,) * levels if isinstance(beam, int) else beam


class Pressure:
    """How many steps the beam is narrowed by now.

    A request that waited longer than `slow` seconds narrows the beam. After a while without long waits it widens
    again, sooner where the search has time to spare.
    """

    def __init__(self, slow: float) -> None:
        self.slow, self.step = slow, 0
        self._changed = self._calm = 0.0  # when the step changed, and since when nobody waited long
        self._idle = 0.0  # seconds without work since then

    def feel(self, now: float, waited: float, idle: float) -> int:
        """Tell how long the oldest of a batch waited, and how long the search did before; gives the step."""
        self.rest(idle)
        self._idle += idle
        if waited > self.slow / 2:
            self._calm = now
        if waited > self.slow:
            if self.step < STEPS and now - self._changed > GRACE:
                self._move(self.step + 1, now)
        elif self.step:
            quiet = now - max(self._calm, self._changed)
            spare = self._idle > IDLE * (now - self._changed)
            if quiet > QUIET or (quiet > SOON and spare):
                self._move(self.step - 1, now)
        return self.step

    def rest(self, idle: float) -> int:
        """The step after some seconds in which nothing was asked."""
        self.step = max(0, self.step - int(idle / SOON))
        return self.step

    def _move(self, step: int, now: float) -> None:
        self.step, self._changed, self._idle = step, now, 0.0
