"""One rank's part of a saved model, for search: only its own rows are read.

Every rank checks the files as one rank would: those up to 256 MiB whole, of larger ones a sample.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from beamtree.data.ids import Ids
from beamtree.distributed.checkpoint import read_part
from beamtree.distributed.group import Ranks
from beamtree.distributed.partition import Shard
from beamtree.distributed.sharded_search import Weights, part_of
from beamtree.model import TreeModel
from beamtree.storage.models import read_tree
from beamtree.storage.settings import check_files, check_finite, damaged, file_of, read_settings
from beamtree.storage.sharded_files import check_shards
from beamtree.tree import Tree

TABLE = "table.weight"


class WholeFiles:
    """The weights of a model in its folder."""

    def __init__(self, weights: Any, search: Any | None) -> None:
        """Files that safetensors has opened."""
        self._files = {"weights": weights, "search": search}
        self._cached = set() if search is None else set(search.keys())

    def _at(self, name: str) -> Any:
        part, _, key = name.rpartition(":")
        return self._files[part or "weights"].get_slice(key)

    def length(self, name: str) -> int:
        count: int = self._at(name).get_shape()[0]
        return count

    def read(self, name: str, rows: range) -> Tensor:
        found: Tensor = self._at(name)[rows.start : rows.stop]
        return found

    def whole(self, name: str) -> Tensor:
        found: Tensor = self._files["weights"].get_tensor(name)
        return found

    def summed(self, name: str) -> str | None:
        key = f"{name.removesuffix(TABLE).removeprefix('parts.')}vectors"
        return f"search:{key}" if key in self._cached else None


class ShardFiles:
    """The weights of a model that several ranks wrote: of rows and partners those of one shard, and all else whole."""

    def __init__(self, folder: Path, settings: Mapping[str, Any], tree: Tree, shard: Shard) -> None:
        self._rows = {name.removeprefix("weights.") for name in settings["shards"]["rows"]}
        self._shard = shard
        self._state = read_part(
            folder, settings, shard, lambda items: shard.owned(shard.height, tree.leaf_of_item(items.long()))
        )

    def length(self, name: str) -> int:
        return len(self._state[name])

    def read(self, name: str, rows: range) -> Tensor:
        found, shift = self._state[name], 0
        if name in self._rows:
            own = ((nodes, own_rows) for nodes, own_rows in self._shard.spans() if rows.start in nodes)
            shift = next((own_rows.start - nodes.start for nodes, own_rows in own), 0)
        return found[rows.start + shift : rows.stop + shift]

    def whole(self, name: str) -> Tensor:
        return self._state[name]

    def summed(self, name: str) -> str | None:
        return None


def load_part(
    folder: str | Path, now: Ranks, device: torch.device | str = "cpu", *, top: int | None = None
) -> TreeModel:
    """One rank's part of the model that `save_model` or a training run wrote, for a search that all ranks do together.

    Args:
        folder: the model; every rank must see it.
        now: the ranks.
        device: where this rank searches.
        top: nodes that the last level may have which every rank holds; 4,096 unless given.
    """
    folder = Path(folder)
    settings = read_settings(folder)
    check_files(folder, settings)
    if "shards" in settings:
        check_shards(folder, settings)
    with damaged(folder):
        tree, known = read_tree(folder, settings)
        shard = Shard.of(tree, now, top)
        with _opened(folder, settings, tree, shard) as weights:
            scorer = part_of(settings["scorer"], settings["scorer_settings"], tree, shard, weights)
        ids = Ids(folder / file_of(settings, "items"), unique=True) if "items" in settings["files"] else None
        model = TreeModel(tree, scorer, chained=settings["chained"], first_level=settings["first_level"], ids=ids)
        model.popularity, model.trained_on_beams = known.get("events"), settings.get("trained_on_beams", False)
    check_finite(model)
    return model.to(device).eval()


@contextmanager
def _opened(folder: Path, settings: dict[str, Any], tree: Tree, shard: Shard) -> Iterator[Weights]:
    if "shards" in settings:
        yield ShardFiles(folder, settings, tree, shard)
        return
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(folder / file_of(settings, "weights"), framework="pt") as weights:
            if "search" not in settings["files"]:
                yield WholeFiles(weights, None)
                return
            with safe_open(folder / file_of(settings, "search"), framework="pt") as search:
                yield WholeFiles(weights, search)
    except SafetensorError as error:
        raise ValueError(f"{folder} is damaged: {error}") from error
