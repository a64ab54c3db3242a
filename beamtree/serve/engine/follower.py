"""A follower keeps a service up to date with the changes that another process, the writer, makes and stores."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from beamtree.errors import short_message
from beamtree.live.following import START, Changes, Lines, decode_lines
from beamtree.live.journal import count_changes
from beamtree.serve.engine.engine import Engine
from beamtree.serve.engine.model_slot import ModelSlot, Reload, smoke_test
from beamtree.serve.engine.served_run import LoadedRun, OpenRun, beside, last_run, run_state

log = logging.getLogger("beamtree")
WAIT_SECONDS = 1.0  # for changes, before the writer is asked again
SHORT_WAIT_SECONDS = 0.1  # likewise, while a run is opened
AWAY_SECONDS = 3.0  # without a sign of the writer, after which it is away
RETRY_SECONDS = 0.3  # until the changes are read again after an error
REOPEN_SECONDS = 10.0  # until a run is opened again after a failure, and twice as long after each further one
MOST_REOPEN_SECONDS = 300.0

Entries = Sequence[dict[str, Any]]


class FollowerState(NamedTuple):
    """How well a service follows its writer."""

    writer: str  # its address, or the folder of the changes
    connected: bool
    seconds: float  # since the last sign of the writer, or since the start if there was none
    away_since: float | None  # in seconds since 1970; None while it is there
    behind: int  # changes that were read and are not applied yet
    note: str | None  # why changes are not applied, or another run than that of the writer is served


class Opening:
    """A run that is opened with all changes, in a thread; those that come meanwhile are kept for it."""

    def __init__(self, changes: Changes) -> None:
        self.changes = changes
        self.position: str | None = None  # after `entries`; None until the first of them are read
        self.entries: list[dict[str, Any]] = []  # that are not applied yet
        self.loaded: Future[LoadedRun] = Future()
        self.count = 0  # changes that were read
        self.last_run: dict[str, Any] | None = None  # the last entry that names a run

    def add(self, lines: Lines) -> bool:
        """Keep what was read; False if the changes before it cannot be relied on any more."""
        if lines.position is None:
            return False
        entries = decode_lines(lines.content)
        self.entries += entries
        self.count += count_changes(entries)
        self.last_run = last_run(entries) or self.last_run
        self.position = lines.position
        return True


class Follower:
    """Applies the changes of another process to the run in service, as they come.

    Where they cannot be applied one after another, because they were compacted while this process was away, or because
    the writer serves another run, a run is opened beside the one in use, with all changes from the first, and replaces
    it between two batches. What comes meanwhile is applied to both.

    Args:
        run: the folder of the run; others beside it may take its place.
        open_run: opens a run that follows.
        open_changes: opens the changes.
    """

    def __init__(self, run: Path, open_run: OpenRun, open_changes: Callable[[], Changes]) -> None:
        self._run, self._open_run, self._open_changes = run, open_run, open_changes
        self._changes = open_changes()
        self._position: str | None = None  # of the run in use; None if what follows cannot be read any more
        self._last_run: dict[str, Any] | None = None  # the last entry that names a run
        self._opening: Opening | None = None  # the run that is to replace the one in use
        self._is_reopen_due, self._failures, self._not_before = False, 0, 0.0
        self._contact = time.monotonic()  # the last sign of the writer
        self._has_met = False
        self._is_busy = False  # applying changes, and not listening
        self._behind = 0
        self._error: str | None = None
        self._stop = threading.Event()
        self._engine: Engine | None = None
        self._slot: ModelSlot | None = None

    @property
    def writer(self) -> str:
        """Where the writer is."""
        return self._changes.writer

    @property
    def wanted_run(self) -> Path:
        """The run that the writer serves, if it is beside this one; otherwise the one in use."""
        used = self._run if self._engine is None else self._engine.loaded.run or self._run
        return beside(self._run, self._last_run) or used

    @property
    def state(self) -> FollowerState:
        """How well the service follows."""
        seconds, opening = time.monotonic() - self._contact, self._opening
        connected = self._has_met and (self._is_busy or seconds < AWAY_SECONDS)
        away_since = None if connected else time.time() - seconds
        behind = self._behind
        if opening is not None and self._position is None and self._engine is not None:
            behind = max(0, opening.count - self._engine.loaded.live.version)
        return FollowerState(self.writer, connected, seconds, away_since, behind, self._error or self._other_run())

    def _other_run(self) -> str | None:
        """Says that the writer serves another run."""
        wanted, loaded = self._last_run, None if self._engine is None else self._engine.loaded
        if wanted is None or loaded is None or loaded.run is None:
            return None
        name, served = wanted["run"], loaded.run.name
        if wanted["model"] == loaded.digest if "model" in wanted else name == served:
            return None
        if name == served:
            return f"the writer serves another version of {name} than this service"
        return f"the writer serves {name}, and this service goes on with {served}"

    # Opening a run

    def open(self) -> LoadedRun:
        """The run that the writer serves, with all changes; waits until they can be read."""
        while True:
            opening = self._begin_opening()
            while not opening.loaded.done():
                time.sleep(SHORT_WAIT_SECONDS)
                with suppress(OSError):
                    self._listen_for(opening)
            try:
                loaded = self._finish(opening)
            except OSError as error:
                self._note(f"waiting for the writer: {short_message(error)}")
                time.sleep(RETRY_SECONDS)
                continue
            if loaded is not None:
                return loaded

    def _begin_opening(self) -> Opening:
        opening = Opening(self._open_changes())
        threading.Thread(target=self._open, args=(opening,), name="beamtree-open", daemon=True).start()
        return opening

    def _open(self, opening: Opening) -> None:
        """Read all changes, open the run that is wanted, and apply them."""
        try:
            entries, position = self._read_all(opening.changes)
            opening.count, opening.last_run = count_changes(entries), last_run(entries)
            opening.position = position  # from now on, the other thread listens
            loaded = self._open_run(beside(self._run, opening.last_run) or self.wanted_run)
            loaded.live.apply(entries)
            loaded.live.warm_up()  # else the first new item would hold up the changes after it
            smoke_test(loaded, 1 if self._engine is None else self._engine.beam_size)
            opening.loaded.set_result(loaded)
        except BaseException as error:
            opening.loaded.set_exception(error)

    def _read_all(self, changes: Changes) -> tuple[list[dict[str, Any]], str]:
        """All changes, and the position after them."""
        entries, position = list[dict[str, Any]](), START
        while True:
            lines = changes.read(position)
            self._hear(lines)
            if lines.position is None:  # replaced meanwhile
                entries, position = [], START
                continue
            entries += decode_lines(lines.content)
            position = lines.position
            if not lines.content:
                return entries, position

    def _listen_for(self, opening: Opening) -> bool:
        """Keep the changes that have come for a run that is opened; False if it missed some."""
        if opening.position is None:
            return True
        while True:
            lines = opening.changes.read(opening.position)
            self._hear(lines)
            if not opening.add(lines):
                return False
            if not lines.content:
                return True

    def _finish(self, opening: Opening) -> LoadedRun | None:
        """The run that was opened, with the changes that have come until now; None if it missed some."""
        try:
            loaded = opening.loaded.result()
            while True:
                if not self._listen_for(opening):
                    return None
                if not opening.entries:
                    break
                entries, opening.entries = opening.entries, []
                loaded.live.apply(entries)
        finally:
            opening.changes.close()
        self._position, self._last_run, self._behind = opening.position, opening.last_run, 0
        return loaded

    # Following

    def start(self, engine: Engine, slot: ModelSlot) -> None:
        """Follow from now on, for a service that serves what `open` returned."""
        self._engine, self._slot = engine, slot
        threading.Thread(target=self._follow, name="beamtree-follow", daemon=True).start()

    def reopen(self) -> None:
        """Open the run that is wanted, whose folder has changed."""
        self._is_reopen_due = True

    def close(self) -> None:
        """Stop; nothing waits for what is being read or opened."""
        self._stop.set()

    def _follow(self) -> None:
        assert self._engine is not None
        assert self._slot is not None
        while not self._stop.is_set():
            try:
                self._step(self._engine, self._slot)
                self._error = None
            except Exception as error:  # nothing may end this thread
                if self._stop.is_set():
                    break
                if not isinstance(error, OSError | ValueError):
                    log.exception("following failed")
                self._note(short_message(error))
                self._stop.wait(RETRY_SECONDS)
        self._changes.close()

    def _note(self, error: str) -> None:
        if error != self._error:
            log.warning("%s", error)
        self._error = error

    def _hear(self, lines: Lines) -> None:
        if lines.has_writer:
            self._contact, self._has_met = time.monotonic(), True

    def _step(self, engine: Engine, slot: ModelSlot) -> None:
        """Apply what has come, and go on with opening a run if one is wanted."""
        opening = self._opening
        if opening is not None and opening.loaded.done():
            self._opening = None
            self._replace(opening, slot)
        elif opening is not None:
            self._listen_for(opening)
        elif (self._is_reopen_due or self._position is None) and time.monotonic() >= self._not_before:
            self._is_reopen_due = False
            self._opening = self._begin_opening()
        if self._position is None:
            self._stop.wait(SHORT_WAIT_SECONDS)
            return
        lines = self._changes.read(self._position, WAIT_SECONDS if self._opening is None else SHORT_WAIT_SECONDS)
        self._hear(lines)
        if lines.position is None:
            log.info("changes were compacted or taken back before they were read: all of them are read again")
            self._position = None
        elif lines.content:
            self._apply(decode_lines(lines.content), lines.position, engine, slot)
        else:
            self._position = lines.position

    def _apply(self, entries: Entries, position: str, engine: Engine, slot: ModelSlot) -> None:
        """Apply changes to the run in use."""
        begin, self._behind, self._is_busy = time.monotonic(), count_changes(entries), True
        future = slot.apply(lambda live: live.apply(entries))
        try:
            future.result()
        except Exception as error:  # some of them may be applied
            self._position = None
            raise ValueError(f"changes cannot be applied: {short_message(error)}") from error
        finally:
            self._contact += time.monotonic() - begin  # in which nobody listened
            self._is_busy = False
        self._position, self._behind = position, 0
        named = last_run(entries)
        if named is not None:
            self._last_run = named
            folder, used = beside(self._run, named), engine.loaded
            try:
                is_same = folder == (used.run or self._run).absolute()
                differs = folder is not None and not (is_same and run_state(folder) == used.state)
            except (OSError, ValueError):  # it may be incomplete: it is opened until that succeeds
                differs = True
            if differs:
                self._is_reopen_due = True
            elif (other := self._other_run()) is not None:
                log.warning("%s", other)

    def _replace(self, opening: Opening, slot: ModelSlot) -> None:
        """Serve the run that was opened; on a failure the old one stays, and it is tried again later."""
        try:
            loaded = self._finish(opening)
            if loaded is None:
                self._is_reopen_due = True
                return
            slot.replace(loaded).result()
        except Exception as error:
            self._is_reopen_due = True
            if opening.position is None:  # the changes cannot be read: a few bytes, which may be tried often
                self._not_before = time.monotonic() + RETRY_SECONDS
                raise
            self._failures += 1
            self._not_before = time.monotonic() + min(MOST_REOPEN_SECONDS, REOPEN_SECONDS * 2 ** (self._failures - 1))
            message = short_message(error)
            slot.report(Reload(self.wanted_run.name, message, time.time()))
            raise ValueError(f"the run stays as it was: {message}") from error
        self._failures = 0
