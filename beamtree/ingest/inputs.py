"""What users pass to fit and train, in any form: a log, tables of items, a tree.

Polars is imported only where one of these has to be read.
"""

import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from beamtree.builders import category_tree, cluster_tree, random_tree
from beamtree.data import Prepared, load_data
from beamtree.data.prepared import DESCRIPTION
from beamtree.errors import requires
from beamtree.files.staging import temporary_folder
from beamtree.tree import Tree

TreeBuilder = Callable[[Prepared, int, int], Tree]  # (data, arity, seed)
TEMPORARY = "beamtree-data-"  # how the names of temporary folders begin
TREE_FILES = (".parquet", ".jsonl", ".ndjson")


# Logs


def open_log(
    log: Any,
    seed: int,
    options: dict[str, Any],
    on_stage: Callable[[str], None] = lambda stage: None,
    split: str | None = None,
) -> tuple[Prepared, bool]:
    """Prepared data, or a log of any kind prepared in a temporary folder; and whether it was prepared here.

    The folder is removed with the data. `options` are those of `prepare`; prepared data take none. `split` is that of
    a log for which they name none.
    """
    if isinstance(log, Prepared) or (isinstance(log, str | Path) and (Path(log) / DESCRIPTION).exists()):
        if options:
            raise ValueError(f"{next(iter(options))} is an option of preparing a log, and this one is prepared already")
        return (log if isinstance(log, Prepared) else load_data(log)), False
    with requires("", "reading a log"):
        from beamtree.ingest.prepare import prepare

    def fill(folder: Path) -> None:
        how = {"split": split, **options}
        prepare(log, folder, seed=seed, on_stage=lambda stage: on_stage(f"Preparing the log: {stage}"), **how)

    return _temporary_data(fill), True


def pack_data(data: Prepared) -> dict[str, bytes]:
    """The files of prepared data by name, for pickling."""
    return {path.name: path.read_bytes() for path in data.folder.iterdir()}


def unpack_data(files: dict[str, bytes]) -> Prepared:
    """Prepared data from such files, in a temporary folder that is removed with the data."""

    def fill(folder: Path) -> None:
        folder.mkdir()
        for name, content in files.items():
            (folder / name).write_bytes(content)

    return _temporary_data(fill)


def _temporary_data(fill: Callable[[Path], None]) -> Prepared:
    """Prepared data in a temporary folder, which `fill` writes and which is removed with the data."""
    folder, remove = temporary_folder(TEMPORARY)
    try:
        fill(folder / "data")
        data = load_data(folder / "data")
    except BaseException:
        remove()
        raise
    weakref.finalize(data, remove)
    return data


# Tables


def table_argument(name: str, source: Any) -> Any:
    """The argument `items` or `vectors` as None, the path of a file, or a Polars frame."""
    if source is None or isinstance(source, str | Path):
        return None if source is None else Path(source)
    with requires("", f"reading {name}"):
        from beamtree.ingest.item_tables import as_table

    return as_table(name, source)


# Trees


def any_builder(tree: object, items: Any, vectors: Any) -> tuple[str, TreeBuilder]:
    """The name of a tree and its builder, from a name, a file, a tree, or a function (data) -> Tree."""
    if isinstance(tree, Tree):
        return "own", partial(_given_tree, tree)
    if callable(tree):
        return getattr(tree, "__name__", "own"), partial(_tree_by_function, tree)
    return str(tree), tree_builder(str(tree), items, vectors)


def tree_builder(name: str, items: Any = None, vectors: Any = None) -> TreeBuilder:
    """The builder of a tree: cluster, category, random, or a file that `beamtree tree` wrote.

    `items` is a table of item and category and `vectors` one of vectors to cluster, each a file or a Polars frame. A
    ValueError if they do not fit the name.
    """
    if name.endswith(TREE_FILES):
        if items is not None or vectors is not None:
            raise ValueError(f"{name} is a tree already: leave out `items` and `vectors`")
        return partial(_tree_from_file, Path(name))
    if items is not None and name not in ("category", "cluster"):
        raise ValueError(f"`items` is for category and cluster trees, not {name}")
    if vectors is not None and name != "cluster":
        raise ValueError(f"`vectors` is for cluster trees, not {name}")
    if items is not None and vectors is not None:
        raise ValueError("`items` and `vectors` both define which items are similar: give one of them")
    if items is None and name == "category":
        raise ValueError("a category tree needs `items`, a table of item and category")
    builders: dict[str, TreeBuilder] = {  # functions, since lambdas cannot be pickled
        "cluster": partial(_cluster_tree, vectors, items),
        "category": partial(_category_tree, items),
        "random": _random_tree,
    }
    if name not in builders:
        raise ValueError(f"tree {name!r} is unknown: choose from {', '.join(builders)}")
    return builders[name]


def _given_tree(tree: Tree, data: Prepared, arity: int, seed: int) -> Tree:
    return tree


def _tree_by_function(build: Callable[[Prepared], Tree], data: Prepared, arity: int, seed: int) -> Tree:
    return build(data)


def _random_tree(data: Prepared, arity: int, seed: int) -> Tree:
    return random_tree(data.num_items, arity, seed=seed)


def _tree_from_file(path: Path, data: Prepared, arity: int, seed: int) -> Tree:
    from beamtree.ingest.item_tables import read_tree

    return read_tree(path, data.items, arity if arity > 2 else None)


def _cluster_tree(vectors: Any, items: Any, data: Prepared, arity: int, seed: int) -> Tree:
    if vectors is None and items is None:
        return cluster_tree(data, arity=arity, seed=seed)
    from beamtree.ingest.item_tables import read_categories, read_vectors

    return cluster_tree(
        data,
        vectors=None if vectors is None else read_vectors(vectors, data.items),
        categories=None if items is None else read_categories(items, data.items),
        arity=arity,
        seed=seed,
    )


def _category_tree(items: Any, data: Prepared, arity: int, seed: int) -> Tree:
    from beamtree.ingest.item_tables import read_categories

    return category_tree(read_categories(items, data.items), data.train.events, arity=arity)
