"""`beamtree tree`, and the options that say where a tree comes from."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from beamtree.builders import category_tree, cluster_tree, random_tree
from beamtree.builders.cluster import vector_tree
from beamtree.cli.options import choose
from beamtree.cli.screen import out
from beamtree.data import Prepared, load
from beamtree.data.files import check_writable
from beamtree.train.runs import RUN, open_ids, open_model
from beamtree.tree import Tree

TreeName = Annotated[
    str, typer.Option("--tree", help="cluster, category, random, or a file that `beamtree tree` wrote.")
]
Arity = Annotated[int, typer.Option(min=2, help="Children per node.")]
ItemsFile = Annotated[
    Path | None,
    typer.Option("--items", help="A table of item and category: category trees need it, cluster trees can use it."),
]
VectorsFile = Annotated[
    Path | None, typer.Option("--vectors", help="Vectors of the items to cluster: .npy in their order, or a table.")
]
FILES = (".parquet", ".jsonl", ".ndjson")

Build = Callable[[Prepared, int, int], Tree]  # (data, arity, seed)


def builder(name: str, items: Path | None, vectors: Path | None) -> Build:
    """What --tree, --items and --vectors ask for; a ValueError where they do not go together."""
    if name.endswith(FILES):
        if items is not None or vectors is not None:
            raise ValueError(f"--tree {name} is a tree already: leave out --items and --vectors")
        return lambda data, arity, seed: _from_file(Path(name), data, arity)
    if items is not None and name not in ("category", "cluster"):
        raise ValueError(f"--items is for --tree category and cluster, not {name}")
    if vectors is not None and name != "cluster":
        raise ValueError(f"--vectors is for --tree cluster, not {name}")
    if items is not None and vectors is not None:
        raise ValueError("--items and --vectors both say what is alike: give one of them")
    if items is None and name == "category":
        raise ValueError("--tree category needs --items FILE, a table of item and category")
    builds: dict[str, Build] = {
        "cluster": lambda data, arity, seed: _clustered(data, vectors, items, arity, seed),
        "category": lambda data, arity, seed: _by_category(data, items, arity),
        "random": lambda data, arity, seed: random_tree(data.num_items, arity, seed=seed),
    }
    return choose(builds, "tree", name)


def _from_file(path: Path, data: Prepared, arity: int) -> Tree:
    from beamtree.data.items import read_tree  # polars takes a moment to import

    return read_tree(path, data.items, arity if arity > 2 else None)


def _clustered(data: Prepared, vectors: Path | None, items: Path | None, arity: int, seed: int) -> Tree:
    if vectors is None and items is None:
        return cluster_tree(data, arity=arity, seed=seed)
    from beamtree.data.items import read_categories, read_vectors

    given = None if vectors is None else read_vectors(vectors, data.items)
    categories = None if items is None else read_categories(items, data.items)
    return cluster_tree(data, vectors=given, categories=categories, arity=arity, seed=seed)


def _by_category(data: Prepared, path: Path | None, arity: int) -> Tree:
    from beamtree.data.items import read_categories

    assert path is not None
    return category_tree(read_categories(path, data.items), data.train, arity=arity)


def tree(
    source: Annotated[
        Path, typer.Argument(metavar="DATA|RUN", help="Prepared data to build one for, or a run to take it from.")
    ],
    out_file: Annotated[Path, typer.Option("--out", help="A .parquet file: each item, and the path to its leaf.")],
    name: Annotated[str | None, typer.Option("--tree", help="cluster, category or random; see below.")] = None,
    arity: Arity = 2,
    items: ItemsFile = None,
    vectors: VectorsFile = None,
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same tree.")] = 0,
) -> None:
    """Build a tree over the items of prepared data, or take the one of a run, and write it to a file.

    For data it is a cluster tree unless --tree says otherwise; for a run it is the run's own or, with --tree cluster, a
    new one by the vectors that the run has learned.

    `beamtree train --tree FILE` and `beamtree compare --tree FILE` read it, and so does anything that reads Parquet.
    """
    from beamtree.data.items import write_tree

    if out_file.suffix != ".parquet":
        raise ValueError(f"--out {out_file}: give a file that ends in .parquet")
    check_writable(out_file)
    if (source / RUN).exists():
        if name not in (None, "cluster") or items is not None or vectors is not None:
            raise ValueError(f"{source} is a run: give --tree cluster to cluster what it learned, or no options")
        model, ids = open_model(source, "cpu"), open_ids(source)
        grown = model.tree if name is None else vector_tree(model.item_vectors(), arity=arity, seed=seed)
    else:
        data = load(source)
        grown, ids = builder(name or "cluster", items, vectors)(data, arity, seed), data.items
    write_tree(out_file, grown, ids)
    shape = f"{grown.num_items:,} items, {grown.height} levels of {grown.arity}"
    out.print(f"Saved {out_file}: {shape}", highlight=False, soft_wrap=True)
