"""Training over ranks: every rank computes the loss of its rows of a batch, and has its part of the model."""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from beamtree.data import Data
from beamtree.distributed.checkpoint import ShardedCheckpointer, load_part_for_training, save_model, write_sharded
from beamtree.distributed.closed_form import ShardedCandidates, ShardedClosedForm
from beamtree.distributed.group import Ranks, connect, ranks
from beamtree.distributed.sharded_table import ShardedTable
from beamtree.distributed.sharding import divided_names, shard_model
from beamtree.evaluate import Evaluation, measure, search_function
from beamtree.files.staging import folder_lock
from beamtree.methods import Method
from beamtree.model import BatchPart, TreeModel
from beamtree.scorers import as_sum, with_inputs
from beamtree.scorers.table import NodeTable
from beamtree.storage.tensors import check_finite
from beamtree.train.backend import Backend, use_backend
from beamtree.train.step import Stepper
from beamtree.train.validation import Validation
from beamtree.tree import Tree

T = TypeVar("T")


def join(device: str = "cpu") -> Ranks:
    """Train together with all ranks that torchrun started, if it did and there are several."""
    group = connect(device)
    if group.size > 1:
        use_backend(RanksBackend())
    return group


class ShardedStepper(Stepper):
    """Takes steps over ranks, each with the loss of its rows of the batch."""

    def take(self, method: Method, x: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        loss = method.loss(self.model, x, y, generator, ranks().share)
        self.optimizer.zero_grad()
        loss.backward()
        total = sum_gradients(self.model, loss.detach())
        self.optimizer.step()
        return total


@torch.no_grad()
def sum_gradients(model: TreeModel, loss: Tensor) -> Tensor:
    """Give every rank the gradients of the whole batch: of its own rows, and of all weights that are not sharded.

    The latter need one sum over ranks. Returns the loss of the whole batch.
    """
    tables = [module for module in model.modules() if isinstance(module, NodeTable)]
    sharded = [table for table in tables if isinstance(table, ShardedTable) and table.weight.requires_grad]
    tops = [table.send_gradients() for table in sharded]
    rows = {id(table.weight) for table in sharded}
    dense = [each for each in model.parameters() if each.requires_grad and id(each) not in rows]
    has_grad = loss.new_tensor([each.grad is not None for each in dense])
    grads = [torch.zeros_like(each) if each.grad is None else each.grad for each in dense]
    parts = [loss.view(1), has_grad, *grads, *tops]
    total = ranks().sum_(torch.cat([part.flatten() for part in parts]))
    loss, has_grad, *sums = (
        part.view(like.shape) for part, like in zip(total.split([part.numel() for part in parts]), parts, strict=True)
    )
    for parameter, grad, exists in zip(dense, sums, has_grad.tolist(), strict=False):
        parameter.grad = grad if exists else None
    for table, top in zip(sharded, sums[len(dense) :], strict=True):
        table.set_gradients(top)
    for each in tables:
        if each.touched is not None and not isinstance(each, ShardedTable):
            each.touched = ranks().sum_(each.touched.long()).clamp_(max=1).to(torch.uint8)
    return loss.view(())


class RanksBackend(Backend):
    """All ranks fit one model."""

    is_single = False
    closed_form = ShardedClosedForm
    candidates = ShardedCandidates
    stepper = ShardedStepper
    checkpointer = ShardedCheckpointer
    load_model = staticmethod(load_part_for_training)
    save_model = staticmethod(save_model)

    @property
    def is_first(self) -> bool:  # type: ignore[override]
        return ranks().is_first

    @property
    def rank(self) -> int:  # type: ignore[override]
        return ranks().rank

    def guard(self) -> AbstractContextManager[bool]:
        return ranks().fail_together()

    @contextmanager
    def lock(self, folder: Path) -> Iterator[None]:
        with ExitStack() as stack:
            with ranks().fail_together() as first:
                if first:
                    stack.enter_context(folder_lock(folder))
            yield

    def check_equal(self, **settings: object) -> None:
        ranks().check_equal(code=code(), torch=torch.__version__, **settings)

    def broadcast(self, value: T) -> T:
        return ranks().broadcast(value)

    def share(self, total: int) -> BatchPart:
        return ranks().share(total)

    def sum_gradients(self, weights: Sequence[Tensor]) -> None:
        grads = [weight.grad for weight in weights if weight.grad is not None]
        total = ranks().sum_(torch.cat([grad.flatten() for grad in grads]))
        for grad, part in zip(grads, total.split([grad.numel() for grad in grads]), strict=True):
            grad.copy_(part.view_as(grad))

    def tree(self, tree: Tree) -> Tree:
        """The first rank's tree: a builder may round differently on another machine."""
        shape = {"items": tree.num_items, "arity": tree.arity, "height": tree.height, "admit_empty": tree.admit_empty}
        ranks().check_equal(**shape)
        slots = ranks().broadcast_(tree.items().clone())
        return Tree(slots, tree.arity, admit_empty=tree.admit_empty, num_items=tree.num_items)

    def place(self, model: TreeModel, device: torch.device | str) -> TreeModel:
        """Shard the model, and give every rank the first rank's values of the weights that are not sharded."""
        shard_model(model).to(device)
        divided = divided_names(model)
        shared = {name: value for name, value in model.scorer.state_dict().items() if name not in divided}
        ranks().check_equal(weights={name: list(value.shape) for name, value in shared.items()})
        for value in shared.values():
            ranks().broadcast_(value)
        return model

    def write_start(self, model: TreeModel, folder: Path) -> None:
        write_sharded(folder, model, 0, {}, set(), {})

    def check_finite(self, model: TreeModel) -> None:
        with ranks().fail_together():
            check_finite(model)

    def weigh_parts(self, model: TreeModel, users: Data) -> None:
        super().weigh_parts(model, users)
        if (scorer := as_sum(model.scorer)) is not None:
            ranks().broadcast_(scorer.weights)
            ranks().broadcast_(scorer.calibration)

    def recall(self, validation: Validation, model: TreeModel) -> float:
        return ranks().broadcast(validation.recall(model, self.evaluate))

    def evaluate(
        self, model: TreeModel, data: Data, *, beam_size: int, m: tuple[int, ...], **options: Any
    ) -> Evaluation:
        """The same for a sharded model; each rank searches for its share of every batch."""
        find = ranks().split_rows(search_function(model, beam_size, max(m)))
        return measure(find, with_inputs(model.scorer, data), m=m, batch_size=64 * ranks().size, **options)


@cache
def code() -> str:
    """A checksum of the code of this package."""
    package, digest = Path(__file__).parent.parent, hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(str(path.relative_to(package)).encode() + path.read_bytes())
    return digest.hexdigest()[:16]
