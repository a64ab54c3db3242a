"""Learning the tree and the scorer in turn: JTM with TDM's training, and the paper's future work with OTM's."""

from collections.abc import Callable
from pathlib import Path

from beamtree.builders import learn_tree
from beamtree.builders.learned import STAY
from beamtree.data import Data
from beamtree.model import TreeModel
from beamtree.storage.settings import holds_model
from beamtree.train.backend import backend
from beamtree.train.validation import Validation

Train = Callable[[TreeModel, int, Path | None], None]  # (model, round, folder for checkpoints): trains it in place
START = "start"  # where in its folder a round keeps the model it began with


def fit_jointly(
    model: TreeModel,
    data: Data,
    val: Data,
    train: Train,
    *,
    rounds: int = 3,
    stay: float = STAY,
    seed: int = 0,
    folder: Path | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> TreeModel:
    """Train, then for some rounds: learn a tree from the scorer, carry the rows over, train again for a while.

    A new tree that finds less for the users of `val` than the old one did is rejected, and the old model kept. With a
    `folder`, every round trains in a folder of its own, and what is there already is not done again.

    Args:
        model: trained in place first, and changed for another where a new tree is kept.
        data: instances that new trees are learned from.
        val: users who judge them.
        train: trains a model in place for a round: (model, round, folder for checkpoints).
        rounds: trees to try.
        stay: see `learn_tree`.
        seed: of the trees.
        folder: where rounds are kept.
        say: hears what became of each tree.
    """
    _check(model, data, val, rounds=rounds, stay=stay, seed=seed)
    train(model, 0, _folder_of(folder, 0))
    best = backend().recall(Validation(val), model)
    say(f"first tree: recall {best:.2%}")
    for turn in range(1, rounds + 1):
        place = _folder_of(folder, turn)
        other = _begin(model, data, stay, seed + turn, place)
        if other.tree.fingerprint() == model.tree.fingerprint():
            say(f"round {turn}: no item would move")
            break
        train(other, turn, place)
        recall = backend().recall(Validation(val), other)
        if recall < best:
            say(f"round {turn}: a new tree lowers recall from {best:.2%} to {recall:.2%}: rejected, the old is kept")
            break
        say(f"round {turn}: a new tree takes recall from {best:.2%} to {recall:.2%}: kept")
        model, best = other, recall
    return model.eval()


def _check(model: TreeModel, data: Data, val: Data, **options: float) -> None:
    """Raise a ValueError where no users could judge a tree."""
    with backend().guard():
        if not len(val):
            raise ValueError("a new tree is judged by validation users, and there are none: prepare with `val_users`")
    known = {"data": data.fingerprint(), "val": val.fingerprint(), "tree": model.tree.fingerprint()}
    backend().check_equal(**known, **options)


def _folder_of(folder: Path | None, turn: int) -> Path | None:
    return None if folder is None else folder / f"round-{turn}"


def _begin(model: TreeModel, data: Data, stay: float, seed: int, folder: Path | None) -> TreeModel:
    """The model on a new tree: as it was begun before, if it was."""
    start = None if folder is None else folder / START
    if start is not None:
        backend().check_equal(**{str(start): "exists" if holds_model(start) else "does not exist"})
        if holds_model(start):
            return backend().load_model(start, model.tree.device, scorers=[type(model.scorer)])
    other = model.on_tree(backend().tree(learn_tree(model, data, stay=stay, seed=seed)))
    if start is not None:
        backend().keep_model(other, start)
    return other
