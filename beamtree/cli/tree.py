"""`beamtree tree`: build a tree, or take that of a run, and write it to a file."""

from pathlib import Path
from typing import Annotated

import typer

from beamtree.builders.cluster import vector_tree
from beamtree.cli import options
from beamtree.cli.console import write
from beamtree.data import load_data
from beamtree.files.atomic import check_writable
from beamtree.ingest.inputs import tree_builder
from beamtree.storage.runs import RUN, ids_of, open_model


def tree(
    source: Annotated[
        Path, typer.Argument(metavar="DATA|RUN", help="Prepared data to build a tree for, or a run to take it from.")
    ],
    out_file: Annotated[Path, typer.Option("--out", help="A .parquet file: each item with the path to its leaf.")],
    name: Annotated[str | None, typer.Option("--tree", help="cluster, category or random.")] = None,
    arity: options.Arity = 2,
    items: options.ItemsFile = None,
    vectors: options.VectorsFile = None,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same tree.")] = 0,
) -> None:
    """Build a tree over the items of prepared data, or take that of a run, and write it to a file.

    For data the default is a cluster tree. For a run it is the tree of the run, or with --tree cluster a new one by the
    item vectors that the run has learned.

    `beamtree train --tree FILE` and `beamtree compare --tree FILE` read the file, as does any reader of Parquet.
    """
    from beamtree.ingest.item_tables import write_tree  # polars takes a moment to import

    if out_file.suffix != ".parquet":
        raise ValueError(f"--out {out_file}: the name of the file must end in .parquet")
    check_writable(out_file)
    if (source / RUN).exists():
        if name not in (None, "cluster") or items is not None or vectors is not None:
            raise ValueError(f"{source} is a run: give --tree cluster to cluster its item vectors, or no options")
        model = open_model(source, "cpu")
        ids = ids_of(source, model)
        built = model.tree if name is None else vector_tree(model.item_vectors(), arity=arity, seed=seed)
    else:
        data = load_data(source)
        built, ids = tree_builder(name or "cluster", items, vectors)(data, arity, seed), data.items
    write_tree(out_file, built, ids)
    write(f"Saved {out_file}: {built.num_items:,} items, {built.height} levels of {built.arity}")
