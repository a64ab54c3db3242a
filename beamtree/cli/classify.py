"""`beamtree classify`: learn which labels documents have, and find them."""

import json as json_text
import math
import time
from collections.abc import Iterable
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from beamtree.classify import Classifier
from beamtree.classify.documents import open_documents, read_label_names
from beamtree.cli import options
from beamtree.cli.console import note, out, print_table, printable, write
from beamtree.cli.serve import option
from beamtree.errors import lookup, positive_int, requires
from beamtree.files.atomic import check_writable, write_json
from beamtree.kernels.threads import use_threads

classify = typer.Typer(
    no_args_is_help=True,
    help="Extreme classification: find the right few of thousands of labels for a text, such as the subjects of a book "
    "or the tags of a question.\n\nDocuments are a file with a text and a list of labels per row: Parquet, CSV, JSON "
    "lines, or the text format of the extreme classification sets. The options of logs do not apply to them, so these "
    "commands are separate.",
)

LabelledFile = Annotated[Path, typer.Argument(metavar="FILE", help="A file of documents with texts and labels.")]
ClassifierFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A folder written by `beamtree classify train`.")]
TextColumn = Annotated[str | None, typer.Option("--text-column", help="The column of texts. Default: by its name.")]
LabelColumn = Annotated[str | None, typer.Option("--labels", help="The column of labels. Default: by its name.")]
Separator = Annotated[str | None, typer.Option(help="Between the labels of a text column, such as ';'.")]
LabelNames = Annotated[Path | None, typer.Option(help="Names of labels: a file with the columns label and name.")]
Beam = Annotated[int | None, typer.Option(min=1, help="k: groups of labels that a search looks into.")]


@options.command(classify, "train")
def train(
    documents: LabelledFile,
    out_folder: Annotated[Path, typer.Option("--out", help="The folder to write.")],
    label_names: LabelNames = None,
    text_column: TextColumn = None,
    labels: LabelColumn = None,
    separator: Separator = None,
    trees: Annotated[int, typer.Option(min=1, help="Trees over the labels: fewer are smaller and faster.")] = 3,
    group: Annotated[
        int | None, typer.Option(min=2, help="Labels in a group. Default: 256, or all where there are few labels.")
    ] = None,
    C: Annotated[
        float | None, typer.Option("--C", help="Of the linear classifiers. Default: 0.5, or by validation documents.")
    ] = None,
    min_weight: Annotated[float, typer.Option(help="Weights below are dropped; more makes a smaller model.")] = 0.1,
    memory: Annotated[
        bool, typer.Option(help="Whether labels of the nearest documents count; without them a search is faster.")
    ] = True,
    beam_size: Annotated[int, typer.Option(min=1, help="k of searches that do not give one.")] = 10,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same model.")] = 0,
    threads: options.Threads = None,
) -> None:
    """Learn the labels of documents: trees over the labels, linear classifiers, a memory of documents, and names."""
    use_threads(threads)
    check_writable(out_folder)
    classifier = Classifier(
        beam_size=beam_size, trees=trees, group=group, C=C, min_weight=min_weight, memory=memory, seed=seed
    )
    classifier.fit(documents, names=label_names, text=text_column, label_column=labels, separator=separator)
    classifier.save(out_folder)
    write(f"Saved {out_folder}. Next:", f'  beamtree classify predict {out_folder} --text "…"')
    write(f"  beamtree classify evaluate {out_folder} FILE")


@options.command(classify, "evaluate")
def evaluate(
    run: ClassifierFolder,
    documents: LabelledFile,
    m: Annotated[str, typer.Option(help="Numbers of labels, separated by commas.")] = "1,3,5",
    beam_size: Beam = None,
    metrics: Annotated[
        str, typer.Option(help="Of precision, ndcg, psp (propensity-scored precision), recall, f1 and rare_recall.")
    ] = "precision,ndcg,psp,recall",
    text_column: TextColumn = None,
    labels: LabelColumn = None,
    separator: Separator = None,
    threads: options.Threads = None,
    json: options.Json = None,
) -> None:
    """How well labels of other documents are found, with 95 % intervals over documents."""
    use_threads(threads)
    options.check_outputs(json)
    classifier, names = Classifier.load(run), options.parse_list(metrics)
    cuts = [int(each) if each.isascii() and each.isdigit() else 0 for each in options.parse_list(m)]
    result = classifier.evaluate(
        documents, m=cuts, beam_size=beam_size, metrics=names, text=text_column, label_column=labels,
        separator=separator,
    )  # fmt: skip
    if json is not None:
        write_json(json, [score.record() for score in result.scores])
    table = Table(title=f"{result.users:,} documents, %", caption="below: the 95 % interval of the mean over documents")
    table.add_column("metric", no_wrap=True)
    for cut in cuts:
        table.add_column(f"@{cut}", justify="right", no_wrap=True)
    for name in names:
        scores = [score for score in result.scores if score.metric == name]
        cells = [f"{s.value * 100:.2f}\n[dim]{s.low * 100:.2f} – {s.high * 100:.2f}[/dim]" for s in scores]
        table.add_row(name, *cells)
    print_table(table)


@options.command(classify, "predict")
def predict(
    run: ClassifierFolder,
    text: Annotated[str | None, typer.Option(help="A text.")] = None,
    input: Annotated[Path | None, typer.Option("--input", help="A file of documents.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", help="Where the labels of --input go: .parquet, .csv or .jsonl.")
    ] = None,
    m: Annotated[int, typer.Option(min=1, help="Labels per document.")] = 5,
    beam_size: Beam = None,
    allowed: Annotated[Path | None, typer.Option(help="A file of ids, one per line: find only these labels.")] = None,
    exclude: Annotated[Path | None, typer.Option(help="A file of ids, one per line: find none of these.")] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Show why --text has its first label.")] = False,
    text_column: TextColumn = None,
    threads: options.Threads = None,
) -> None:
    """The best labels of a text, or of a file of documents.

    --output has the columns document (its row, from 0), rank, label, name if labels have names, and score.
    """
    use_threads(threads)
    if (text is None) == (input is None) or (input is None) != (output is None):
        raise ValueError('give --text "…", or --input FILE and --output FILE')
    classifier = Classifier.load(run)
    began = time.monotonic()
    frame = classifier.predict(
        [text] if text is not None else input, m, beam_size=beam_size, allowed=options.read_ids(allowed),
        exclude=options.read_ids(exclude), text=text_column,
    )  # fmt: skip
    if output is not None:
        from beamtree.ingest.documents import write_frame

        write_frame(frame, output)
        documents = frame["document"].max() + 1 if len(frame) else 0
        note(f"{documents:,} documents, {documents / (time.monotonic() - began):,.0f} per second")
        write(f"Saved {output}")
        return
    table = Table()
    for column in frame.columns[1:]:
        table.add_column(column, justify="right" if column in ("rank", "score") else "left", overflow="fold")
    for row in frame.iter_rows(named=True):
        cells = {**row, "score": f"{row['score']:.4g}"}
        table.add_row(*(escape(printable(str(cells[column]))) for column in frame.columns[1:]))
    out.print(table)
    if explain and len(frame):
        write(json_text.dumps(classifier.explain(text, frame["label"][0]), indent=1, ensure_ascii=False))


@options.command(classify, "compare")
def compare(
    documents: Annotated[Path, typer.Argument(metavar="TRAIN", help="A file of documents to train on.")],
    test: Annotated[Path, typer.Argument(metavar="TEST", help="A file of documents to measure on.")],
    label_names: LabelNames = None,
    rows: Annotated[
        str | None, typer.Option(help="Rows separated by commas, such as beamtree,pecos,knn. Default: all.")
    ] = None,
    beam_sizes: Annotated[str, typer.Option(help="k, separated by commas.")] = "1,2,5,10,20",
    text_column: TextColumn = None,
    labels: LabelColumn = None,
    separator: Separator = None,
    threads: options.Threads = None,
    json: options.Json = None,
) -> None:
    """Our classifier and parts of it beside nearest documents, PECOS, omikuji and napkinXC, on the same documents.

    A setting of each of the others is chosen on validation documents of TRAIN; the strongest of them comes first.
    beamtree-no-tree trains a classifier of each label against all documents, which takes long for many labels.
    Packages are used where they are installed: pip install libpecos omikuji napkinxc.
    """
    use_threads(threads)
    options.check_outputs(json)
    with requires("compare", "`beamtree classify compare`"):
        from beamtree.research import label_comparison as comparison
    chosen = comparison.ALL if rows is None else options.parse_list(rows)
    for row in chosen:
        lookup(dict.fromkeys(comparison.ALL), "row", row)
    beams = [
        positive_int("beam_sizes", int(each) if each.isascii() and each.isdigit() else each)
        for each in options.parse_list(beam_sizes)
    ]
    opened = [
        open_documents(path, text=text_column, label_column=labels, separator=separator, needs_labels=True)
        for path in (documents, test)
    ]
    sets = comparison.Sets.of(opened[0], opened[1], read_label_names(label_names))
    missing = {row: why for row in chosen if (why := comparison.why_missing(row, sets))}
    if missing:
        by_reason = {why: [row for row in missing if missing[row] == why] for why in missing.values()}
        note("Left out: " + "; ".join(f"{', '.join(each)} ({why})" for why, each in by_reason.items()))
    found = comparison.compare_labels(sets, [row for row in chosen if row not in missing], beams, note)
    if not found:
        return
    results = comparison.strongest_first(found)
    if json is not None:
        write_json(json, [result.record() for result in results])
    table = Table(
        title=f"{len(results[0].values):,} documents, %",
        caption="± half of the 95 % interval of the mean over documents",
    )
    for head in ("row", "k", "P@1", "P@3", "P@5", "µs in a batch", "µs one by one", "s", "MB"):
        table.add_column(head, justify="left" if head == "row" else "right", no_wrap=True)
    for result in results:
        precision = in_percent(result.values.mean(0), comparison.half_interval(result.values))
        batch = "" if result.us_batch is None else f"{result.us_batch:.0f}"
        costs = (batch, f"{result.us_single:.0f}", f"{result.tuning + result.seconds:.0f}", f"{result.mb:.0f}")
        table.add_row(result.row, "" if result.k is None else str(result.k), *precision, *costs)
    print_table(table)
    for row, k, values, errors in comparison.gains(results):
        cells = ", ".join(in_percent(values, errors, "+"))
        write(f"{comparison.OURS} over {row} at k = {k}, P@1, P@3 and P@5: {cells}")


def in_percent(values: Iterable[float], errors: Iterable[float], sign: str = "") -> list[str]:
    """Means with half of their intervals, where there are any."""
    halves = ["" if math.isnan(error) else f" ±{100 * error:.2f}" for error in errors]
    return [f"{100 * value:{sign}.2f}{half}" for value, half in zip(values, halves, strict=True)]


@options.command(classify, "serve")
def serve(
    run: ClassifierFolder,
    host: Annotated[str, option("host", "The address to listen at; 0.0.0.0 for all.")] = "127.0.0.1",
    port: Annotated[int, option("port", "The port to listen at; 0 for any.", "HTTP_PORT", min=0, max=65535)] = 8000,
    changes: Annotated[
        Path | None,
        option("changes", "A folder that stores changes of labels across restarts; without it nothing can be changed."),
    ] = None,
) -> None:
    """Serve a classifier over HTTP: POST /v1/labels {"text": "…", "m": 5} returns labels and scores.

    PUT and DELETE of /v1/labels/ID add, change and hide labels while others ask. GET /openapi.json describes all
    routes. Tokens are the variables BEAMTREE_READ_TOKEN and BEAMTREE_CHANGE_TOKEN, as for `beamtree serve`.
    """
    with requires("serve", "`beamtree classify serve`"):
        from beamtree.live.journal import Journal
        from beamtree.live.labels import LiveClassifier
        from beamtree.serve.http.access import access_from_environment
        from beamtree.serve.http.classify import ClassifierService, make_classifier_app
        from beamtree.serve.http.server import listen, make_server, url_of
    classifier, listening = Classifier.load(run), listen(host, port)
    with nullcontext() if changes is None else closing(Journal(changes)) as journal:
        live = LiveClassifier(classifier, journal)
        service = ClassifierService(live, run.absolute().name, access_from_environment(host))
        note(f"{service.name} is served at {url_of(listening)}")
        make_server(make_classifier_app(service), service).run(sockets=[listening])
