"""A tree by the name that users give it, from what they know about their items."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from beamtree.builders import category_tree, cluster_tree, random_tree
from beamtree.data import Prepared
from beamtree.errors import requires
from beamtree.tree import Tree

Build = Callable[[Prepared, int, int], Tree]  # (data, arity, seed)
FILES = (".parquet", ".jsonl", ".ndjson")


def tree_builder(name: str, items: Any = None, vectors: Any = None) -> Build:
    """What a name and two tables ask for; a ValueError where they do not go together.

    Args:
        name: cluster, category, random, or a file that `beamtree tree` wrote.
        items: a table of item and category: a file, or a Polars frame.
        vectors: vectors of the items to cluster, likewise.
    """
    if name.endswith(FILES):
        if items is not None or vectors is not None:
            raise ValueError(f"{name} is a tree already: leave out `items` and `vectors`")
        return partial(_from_file, Path(name))
    if items is not None and name not in ("category", "cluster"):
        raise ValueError(f"`items` is for category and cluster trees, not {name}")
    if vectors is not None and name != "cluster":
        raise ValueError(f"`vectors` is for cluster trees, not {name}")
    if items is not None and vectors is not None:
        raise ValueError("`items` and `vectors` both say what is alike: give one of them")
    if items is None and name == "category":
        raise ValueError("a category tree needs `items`, a table of item and category")
    builds: dict[str, Build] = {  # which can be pickled, as lambdas cannot
        "cluster": partial(_clustered, vectors, items),
        "category": partial(_by_category, items),
        "random": _random,
    }
    if name not in builds:
        raise ValueError(f"tree {name!r} is unknown: choose from {', '.join(builds)}")
    return builds[name]


def any_builder(tree: object, items: Any, vectors: Any) -> tuple[str, Build]:
    """A name for the tree, and what builds it: from a name, a file, a tree, or a function (data) -> Tree."""
    if isinstance(tree, Tree):
        return "own", partial(_as_given, tree)
    if callable(tree):
        return getattr(tree, "__name__", "own"), partial(_by_function, tree)
    return str(tree), tree_builder(str(tree), items, vectors)


def known_table(name: str, source: Any) -> Any:
    """What a user gave as `items` or `vectors`: None, the path of a file, or a Polars frame of what is in memory."""
    if source is None or isinstance(source, str | Path):
        return None if source is None else Path(source)
    with requires("", f"reading {name}"):
        from beamtree.ingest.items import in_memory

    return in_memory(name, source)


def _as_given(tree: Tree, data: Prepared, arity: int, seed: int) -> Tree:
    return tree


def _by_function(build: Callable[[Prepared], Tree], data: Prepared, arity: int, seed: int) -> Tree:
    return build(data)


def _random(data: Prepared, arity: int, seed: int) -> Tree:
    return random_tree(data.num_items, arity, seed=seed)


def _from_file(path: Path, data: Prepared, arity: int, seed: int) -> Tree:
    from beamtree.ingest.items import read_tree  # polars takes a moment to import, and may not be there

    return read_tree(path, data.items, arity if arity > 2 else None)


def _clustered(vectors: Any, items: Any, data: Prepared, arity: int, seed: int) -> Tree:
    if vectors is None and items is None:
        return cluster_tree(data, arity=arity, seed=seed)
    from beamtree.ingest.items import read_categories, read_vectors

    given = None if vectors is None else read_vectors(vectors, data.items)
    categories = None if items is None else read_categories(items, data.items)
    return cluster_tree(data, vectors=given, categories=categories, arity=arity, seed=seed)


def _by_category(items: Any, data: Prepared, arity: int, seed: int) -> Tree:
    from beamtree.ingest.items import read_categories

    return category_tree(read_categories(items, data.items), data.train.events, arity=arity)
