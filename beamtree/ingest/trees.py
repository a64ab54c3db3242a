"""A tree by the name that users give it, from what they know about their items."""

from collections.abc import Callable
from pathlib import Path

from beamtree.builders import category_tree, cluster_tree, random_tree
from beamtree.data import Prepared
from beamtree.tree import Tree

Build = Callable[[Prepared, int, int], Tree]  # (data, arity, seed)
FILES = (".parquet", ".jsonl", ".ndjson")


def tree_builder(name: str, items: Path | None = None, vectors: Path | None = None) -> Build:
    """What a name and two files ask for; a ValueError where they do not go together.

    Args:
        name: cluster, category, random, or a file that `beamtree tree` wrote.
        items: a table of item and category.
        vectors: vectors of the items to cluster.
    """
    if name.endswith(FILES):
        if items is not None or vectors is not None:
            raise ValueError(f"{name} is a tree already: leave out `items` and `vectors`")
        return lambda data, arity, seed: _from_file(Path(name), data, arity)
    if items is not None and name not in ("category", "cluster"):
        raise ValueError(f"`items` is for category and cluster trees, not {name}")
    if vectors is not None and name != "cluster":
        raise ValueError(f"`vectors` is for cluster trees, not {name}")
    if items is not None and vectors is not None:
        raise ValueError("`items` and `vectors` both say what is alike: give one of them")
    if items is None and name == "category":
        raise ValueError("a category tree needs `items`, a table of item and category")
    builds: dict[str, Build] = {
        "cluster": lambda data, arity, seed: _clustered(data, vectors, items, arity, seed),
        "category": lambda data, arity, seed: _by_category(data, items, arity),
        "random": lambda data, arity, seed: random_tree(data.num_items, arity, seed=seed),
    }
    if name not in builds:
        raise ValueError(f"tree {name!r} is unknown: choose from {', '.join(builds)}")
    return builds[name]


def any_builder(tree: object, items: str | Path | None, vectors: str | Path | None) -> tuple[str, Build]:
    """A name for the tree, and what builds it: from a name, a file, a tree, or a function (data) -> Tree."""
    if isinstance(tree, Tree):
        return "own", lambda data, arity, seed: tree
    if callable(tree):
        return getattr(tree, "__name__", "own"), lambda data, arity, seed: tree(data)
    paths = [None if path is None else Path(path) for path in (items, vectors)]
    return str(tree), tree_builder(str(tree), *paths)


def _from_file(path: Path, data: Prepared, arity: int) -> Tree:
    from beamtree.ingest.items import read_tree  # polars takes a moment to import, and may not be there

    return read_tree(path, data.items, arity if arity > 2 else None)


def _clustered(data: Prepared, vectors: Path | None, items: Path | None, arity: int, seed: int) -> Tree:
    if vectors is None and items is None:
        return cluster_tree(data, arity=arity, seed=seed)
    from beamtree.ingest.items import read_categories, read_vectors

    given = None if vectors is None else read_vectors(vectors, data.items)
    categories = None if items is None else read_categories(items, data.items)
    return cluster_tree(data, vectors=given, categories=categories, arity=arity, seed=seed)


def _by_category(data: Prepared, path: Path | None, arity: int) -> Tree:
    from beamtree.ingest.items import read_categories

    if path is None:
        raise ValueError("a category tree needs a table of item and category")
    return category_tree(read_categories(path, data.items), data.train.events, arity=arity)
