"""Learning the tree and the scorer in turn: JTM with TDM's training, and the paper's future work with OTM's."""

from collections.abc import Callable
from pathlib import Path

from beamtree.builders import learn_tree
from beamtree.builders.learned import STAY
from beamtree.data import Data
from beamtree.model import TreeModel
from beamtree.storage.settings import holds_model
from beamtree.train.backend import current_backend
from beamtree.train.validation import Validation

Train = Callable[[TreeModel, int, Path | None], None]  # (model, round, folder for checkpoints): trains it in place
START = "start"  # subfolder of a round: the model before training


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
    on_message: Callable[[str], None] = lambda line: None,
) -> TreeModel:
    """Train, then for some rounds: learn a tree from the scorer, move the rows to it, and train again.

    A new tree with a lower recall on the users of `val` is rejected, and the old model returned. With a `folder`, each
    round has its own subfolder, and finished rounds are not repeated.

    Args:
        model: the first model, trained in place.
        data: instances that new trees are learned from.
        val: users on whom recall is measured.
        train: trains a model in place for a round: (model, round, folder for checkpoints).
        rounds: the number of new trees to try.
        stay: see `learn_tree`.
        seed: of the trees.
        folder: where rounds are saved.
        on_message: called with a line about each tree.
    """
    backend = current_backend()
    with backend.guard():
        if not len(val):
            raise ValueError("a new tree is judged by validation users, and there are none: prepare with `val_users`")
    fingerprints = {"data": data.fingerprint(), "val": val.fingerprint(), "tree": model.tree.fingerprint()}
    backend.check_equal(**fingerprints, rounds=rounds, stay=stay, seed=seed)
    folders = [None if folder is None else folder / f"round-{index}" for index in range(rounds + 1)]
    train(model, 0, folders[0])
    best = backend.recall(Validation(val), model)
    on_message(f"first tree: recall {best:.2%}")
    for index in range(1, rounds + 1):
        candidate = _on_new_tree(model, data, stay, seed + index, folders[index])
        if candidate.tree.fingerprint() == model.tree.fingerprint():
            on_message(f"round {index}: no item would move")
            break
        train(candidate, index, folders[index])
        recall = backend.recall(Validation(val), candidate)
        if recall < best:
            on_message(
                f"round {index}: a new tree lowers recall from {best:.2%} to {recall:.2%}: rejected, the old is kept"
            )
            break
        on_message(f"round {index}: a new tree takes recall from {best:.2%} to {recall:.2%}: kept")
        model, best = candidate, recall
    return model.eval()


def _on_new_tree(model: TreeModel, data: Data, stay: float, seed: int, folder: Path | None) -> TreeModel:
    """The model on a newly learned tree, or the one that an interrupted run left in the folder of the round."""
    backend, start = current_backend(), None if folder is None else folder / START
    if start is not None:
        backend.check_equal(**{str(start): "exists" if holds_model(start) else "does not exist"})
        if holds_model(start):
            return backend.load_model(start, model.tree.device, scorers=[type(model.scorer)])
    candidate = model.on_tree(backend.tree(learn_tree(model, data, stay=stay, seed=seed)))
    if start is not None:
        backend.write_start(candidate, start)
    return candidate
