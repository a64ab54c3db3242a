"""What fits a model: this process, unless `beamtree.distributed` has several fit one model together."""

import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

import torch

from beamtree.closed_form.part_weights import weigh_parts
from beamtree.data import Data
from beamtree.evaluate import Evaluation, evaluate
from beamtree.files.staging import folder_lock
from beamtree.model import TreeModel
from beamtree.parts.closed_form import ClosedForm
from beamtree.parts.processes import Processes
from beamtree.storage.models import load_model, save_model, write_finished
from beamtree.storage.tensors import check_finite
from beamtree.train.checkpoint import Checkpointer
from beamtree.train.step import Stepper
from beamtree.train.validation import Validation
from beamtree.tree import Tree

T = TypeVar("T")


class Backend(Processes):
    """One process. With several, all of them call every method, in the same order."""

    is_first = True  # whether this process writes files and reports
    closed_form: type[ClosedForm] = ClosedForm
    stepper: type[Stepper] = Stepper
    checkpointer: type[Checkpointer] = Checkpointer
    load_model = staticmethod(load_model)  # of a model whose training continues
    save_model = staticmethod(save_model)  # of a finished model

    def guard(self) -> AbstractContextManager[bool]:
        """Around work that may fail, which must then fail in all processes; gives `is_first`."""
        return nullcontext(True)

    def lock(self, folder: Path) -> AbstractContextManager[None]:
        """Keep other runs from writing to a folder."""
        return folder_lock(folder)

    def check_equal(self, **settings: object) -> None:
        """Raise a ValueError where processes were started with different settings."""

    def tree(self, tree: Tree) -> Tree:
        """A tree that all processes have built."""
        return tree

    def place(self, model: TreeModel, device: torch.device | str) -> TreeModel:
        """Move a model to where it is trained."""
        return model.to(device)

    def write_start(self, model: TreeModel, folder: Path) -> None:
        """Write a model whose training begins."""
        write_finished(folder, model, ids=None)

    def check_finite(self, model: TreeModel) -> None:
        """Raise a NotFiniteError where a weight is NaN or infinite."""
        check_finite(model)

    def weigh_parts(self, model: TreeModel, users: Data) -> None:
        """Choose the weights of the parts of a sum on validation users."""
        weigh_parts(model, users, self.candidates)

    def evaluate(
        self, model: TreeModel, data: Data, *, beam_size: int, m: tuple[int, ...], **options: Any
    ) -> Evaluation:
        """`beamtree.evaluate`."""
        return evaluate(model, data, beam_size=beam_size, m=m, **options)

    def recall(self, validation: Validation, model: TreeModel) -> float:
        """The recall of a model on validation users."""
        return validation.recall(model)


_current = Backend()


def current_backend() -> Backend:
    """What fits models now."""
    if type(_current) is Backend and int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ:
        raise ValueError(
            "torchrun has started several processes: call beamtree.distributed.training.join() before fitting"
        )
    return _current


def use_backend(new: Backend) -> None:
    """Let another backend fit models from now on."""
    global _current
    _current = new
