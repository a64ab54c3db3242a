"""One rank's part of a saved model, for search: only its own rows are read.

Every rank checks the files as one process would: files up to 256 MiB completely, larger ones by a sample.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from beamtree.distributed.checkpoint import read_part
from beamtree.distributed.group import Ranks
from beamtree.distributed.partition import Shard
from beamtree.distributed.sharded_search import LocalSubtreeMax, LocalTable, ShardedScorer
from beamtree.model import TreeModel
from beamtree.scorers import (
    DeepScorer,
    DotProductScorer,
    FactorScorer,
    MemoryScorer,
    PopularityScorer,
    RepeatScorer,
    Scorer,
    SequenceScorer,
    SumScorer,
)
from beamtree.scorers.memory import SubtreeMaxScorer
from beamtree.storage.models import read_ids, read_tree
from beamtree.storage.settings import check_files, explain_damage, file_path, read_settings
from beamtree.storage.tensors import check_finite
from beamtree.tree import Tree

TABLE = "table.weight"
READ_AT_ONCE = 1 << 22  # partners that are read at once


def load_part(
    folder: str | Path, ranks: Ranks, device: torch.device | str = "cpu", *, top: int | None = None
) -> TreeModel:
    """One rank's part of the model that `save_model` or a training run wrote, for a search over ranks.

    Args:
        folder: the model; every rank must see it.
        ranks: the ranks.
        device: where this rank searches.
        top: the cut is the last level of at most this many nodes. Default: 4,096.
    """
    folder = Path(folder)
    settings = read_settings(folder)
    check_files(folder, settings)
    with explain_damage(folder):
        tree, tensors = read_tree(folder, settings)
        shard = Shard.of(tree, ranks, top)
        with _opened(folder, settings, tree, shard) as weights:
            part = PartReader(tree, shard, weights).read(settings["scorer"], settings["scorer_settings"])
        scorer = ShardedScorer(part, shard, settings["scorer_settings"])
        ids = read_ids(folder, settings)
        model = TreeModel(tree, scorer, chained=settings["chained"], first_level=settings["first_level"], ids=ids)
        model.popularity, model.trained_on_beams = tensors.get("events"), settings.get("trained_on_beams", False)
    check_finite(model)
    return model.to(device).eval()


@contextmanager
def _opened(folder: Path, settings: dict[str, Any], tree: Tree, shard: Shard) -> Iterator["Weights"]:
    if "shards" in settings:
        yield ShardFiles(folder, settings, tree, shard)
        return
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file_path(folder, settings, "weights"), framework="pt") as weights:
            if "search" not in settings["files"]:
                yield WholeFiles(weights, None)
                return
            with safe_open(file_path(folder, settings, "search"), framework="pt") as search:
                yield WholeFiles(weights, search)
    except SafetensorError as error:
        raise ValueError(f"{folder} is damaged: {error}") from error


class Weights(Protocol):
    """The weights of a scorer in files, by their names in its `state_dict`."""

    def length(self, name: str) -> int:
        """The number of rows of a tensor."""

    def read(self, name: str, rows: range) -> Tensor:
        """Some rows of a tensor."""

    def whole(self, name: str) -> Tensor:
        """All of a tensor."""

    def summed(self, name: str) -> str | None:
        """The name of the sums of a table's rows over paths; None where they are not saved."""


class WholeFiles:
    """The weights of a model that one process wrote, in files that safetensors has opened."""

    def __init__(self, weights: Any, search: Any | None) -> None:
        self._files = {"weights": weights, "search": search}
        self._cached = set() if search is None else set(search.keys())

    def _slice(self, name: str) -> Any:
        file, _, key = name.rpartition(":")
        return self._files[file or "weights"].get_slice(key)

    def length(self, name: str) -> int:
        count: int = self._slice(name).get_shape()[0]
        return count

    def read(self, name: str, rows: range) -> Tensor:
        values: Tensor = self._slice(name)[rows.start : rows.stop]
        return values

    def whole(self, name: str) -> Tensor:
        values: Tensor = self._files["weights"].get_tensor(name)
        return values

    def summed(self, name: str) -> str | None:
        key = f"{name.removesuffix(TABLE).removeprefix('parts.')}vectors"
        return f"search:{key}" if key in self._cached else None


class ShardFiles:
    """The weights of a model that several ranks wrote: rows and partners of one shard, and all other tensors."""

    def __init__(self, folder: Path, settings: Mapping[str, Any], tree: Tree, shard: Shard) -> None:
        self._rows = {name.removeprefix("weights.") for name in settings["shards"]["rows"]}
        self._shard = shard
        self._state = read_part(
            folder, settings, shard, lambda items: shard.owned(shard.height, tree.leaf_of_item(items.long()))
        )

    def length(self, name: str) -> int:
        return len(self._state[name])

    def read(self, name: str, rows: range) -> Tensor:
        shift = 0
        if name in self._rows:
            spans = ((nodes, own_rows) for nodes, own_rows in self._shard.spans() if rows.start in nodes)
            shift = next((own_rows.start - nodes.start for nodes, own_rows in spans), 0)
        return self._state[name][rows.start + shift : rows.stop + shift]

    def whole(self, name: str) -> Tensor:
        return self._state[name]

    def summed(self, name: str) -> str | None:
        return None


class PartReader:
    """Reads one rank's part of a scorer: no more than this part, and the sizes of lists.

    Args:
        tree: the tree.
        shard: the subtrees that this rank has.
        weights: of the whole scorer.
    """

    def __init__(self, tree: Tree, shard: Shard, weights: Weights) -> None:
        self.tree, self.shard, self.weights = tree, shard, weights
        self._readers: dict[str, Callable[[Mapping[str, Any], str], Scorer]] = {
            DeepScorer.__name__: self._deep,
            FactorScorer.__name__: partial(self._dot_product, FactorScorer),
            MemoryScorer.__name__: self._memory,
            PopularityScorer.__name__: partial(self._dot_product, PopularityScorer),
            RepeatScorer.__name__: self._repeats,
            SequenceScorer.__name__: partial(self._dot_product, SequenceScorer),
            SumScorer.__name__: self._sum,
        }

    def read(self, kind: str, settings: Mapping[str, Any], prefix: str = "") -> Scorer:
        """The part of a scorer by the name of its class and its settings; `prefix` is that of its weights."""
        if kind not in self._readers:
            raise ValueError(f"a {kind} cannot be sharded over ranks: start one process")
        return self._readers[kind](settings, prefix)

    def _deep(self, settings: Mapping[str, Any], prefix: str) -> Scorer:
        scorer = DeepScorer(**{**settings, "num_nodes": 1, "share": False}, seed=None)
        name = f"{prefix}{TABLE}"
        summed = self.weights.summed(name) if settings["share"] else None
        rows = self._rows(summed or name)
        if settings["share"] and summed is None:  # add to each row those above it, from the root down
            for level in range(1, self.shard.height + 1):
                above = rows[self.shard.above(level)]
                rows[self.shard.rows(level)] += above.repeat_interleave(self.shard.arity, dim=0)
        return self._with_table(scorer, prefix, rows)

    def _dot_product(self, make: Callable[..., DotProductScorer], settings: Mapping[str, Any], prefix: str) -> Scorer:
        scorer = make(**{**settings, "num_nodes": 1}, seed=None)
        return self._with_table(scorer, prefix, self._rows(f"{prefix}{TABLE}"))

    def _memory(self, settings: Mapping[str, Any], prefix: str) -> Scorer:
        """The partners that lie in this rank's subtrees, of all items."""
        weights = self.weights
        scorer = MemoryScorer(**{**settings, "entries": 0}, seed=None)
        scorer.recency = weights.whole(f"{prefix}recency")
        offsets, count = weights.whole(f"{prefix}offsets"), weights.length(f"{prefix}partners")
        starts, partners, values = torch.empty_like(offsets), [], []
        total = first = 0
        for start in range(0, count, READ_AT_ONCE):
            piece = range(start, min(start + READ_AT_ONCE, count))
            columns = weights.read(f"{prefix}partners", piece)
            owned = self.shard.owned(self.shard.height, self.tree.leaf_of_item(columns.long()))
            last = int(torch.searchsorted(offsets, piece.stop))  # lists that begin in this piece
            before = pad(owned.cumsum(0), (1, 0))
            starts[first:last] = total + before[offsets[first:last] - start]
            partners.append(columns[owned])
            values.append(weights.read(f"{prefix}weights", piece)[owned])
            total, first = total + int(before[-1]), last
        starts[first:] = total
        scorer.offsets = starts
        scorer.partners = torch.cat([scorer.partners, *partners])
        scorer.weights = torch.cat([scorer.weights, *values])
        return self._local(scorer)

    def _repeats(self, settings: Mapping[str, Any], prefix: str) -> Scorer:
        return self._local(RepeatScorer(**settings, seed=None))

    def _sum(self, settings: Mapping[str, Any], prefix: str) -> Scorer:
        parts = {
            name: self.read(kind, of_part, f"{prefix}parts.{name}.")
            for name, (kind, of_part) in settings["parts"].items()
        }
        scorer = SumScorer(parts, settings["height"], settings["learned"], settings["made"])
        scorer.weights = self.weights.whole(f"{prefix}weights")
        scorer.calibration = self.weights.whole(f"{prefix}calibration")
        return scorer

    def _local(self, scorer: SubtreeMaxScorer) -> Scorer:
        if self.shard.cut < self.shard.height:
            scorer.subtree_max = partial(LocalSubtreeMax, shard=self.shard)
        return scorer

    def _rows(self, name: str) -> Tensor:
        """The rows of the shard, followed by a row of zeros."""
        first = self.weights.read(name, range(1))
        rows = first.new_empty(self.shard.num_rows + 1, first.shape[1])
        rows[-1] = 0
        for nodes, own_rows in self.shard.spans():
            rows[own_rows] = self.weights.read(name, nodes)
        return rows

    def _with_table(self, scorer: DeepScorer | DotProductScorer, prefix: str, rows: Tensor) -> Scorer:
        """A scorer with its rows and all other weights."""
        scorer.table = LocalTable(self.shard, rows)
        state = {name: self.weights.whole(f"{prefix}{name}") for name in scorer.state_dict() if name != TABLE}
        scorer.load_state_dict({**state, TABLE: rows}, assign=True)
        return scorer
