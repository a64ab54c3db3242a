"""`beamtree similar`: items similar to some items."""

from pathlib import Path
from typing import Annotated

import typer

from beamtree.cli import options
from beamtree.cli.retrieve import show_items
from beamtree.files.atomic import write_json
from beamtree.query import Searcher, make_filter, similar_request
from beamtree.train.runs import ids_of, open_model


def similar_items(
    run: options.RunFolder,
    items: Annotated[list[str], typer.Argument(metavar="ITEM…", help="Ids of items.")],
    m: options.Size = 10,
    beam_size: options.BeamText = options.DEFAULT_BEAM,
    allowed: Annotated[Path | None, typer.Option(help="A file of ids, one per line: return only these.")] = None,
    exclude: Annotated[Path | None, typer.Option(help="A file of ids, one per line: return none of these.")] = None,
    device: options.Device = "cpu",
    json: options.Json = None,
) -> None:
    """Items similar to each of some items: those recommended after a single event of the item, without itself.

    The probability of an item is that of a user who chose the given item and nothing else.
    """
    beam = options.parse_beam(beam_size, run)
    options.check_size(m, beam)
    options.check_outputs(json)
    filter = make_filter(options.read_ids(allowed), options.read_ids(exclude))
    model = open_model(run, device)
    searcher = Searcher(model, ids_of(run, model))
    request = similar_request(searcher.ids, items, m)._replace(beam_size=beam, filter=filter)
    results = searcher.recommend(request).results
    if json is not None:
        records = [
            {"similar_to": item, "rank": rank, "item": other, "score": score}
            for item, result in zip(items, results, strict=True)
            for rank, (other, score) in enumerate(zip(result.items, result.scores, strict=True), 1)
        ]
        write_json(json, records)
    for item, result in zip(items, results, strict=True):
        show_items(f"similar to {item}", result)
