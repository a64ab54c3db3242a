"""Learning the tree and the scorer in turn: JTM with TDM's training, and the paper's future work with OTM's."""

from collections.abc import Callable
from pathlib import Path

from beamtree.builders import learn_tree
from beamtree.builders.learned import STAY
from beamtree.data import Data
from beamtree.distributed.consistency import check_alike, one_tree
from beamtree.distributed.group import join, ranks
from beamtree.model import TreeModel
from beamtree.storage.models import load_model
from beamtree.storage.settings import holds_model
from beamtree.train.checkpoint import keep_model
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
    `folder`, every round trains in a folder of its own, and what is there already is not done again. Over ranks all
    call it, each has its rows of every tree, and a round that some number of them began any number goes on with.

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
    best = _recall(model, val)
    say(f"first tree: recall {best:.2%}")
    for turn in range(1, rounds + 1):
        place = _folder_of(folder, turn)
        other = _begin(model, data, stay, seed + turn, place)
        if other.tree.fingerprint() == model.tree.fingerprint():
            say(f"round {turn}: no item would move")
            break
        train(other, turn, place)
        recall = _recall(other, val)
        if recall < best:
            say(f"round {turn}: a new tree lowers recall from {best:.2%} to {recall:.2%}: rejected, the old is kept")
            break
        say(f"round {turn}: a new tree takes recall from {best:.2%} to {recall:.2%}: kept")
        model, best = other, recall
    return model.eval()


def _check(model: TreeModel, data: Data, val: Data, **how: float) -> None:
    """Raise a ValueError where nobody could judge a tree, or where ranks do not mean the same."""
    together = join(model.tree.device.type)
    with together.agreed():
        if not len(val):
            raise ValueError("a new tree is judged by validation users, and there are none: prepare with `val_users`")
    known = {"data": data.fingerprint(), "val": val.fingerprint(), "tree": model.tree.fingerprint()}
    check_alike(together, **known, **how)


def _recall(model: TreeModel, val: Data) -> float:
    """What says how good a tree is: one rank's number for all."""
    return ranks().gather(Validation(val).recall(model))[0]


def _folder_of(folder: Path | None, turn: int) -> Path | None:
    return None if folder is None else folder / f"round-{turn}"


def _begin(model: TreeModel, data: Data, stay: float, seed: int, folder: Path | None) -> TreeModel:
    """The model on a new tree: as it was begun before, if it was."""
    start = None if folder is None else folder / START
    if start is not None:
        begun = holds_model(start)
        ranks().same(**{str(start): "there" if begun else "not there"})
        if begun:
            return load_model(start, model.tree.device, scorers=[type(model.scorer)])
    other = model.on_tree(one_tree(learn_tree(model, data, stay=stay, seed=seed)))
    if start is not None:
        keep_model(start, other)
    return other
