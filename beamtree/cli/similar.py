"""`beamtree similar`: items similar to some items."""

from typing import Annotated

import typer

from beamtree.batch.job import make_searcher
from beamtree.cli import options
from beamtree.cli.console import note, printable
from beamtree.cli.retrieve import show_items
from beamtree.files.atomic import write_json
from beamtree.query import make_filter, similar_request
from beamtree.search.choice import AUTO
from beamtree.storage.runs import ids_of, open_model


def similar_items(
    run: options.RunFolder,
    items: Annotated[list[str], typer.Argument(metavar="ITEM…", help="Ids of items.")],
    m: options.Size = 10,
    beam_size: options.OptionalBeam = None,
    search: options.SearchName = AUTO,
    allowed: options.AllowedFile = None,
    exclude: options.ExcludeFile = None,
    where: options.Where = None,
    device: options.Device = "cpu",
    json: options.Json = None,
) -> None:
    """Items similar to each of some items: those recommended after a single event of the item, without itself.

    The probability of an item is that of a user who chose the given item and nothing else. Unknown items are left out
    with a note.
    """
    search, beam = options.parse_search(search, beam_size, run)
    if beam is not None:
        options.check_size(m, beam)
    options.check_outputs(json)
    filter = make_filter(options.read_ids(allowed), options.read_ids(exclude), where=where)
    model = open_model(run, device)
    ids = ids_of(run, model)
    request, unknown = similar_request(ids, items, m)
    request = request._replace(beam_size=beam, search=search, filter=filter)
    if unknown:
        note(f"note: unknown items are left out: {', '.join(map(printable, unknown))}")
    known = [str(item) for (item,) in request.histories]
    results = make_searcher(run, model, request).recommend(request).results
    if json is not None:
        records = [
            {"similar_to": item, "rank": rank, "item": other, "score": score}
            for item, result in zip(ids.as_logged(known), results, strict=True)
            for rank, (other, score) in enumerate(zip(ids.as_logged(result.items), result.scores, strict=True), 1)
        ]
        write_json(json, records)
    for item, result in zip(known, results, strict=True):
        show_items(f"similar to {item}", result)
