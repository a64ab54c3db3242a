"""`beamtree tree`, and the options that say where a tree comes from."""

from pathlib import Path
from typing import Annotated

import typer

from beamtree.builders.cluster import vector_tree
from beamtree.cli.screen import out
from beamtree.data import load_data
from beamtree.files.atomic import check_writable
from beamtree.ingest.inputs import tree_builder
from beamtree.train.runs import RUN, ids_of, open_model

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
    from beamtree.ingest.item_tables import write_tree  # polars takes a moment to import

    if out_file.suffix != ".parquet":
        raise ValueError(f"--out {out_file}: give a file that ends in .parquet")
    check_writable(out_file)
    if (source / RUN).exists():
        if name not in (None, "cluster") or items is not None or vectors is not None:
            raise ValueError(f"{source} is a run: give --tree cluster to cluster what it learned, or no options")
        model = open_model(source, "cpu")
        ids = ids_of(source, model)
        grown = model.tree if name is None else vector_tree(model.item_vectors(), arity=arity, seed=seed)
    else:
        data = load_data(source)
        grown, ids = tree_builder(name or "cluster", items, vectors)(data, arity, seed), data.items
    write_tree(out_file, grown, ids)
    shape = f"{grown.num_items:,} items, {grown.height} levels of {grown.arity}"
    out.print(f"Saved {out_file}: {shape}", highlight=False, soft_wrap=True)
