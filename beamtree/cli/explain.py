"""`beamtree explain`: why items have their scores for a history."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from beamtree.cli import options
from beamtree.cli.console import note, out, printable, write
from beamtree.files.atomic import write_json
from beamtree.query import encode_history, parse_history, parse_ids
from beamtree.recommender import Recommender

EVENTS = 10  # of a table; the others are added up


def explain_items(
    run: options.RunFolder,
    items: Annotated[list[str], typer.Option("--item", help="The id of an item to explain; repeatable.")],
    history: Annotated[
        str | None, typer.Option(help="Ids of items, oldest first, written as for `beamtree retrieve`.")
    ] = None,
    users: Annotated[
        str | None, typer.Option(help="Ids of users of the log or of later events saved with the run.")
    ] = None,
    context: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN=VALUE", help="What is known of the request, such as country=DE; repeatable."),
    ] = None,
    request_time: options.RequestTime = None,
    data: options.DataFolder = None,
    device: options.Device = "cpu",
    json: Annotated[
        Path | None, typer.Option("--json", help="Also write all rows to this file, as JSON: one per event and part.")
    ] = None,
) -> None:
    """Why an item has its score for a history: what each event gives, by each part of the score.

    The columns add up to the score before it becomes a probability. The last rows are what no event gives, such as
    popularity and the context of the request.
    """
    if (history is None) == (users is None):
        raise ValueError('give --history "ID,ID,…" or --users "ID,…"')
    options.check_outputs(json)
    shop = Recommender.load(run, device=device, data=data, frame="polars")
    given: dict[str, Any] = {}
    if history is not None:
        names, times = parse_history(history, shop.ids)
        given["histories"] = [list(zip(names, times, strict=True)) if times else names]
        unknown = encode_history(shop.ids, names).unknown
        if unknown:
            events = f"{len(unknown):,} event{'s' if len(unknown) > 1 else ''}"
            note(f"note: {events} ignored: of items that the model does not know ({printable(', '.join(unknown[:5]))})")
    if users is not None:
        given = {"users": list(dict.fromkeys(parse_ids(users, shop.users)))}
        if not given["users"]:
            raise ValueError("--users is empty: give ids of users of the log")
    given |= {"context": options.parse_context(context), "time": request_time, "unknown": "error"}
    key = "history" if users is None else "user"
    rows = shop.explain(items=items, **given).to_dicts()
    scores = shop.score(items=items, **given).to_dicts()
    if json is not None:
        write_json(json, [{name: value for name, value in row.items() if name != "history"} for row in rows])
    for score in scores:
        found = [row for row in rows if (row[key], str(row["item"])) == (score[key], score["item"])]
        show_reasons(score if users is not None else {**score, "user": None}, found)


def show_reasons(score: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """Print the reasons for one item: the sentence, and a table of events and parts."""
    name = printable(score["item"])
    p = "hidden" if score["score"] is None else f"score {score['score']:.4g}"
    write(f"{name}, {p}" + ("" if score["user"] is None else f", for {printable(score['user'])}"), bold=True)
    if not rows:
        write("Nothing gives it anything.")
        return
    first = rows[0]
    if str(first["event"]) == score["item"]:
        write("Because it was chosen before.")
    elif first["event"] is not None and first["total"] > 0:
        write(f"Because of {printable(first['event_title'] or str(first['event']))}.")
    parts = list(dict.fromkeys(row["part"] for row in rows))
    groups: dict[tuple[str, str], dict[str, float]] = {}  # of place and event, or of nothing
    events = list(dict.fromkeys(row["place"] for row in rows if row["place"] is not None))
    shown = set(events if len(events) <= EVENTS + 1 else events[:EVENTS])
    for row in sorted(rows, key=lambda row: (row["place"] is None, row["place"] not in shown)):
        if row["place"] is None:
            label = "", f"the context: {row['column']}" if row.get("column") else "no event"
        elif row["place"] in shown:
            label = str(row["place"]), printable(row["event_title"] or str(row["event"]))
        else:
            label = "", f"{len(events) - len(shown)} other events"
        group = groups.setdefault(label, {})
        group[row["part"]] = group.get(row["part"], 0.0) + row["contribution"]
    groups["", "all"] = {part: sum(group.get(part, 0.0) for group in groups.values()) for part in parts}
    table = Table()
    table.add_column("place", justify="right")
    table.add_column("event", overflow="fold")
    for head in (*parts, "total"):
        table.add_column(head, justify="right", no_wrap=True)
    for (place, event), group in groups.items():
        cells = [f"{group[part]:.4g}" if part in group else "" for part in parts]
        table.add_row(place, escape(event), *cells, f"{sum(group.values()):.4g}")
    out.print(table)
