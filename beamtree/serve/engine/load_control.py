"""Load control: narrows the beam while requests wait for long, and widens it again afterwards."""

from beamtree.beam import BeamSize

MAX_STEPS = 3  # how often the beam is halved at most
MIN_STEP_SECONDS = 0.05  # between two steps down: a narrower beam needs time to show its effect
QUIET_SECONDS = 0.6  # without long waits, after which a wider beam is tried
QUIET_SECONDS_IF_SPARE = 0.25  # the same, where the search thread was idle for some of the time
SPARE_FRACTION = 0.4  # of the time


def narrow_beam(beam: BeamSize, step: int, m: int, tuned: BeamSize | None = None) -> BeamSize:
    """The beam after some steps of narrowing: first the tuned one, if there is one, then half of it per step.

    It never gets wider, and no level gets narrower than m: with m nodes on every level m items are found.
    """
    if step == 0:
        return beam
    base, halvings = (tuned, step - 1) if tuned is not None else (beam, step)
    if isinstance(beam, int) and isinstance(base, int):
        return min(beam, max(m, base >> halvings))
    levels = next(len(each) for each in (beam, base) if not isinstance(each, int))
    wide, narrow = ((each,) * levels if isinstance(each, int) else each for each in (beam, base))
    return tuple(min(width, max(m, target >> halvings)) for width, target in zip(wide, narrow, strict=True))


class LoadControl:
    """Decides by how many steps the beam is narrowed.

    A request that waited longer than `degrade_after` seconds narrows the beam by a step. After a while without long
    waits the beam widens by a step, sooner where the search thread has idle time.
    """

    def __init__(self, degrade_after: float) -> None:
        self.degrade_after, self.step = degrade_after, 0
        self._last_step = self._last_long_wait = 0.0  # by the clock that `observe` is given
        self._idle = 0.0  # seconds since the last step

    def observe(self, now: float, waited: float, idle: float) -> int:
        """Record how long the oldest request of a batch waited and how long the thread was idle before; the step."""
        self.step = self.step_after(idle)
        self._idle += idle
        if waited > self.degrade_after / 2:
            self._last_long_wait = now
        if waited > self.degrade_after:
            if self.step < MAX_STEPS and now - self._last_step > MIN_STEP_SECONDS:
                self._set_step(self.step + 1, now)
        elif self.step:
            quiet = now - max(self._last_long_wait, self._last_step)
            has_spare = self._idle > SPARE_FRACTION * (now - self._last_step)
            if quiet > QUIET_SECONDS or (quiet > QUIET_SECONDS_IF_SPARE and has_spare):
                self._set_step(self.step - 1, now)
        return self.step

    def step_after(self, idle: float) -> int:
        """The step after some seconds without requests; only `observe` changes the current one."""
        return max(0, self.step - int(idle / QUIET_SECONDS_IF_SPARE))

    def _set_step(self, step: int, now: float) -> None:
        self.step, self._last_step, self._idle = step, now, 0.0
