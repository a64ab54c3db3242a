"""The journal of changes on a disk that is full for a moment, then has space, and is full again.

After a restart the state must be exactly that of the acknowledged changes, for a recommender and for a classifier.
"""

import contextlib
import random
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import beamtree as bt
from beamtree.live import Journal, LiveModel
from beamtree.live.journal import CHANGES
from beamtree.live.labels import LiveClassifier
from stress.full_disk import PAGE, can_mount, mount, unmount
from stress.sandbox import Sandbox

CHANGES_PER_TRIAL = 40
SIZES = (1, 20, 300, 4_000, 9_000, 70_000)  # characters of a title or a name


def trials(sandbox: Sandbox, rng: random.Random) -> Iterator[tuple[str, list[str]]]:
    """Endless trials: (description, faults)."""
    disk = sandbox.folder / "journal-disk"
    mounts = can_mount(disk)
    model = bt.load_model(sandbox.reference / "run")
    classifier = bt.Classifier(group=2).fit(np.eye(6), [[f"l{number}"] for number in range(6)], verbose=False)
    kinds: dict[str, Callable[[Journal], Any]] = {
        "items": lambda journal: LiveModel(model, journal=journal),
        "labels": lambda journal: LiveClassifier(classifier, journal),
    }
    while True:
        name, on_disk = rng.choice(list(kinds)), mounts and rng.random() < 0.7
        folder = disk if on_disk else sandbox.copy() / "changes"
        if on_disk:
            mount(disk, 16)
        try:
            faults = _trial(folder / "changes", kinds[name], rng, disk if on_disk else None)
        except (ValueError, OSError) as error:  # it does not start
            faults = [str(error)]
        finally:
            if on_disk:
                unmount(disk)
            else:
                sandbox.close(folder.parent)
        yield f"journal of {name}, {'full tmpfs' if on_disk else 'file limit'}", faults


def _trial(folder: Path, open_live: Callable[[Journal], Any], rng: random.Random, disk: Path | None) -> list[str]:
    """Make changes with and without space, and compare the state after restarts with what was acknowledged."""
    told: dict[str, str | None] = {}  # titles; None for what was removed
    for _ in range(2):
        with contextlib.closing(Journal(folder)) as journal:
            live = open_live(journal)
            faults = _differences(live, told)
            if faults:
                return [f"after a restart: {faults[0]}"]
            for _ in range(CHANGES_PER_TRIAL // 2):
                name, title = f"new {rng.randrange(8)}", rng.choice("abc") * rng.choice(SIZES)
                value = title if rng.random() < 0.7 or told.get(name) is None else None
                with _little_space(folder, rng, disk) if rng.random() < 0.5 else contextlib.nullcontext():
                    try:
                        _change(live, name, value)
                    except OSError:
                        continue
                told[name] = value
            if faults := _differences(live, told):
                return [f"before a restart: {faults[0]}"]
    with contextlib.closing(Journal(folder)) as journal:
        return _differences(open_live(journal), told)


@contextlib.contextmanager
def _little_space(folder: Path, rng: random.Random, disk: Path | None) -> Iterator[None]:
    """A tmpfs without free pages, or files that end a few bytes after the journal."""
    if disk is not None:
        used = sum(-(-path.stat().st_size // PAGE) for path in disk.rglob("*") if path.is_file())
        mount(disk, max(1, used + rng.randrange(2)), resize=True)
        try:
            yield
        finally:
            mount(disk, 1 << 12, resize=True)
        return
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = (folder / CHANGES).stat().st_size + rng.choice((0, 1, 30, 500, 8_192))
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def _change(live: Any, name: str, title: str | None) -> None:
    if isinstance(live, LiveModel):
        live.remove_items([name]) if title is None else live.update_items({name: {"title": title}}, show=True)
    elif title is None:
        live.remove_labels([name])
    else:
        live.put_labels({name: {"name": title, "documents": [{"1": 1.0}]}})


def _differences(live: Any, told: dict[str, str | None]) -> list[str]:
    """What the live model has other than what was acknowledged."""
    found: dict[str, str | None] = {}
    names = [f"new {number}" for number in range(8)]
    for name in names:
        if isinstance(live, LiveModel):
            (number,) = live.ids.find([name])
            if number is not None:
                found[name] = live.catalogue.titles[number] if live.is_visible(name) else None
        elif (label := live.snapshot.classifier.describe_label(name)) is not None:
            found[name] = None if label["hidden"] else label["name"]
    return [f"{name} differs" for name in names if found.get(name) != told.get(name)]
