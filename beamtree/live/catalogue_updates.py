"""What a recommender can change without training."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from beamtree.answers import listed
from beamtree.data import Prepared
from beamtree.errors import requires
from beamtree.live.likeness import NewItem
from beamtree.live.live import Live, Saved
from beamtree.live.opening import open_live, read_live, save_live
from beamtree.live.update import update
from beamtree.model import TreeModel


class Changing:
    """Items come and go, and users go on choosing, without training."""

    _live: Live | None = None
    _how: dict[str, Any]
    _built: dict[str, Any]
    _run: dict[str, Any]
    _loaded: Path | None = None  # the run that was loaded

    @property
    def model(self) -> TreeModel:
        """The tree and the scorer."""
        raise NotImplementedError

    def add_items(self, items: Mapping[str, NewItem | Mapping[str, Any]] | Iterable[object]) -> int:
        """Add items that can be recommended at once, all or none of them; how many were new or changed.

        Args:
            items: ids, each with what it comes with: `{"B9": {"like": ["B1"], "histories": [["B2", "B3"]]}}`. `like`
                names items that it resembles, `histories` are of users who chose it next, `category` is that of others,
                `vector` is one in the space of those that the tree was made from, `title` is for people. A plain list
                of ids adds items that nobody knows anything of.

        An item that was removed is found as before. What is left out of an item that is known stays as it is; None
        clears it.
        """
        known = items if isinstance(items, Mapping) else {str(each): NewItem() for each in listed(items)}
        return self._changing().add_all(known)

    def remove_items(self, items: Iterable[object]) -> int:
        """Hide items: nothing recommends them until they are added again. How many were there."""
        return self._changing().remove_all(map(str, listed(items)))

    def forget_items(self, items: Iterable[object]) -> int:
        """Forget items: they are not recommended, and added again they come as new ones. How many there were."""
        return self._changing().forget_all(map(str, listed(items)))

    def update(
        self,
        log: Any,
        *,
        user: str | None = None,
        item: str | None = None,
        time: str | None = None,
        time_format: str | None = None,
    ) -> "Changing":
        """Learn from new events in closed form, without a gradient and without choosing anything anew.

        Args:
            log: of new events alone, in any shape that `fit` takes.
            user: the column of users, where it has an unusual name.
            item: the column of items, likewise.
            time: the column of times, likewise.
            time_format: how dates are written, as in strptime; found out unless given.

        Items that are new are placed by the histories of those who chose them; what users are recommended follows
        their new events at once; what goes together, what follows and the factors are made again from all events.
        Events that have times count once, however often they are given.
        """
        with requires("", "reading a log"):
            from beamtree.ingest.recent import read_events

        update(
            self._changing(), read_events(log, user, item, time, time_format), self._learned_from(), self._how["seed"]
        )
        return self

    def _learned_from(self) -> Prepared | None:
        raise NotImplementedError

    def _changing(self) -> Live:
        """The model as one that changes."""
        if self._live is None:
            self._live = self._opened()
        return self._live

    def _opened(self, saved: Saved | None = None) -> Live:
        known = {name: self._built[name] for name in ("items", "vectors")}
        return open_live(self.model, self._run, self._loaded, data=self._learned_from(), saved=saved, **known)

    def _save_events(self, folder: Path) -> None:
        """Write what was changed, into a run's folder."""
        save_live(folder, self._live)

    def _load_events(self, folder: Path) -> None:
        saved = read_live(folder)
        self._live = None if saved is None else self._opened(saved)
