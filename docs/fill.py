"""Put the numbers of results/*.json into the pages, and draw the pictures made from them.

A page has markers, `<!-- table2 -->` … `<!-- end -->`; everything between them is written by this script.

    python docs/fill.py            # write
    python docs/fill.py --check    # fail where a page is out of date
"""

import json
import re
import sys
import textwrap
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import cycle
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from beamtree.evaluate import Score
from beamtree.evaluate.beyond_accuracy import LIST_METRICS
from beamtree.research.compare.report import MARKDOWN, cost_grid, legend, measured_users, score_grid
from beamtree.research.paper.cells import Cell, half_interval

ROOT = Path(__file__).parent.parent
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
LOGS = ("movielens-1m", "amazon-books-unordered", "git-rust", "diginetica")  # of the comparison
NARROW_LOGS = ("amazon-books-unordered", "git-rust", "market", "movielens-1m")
CUTS = (10, 50, 100, 200)
METRICS = ("recall", "precision", "f1")
PUBLISHED = tomllib.loads((ROOT / "results" / "published.toml").read_text())  # what others printed, by arena
Cells = list[dict[str, Any]]
Column = tuple[int, str]  # a cut and a log
Values = Mapping[str, Mapping[Column, str]]  # by row


def read(name: str) -> Any:
    return json.loads((ROOT / "results" / f"{name}.json").read_text())


def cells_of(name: str) -> Cells:
    """The records of a file; of a comparison, which has both settings, those with seen items left in."""
    cells: Cells = read(name)["cells"]
    return [cell for cell in cells if not cell.get("exclude_seen")] if name.startswith("compare-") else cells


def grid(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def two_digits(value: float) -> str:
    return f"{value:.2f}"


def by_log(values: Values, cuts: Sequence[int], logs: Sequence[str], metric: str, bold: bool = True) -> str:
    """One number per cell: a line for each cut and row, a column for each log, the best of a cut in bold."""
    lines = []
    for m in cuts:
        best = {log: max(float(row[m, log]) for row in values.values() if (m, log) in row) for log in logs}
        for name, row in values.items():
            texts = [row.get((m, log), "") for log in logs]
            marked = [
                f"**{text}**" if bold and text and float(text) == best[log] else text
                for text, log in zip(texts, logs, strict=True)
            ]
            lines.append([*([str(m)] if len(cuts) > 1 else []), name, *marked])
    heads = ["m", f"{metric}@m, %"] if len(cuts) > 1 else [f"{metric}@{cuts[0]}, %"]
    return grid([*heads, *logs], lines)


# Recommenders


def measured_parts(
    model: str, k: int = 400, method: str = "otm-mixed", recipe: str = "beamtree"
) -> dict[str, dict[str, Any]]:
    """What benchmarks/quality/part_ablation.py measured of a model, by log."""
    wanted = {"model": model, "k": k, "method": method, "recipe": recipe, "exclude_seen": False}
    return {c["log"]: c for c in cells_of("parts") if all(c[name] == value for name, value in wanted.items())}


def of_model(model: str, metric: str = "recall") -> dict[Column, str]:
    rows = measured_parts(model)
    return {(m, log): two_digits(rows[log][metric][str(m)]) for log in LOGS if log in rows for m in CUTS}


def peers(metric: str) -> dict[str, dict[Column, str]]:
    """Baselines, the network alone, and all parts before and after training."""
    rows: dict[str, dict[Column, str]] = {}
    for c in cells_of("peers"):
        row = rows.setdefault(c["row"], {})
        if c["metric"] == metric and c["log"] in LOGS:
            row[c["m"], c["log"]] = two_digits(100 * c["value"])
    rows["otm, the network alone"] = {
        (c["m"], log): two_digits(100 * c["value"])
        for log in LOGS
        for c in cells_of(f"compare-{log}")
        if c.get("row") == "otm" and c["metric"] == metric
    }
    rows["beamtree, closed form"] = of_sequence("closed form", metric)
    rows["beamtree"] = of_sequence("with sequence", metric)
    return rows


def of_sequence(row: str, metric: str = "recall") -> dict[Column, str]:
    """Means over the seeds of a row of benchmarks/quality/sequence_part.py."""
    cells = [c for c in cells_of("sequence") if c["row"] == row and metric in c]
    found: dict[Column, str] = {}
    for log in LOGS:
        runs = [c[metric] for c in cells if c["log"] == log]
        for m, values in zip(CUTS, zip(*runs, strict=True), strict=False):
            found[m, log] = two_digits(sum(values) / len(values))
    return found


def all_peers() -> str:
    return "\n\n".join(by_log(peers(metric), CUTS, LOGS, metric) for metric in METRICS)


def two_cores(metrics: Sequence[str]) -> str:
    """What `beamtree train` finds on two CPU cores, and in which time."""
    lines = [
        [
            *([metric] if len(metrics) > 1 else []),
            cell["log"],
            f"{cell['seconds']:,}",
            *map(two_digits, cell[metric]),
        ]
        for metric in metrics
        for cell in cells_of("two_cores")
    ]
    first = ["%"] if len(metrics) > 1 else []
    cuts = [f"@{m}" if len(metrics) > 1 else f"{metrics[0]}@{m}, %" for m in CUTS]
    return grid([*first, "log", "seconds", *cuts], lines)


def elsewhere(cuts: Sequence[int]) -> str:
    """Recall of baselines that separate programs measured on the same users."""
    found = read("elsewhere")
    rows = {
        name: {(m, log): two_digits(v) for log, values in row.items() for m, v in zip(CUTS, values, strict=True)}
        for name, row in found["recall"].items()
    }
    return by_log({**rows, "beamtree": of_sequence("with sequence")}, cuts, LOGS, "recall")


def parts(cuts: Sequence[int]) -> str:
    """What is left without each part, and what each part finds alone."""
    names = {"start": "closed form", "trained": "all parts, trained"}
    ablations = dict.fromkeys(c["model"] for c in cells_of("parts") if c["model"] not in (*names, "refitted"))
    order = [*names, *sorted(ablations, key=lambda name: name.endswith("alone"))]
    return by_log({names.get(m, m): of_model(m) for m in order}, cuts, LOGS, "recall", bold=False)


def sequence() -> str:
    """What the sequence part adds: means over the seeds."""
    cells = cells_of("sequence")
    lines = []
    for log in dict.fromkeys(c["log"] for c in cells):
        for row in ("closed form", "sequence alone", "with sequence", "with sequence, every leaf"):
            found = [c for c in cells if (c["log"], c["row"]) == (log, row)]
            means = [
                sum(each) / len(found) for each in zip(*((*c["recall"], c["ndcg@10"]) for c in found), strict=True)
            ]
            size = next((f"{c['mb']:.0f}" for c in found if "mb" in c), "")
            lines += [[log, row, str(len(found)), *map(two_digits, means), size]] if found else []
    return grid(["log", "row", "seeds", *(f"R@{m}" for m in CUTS), "NDCG@10", "MB"], lines)


def inner_nodes() -> str:
    """What beams lose, by how the vectors of inner nodes were made."""
    cells = cells_of("inner_nodes")
    values = {(c["log"], c["parts"], c["row"], c["k"]): c for c in cells}

    def both(cell: dict[str, Any] | None, name: str) -> str:
        return "" if cell is None else f"{cell[name][0]:.2f} ± {cell[name][1]:.2f}"

    lines = []
    for log, parts, row in dict.fromkeys((c["log"], c["parts"], c["row"]) for c in cells):
        found = [values.get((log, parts, row, k)) for k in (400, 50, 20)]
        texts = [both(cell, name) for name in ("lost@10", "regret@10") for cell in found]
        lines.append([log, parts, row, *texts])
    heads = ["lost, k = 400", "50", "20", "regret, k = 400", "50", "20"]
    return grid(["log", "parts", "inner nodes", *heads], lines)


def narrow(at_ten: bool) -> str:
    """What narrow beams find: recall@k, or recall@10."""
    lines = []
    for recipe, scorer in (("beamtree", "all parts"), ("deep", "network alone")):
        for k in (20, 50):
            for name, model, method in (
                ("not trained", "start", "otm-mixed"),
                ("TDM", "trained", "tdm"),
                ("OTM", "trained", "otm-mixed"),
            ):
                row = measured_parts(model, k, method, recipe)
                m = "10" if at_ten else str(k)
                values = [two_digits(row[log]["recall"][m]) if log in row else "" for log in NARROW_LOGS]
                lines.append([scorer, str(k), name, *values])
    return grid(["scorer", "k", "training", *NARROW_LOGS], lines)


def several_trees() -> str:
    """What beams over several trees find, beside one tree with as many nodes."""

    def both(values: Sequence[float]) -> str:
        return f"{values[0]:.2f} ± {values[1]:.2f}"

    heads = ["log", "k", "trees", "of the best k", "recall@k", "ms"]
    cells = cells_of("several_trees")
    rows = [(c["log"], str(c["k"]), c["row"], both(c["best"]), both(c["recall"]), two_digits(c["ms"])) for c in cells]
    return grid(heads, rows)


# The tree methods


def tree_methods(m: int) -> str:
    """Recall of the sixteen rows of the paper's comparison on each log."""
    rows: dict[str, dict[Column, str]] = {}
    for log in LOGS:
        for c in cells_of(f"compare-{log}"):
            if c["metric"] == "recall" and c["m"] == m:
                rows.setdefault(c["row"], {})[m, log] = two_digits(100 * c["value"])
    return by_log(rows, [m], LOGS, "recall")


def comparison(name: str) -> str:
    """The whole table that `beamtree compare` writes."""
    cells = cells_of(f"compare-{name}")
    notes = textwrap.fill(legend(cells).replace("*", MARKDOWN.star), 100)
    users = [f"{measured_users(cells)}."] if measured_users(cells) else []
    return "\n\n".join([*users, score_grid(cells).markdown(2), notes, cost_grid(cells).markdown()])


def calibration(kind: str = "all") -> str:
    """The expected calibration error of each log, for validation and test users, at two list lengths."""
    found = {(c["log"], c["users"], c["m"]): c for c in read("calibration") if c["items"] == kind}
    columns = [(users, m) for users in ("validation", "test") for m in (10, 50)]
    rows = [
        [log, *(f"{found[log, *column]['error']:.4f}" for column in columns)]
        for log in dict.fromkeys(k[0] for k in found)
    ]
    return grid(["log", *(f"{users} users, m = {m}" for users, m in columns)], rows)


def reliability(log: str) -> str:
    """How often validation users chose what had a score, at m = 10, in bins of a tenth."""
    cell = next(
        c for c in read("calibration") if (c["log"], c["users"], c["items"], c["m"]) == (log, "validation", "all", 10)
    )
    rows = [[f"{bin['score']:.3f}", f"{bin['chosen']:.3f}", f"{bin['items']:,}"] for bin in cell["bins"]]
    return grid(["mean score", "chosen", "items"], rows)


def trees(every_run: bool) -> str:
    def text(runs: list[float]) -> str:
        return ", ".join(map(two_digits, runs)) if every_run or not runs else two_digits(sum(runs) / len(runs))

    rows: Cells = read("trees")
    columns = list(rows[0])[1:]
    return grid(["tree", *columns], [[row["tree"], *(text(row[column]) for column in columns)] for row in rows])


def arena(name: str) -> str:
    """Our rows of an arena beside published ones, best recall first; without rows that are details of others."""
    published = PUBLISHED[name]
    ours = [row for row in read(f"arena-{name}")["rows"] if not row.get("detail")]
    rows, m = [*ours, *published["rows"]], published["m"]
    heads = ["row", "source", "fitted to", "also knows", "seen items", f"recall@{m}", f"NDCG@{m}"]
    lines = []
    for row in sorted(rows, key=lambda row: -row["recall"]):
        name, source = (row["row"], row["source"]) if "source" in row else (f"**{row['row']}**", "ours")
        scores = (f"{row[metric]:.4f}" for metric in ("recall", "ndcg"))
        lines.append([name, source, row.get("fitted", ""), row["knows"], row["seen"], *scores])
    return grid(heads, lines)


def segments(metrics: Sequence[str], parts: bool) -> str:
    """Metrics of lists, or recall by segment, at 50: a row for each metric or segment, a column for each method."""
    cells = [cell for cell in cells_of("segments") if cell["m"] == 50 and cell["metric"] in metrics]
    cells = [cell for cell in cells if parts or cell["segment"] == "all"]
    methods, head = list(dict.fromkeys(cell["row"] for cell in cells)), "segment" if parts else "metric"
    texts: dict[str, dict[str, str]] = {}
    for cell in cells:
        score = Score(*(cell[name] for name in ("metric", "m", "value", "low", "high")))
        value, low, high = score.as_text()
        texts.setdefault(cell[head], {})[cell["row"]] = f"{value} [{low}, {high}]"
    return grid([head, *methods], [[name, *(row[method] for method in methods)] for name, row in texts.items()])


def market() -> str:
    cells = cells_of("market")
    values = {(c["metric"], c["row"], c["m"]): c["value"] for c in cells}
    lines = []
    for metric in dict.fromkeys(c["metric"] for c in cells):
        for row in dict.fromkeys(c["row"] for c in cells):
            texts = []
            for m in CUTS:
                best = max(value for key, value in values.items() if key[::2] == (metric, m))
                text = f"{values[metric, row, m] * 100:.1f}"
                texts.append(f"**{text}**" if values[metric, row, m] == best else text)
            lines.append([metric, row, *texts])
    return grid(["%", "row", *(f"@{m}" for m in CUTS)], lines)


def market_kept() -> str:
    shares: dict[str, list[float]] = read("market")["kept"]
    levels = range(8, 8 + len(next(iter(shares.values()))))
    rows = [[row, *(f"{share * 100:.0f}" for share in each)] for row, each in shares.items()]
    return grid(["% kept at level", *map(str, levels)], rows)


# The paper's tables


def random_rules() -> str:
    found = read("rules")
    counts, times = found["counts"], found["milliseconds"]

    def exact(beam: str) -> str:
        return f"{counts[f'exact, {beam} beam']:,} of {counts[f'compared, {beam} beam']:,}"

    def milliseconds(name: str) -> str:
        return f"{times[name]['median']:.1f}; {times[name]['p99']:.0f}"

    rows = [
        (f"requests with rules, to a market of {found['items']:,} items", f"{found['requests']:,}"),
        ("short answers", f"{counts['short']:,}"),
        ("broken answers", f"{counts['broken']:,}"),
        ("answers of fewer than m items, because there cannot be more", f"{counts['fewer than m']:,}"),
        ("exact answers with a beam of 400", exact("wide")),
        ("exact answers with a beam of 10 to 50", exact("narrow")),
        ("milliseconds with new rules: median; 99th percentile", milliseconds("new_rules")),
        ("milliseconds with rules that were used before", milliseconds("same_rules")),
        ("milliseconds without rules", milliseconds("no_rules")),
    ]
    return grid(["", ""], rows)


def in_full(cell: dict[str, Any], digits: int, best: bool = False) -> str:
    """Ours, its interval, the paper's number, and a mark where they differ by more than the tolerance."""
    ours = f"**{cell['value']:.{digits}f}**" if best else f"{cell['value']:.{digits}f}"
    interval = f" ± {half_interval(cell['std'], cell['runs']):.{digits}f}" if cell["runs"] > 1 else ""
    paper = "" if cell["paper"] is None else f" ({cell['paper']:.{digits}f})"
    return f"{ours}{interval}{paper}{' ✗' if cell['within'] is False else ''}"


def ours_and_paper(cell: dict[str, Any] | None, digits: int, best: bool = False) -> list[str]:
    """Two cells: ours, with a mark where it is outside the tolerance, and the paper's."""
    if cell is None:
        return ["", ""]
    ours = f"**{cell['value']:.{digits}f}**" if best else f"{cell['value']:.{digits}f}"
    paper = "" if cell["paper"] is None else f"{cell['paper']:.{digits}f}"
    return [ours + (" ✗" if cell["within"] is False else ""), paper]


def toy(table: str, full: bool) -> str:
    cells = cells_of(table)
    columns = list(dict.fromkeys(c["N"] for c in cells))
    names = {"inf": "N = ∞, float32", "inf-exact": "N = ∞, exact order"}
    heads = [names.get(n, f"N = {n}") for n in columns]
    values = {(c["estimator"], c["k"], c["m"], c["N"]): c for c in cells}
    rows = []
    for key in dict.fromkeys((c["estimator"], c["k"], c["m"]) for c in cells):
        row = [values.get((*key, n)) for n in columns]
        texts = (
            [in_full(c, 3) if c else "" for c in row] if full else [text for c in row for text in ours_and_paper(c, 3)]
        )
        rows.append([*map(str, key), *texts])
    if full:
        return grid(["estimator", "k", "m", *heads], rows)
    heads = ["estimator", "k", "m", *(head for name in heads for head in (name, "paper"))]
    filled_columns = [i for i in range(len(heads)) if any(row[i] for row in rows)]
    return grid([heads[i] for i in filled_columns], [[row[i] for i in filled_columns] for row in rows])


def synthetic(table: str, full: bool) -> str:
    cells = cells_of(table)
    columns = list(dict.fromkeys(c["m"] for c in cells))
    values = {(c["bias"], c["row"], c["m"]): c for c in cells}
    lowest: dict[tuple[float, int], float] = {}
    for c in cells:
        key = c["bias"], c["m"]
        lowest[key] = min(c["value"], lowest.get(key, c["value"]))
    rows = []
    for bias, row in dict.fromkeys((c["bias"], c["row"]) for c in cells):
        texts = []
        for m in columns:
            cell = values[bias, row, m]
            best = cell["value"] == lowest[bias, m]
            texts += [in_full(cell, 4, best)] if full else ours_and_paper(cell, 4, best)
        rows.append([*([f"{bias:g}"] if full else []), row, *texts])
    if full:
        return grid(["c", "method", *(f"m = {m}" for m in columns)], rows)
    return grid(["method", *(head for m in columns for head in (f"m = {m}", "paper"))], rows)


def later_methods() -> str:
    """Regret by method, each cell a mean over runs; every row has the same trees and instances.

    ± is half of the 95 % interval of the difference from OTM in the same run. The lowest of a column is bold if the
    interval of its difference from every other row is beside 0.
    """
    cells = cells_of("later_methods")
    columns = list(dict.fromkeys(c["m"] for c in cells))
    rows = {name: {c["m"]: c["values"] for c in cells if c["row"] == name} for name in (c["row"] for c in cells)}

    def differs(values: Sequence[float], others: Sequence[float]) -> bool:
        return values is not others and abs(mean(values) - mean(others)) > paired(values, others)

    def paired(values: Sequence[float], others: Sequence[float]) -> float:
        differences = [value - other for value, other in zip(values, others, strict=True)]
        return half_interval(stdev(differences), len(differences))

    def text(name: str, m: int) -> str:
        values, otm = rows[name][m], rows["otm"][m]
        lowest = all(mean(values) <= mean(row[m]) for row in rows.values())
        clear = lowest and all(differs(values, row[m]) for other, row in rows.items() if other != name)
        shown = f"**{mean(values):.4f}**" if clear else f"{mean(values):.4f}"
        return shown if name == "otm" else f"{shown} ± {paired(values, otm):.4f}"

    heads = ["method", *(f"m = {m}" for m in columns)]
    return grid(heads, [[name, *(text(name, m) for m in columns)] for name in rows])


# Speed


def pareto() -> str:
    found = read("bench_pareto")
    lines = [
        [
            c["row"],
            str(c["width"] or ""),
            f"{c['ms']:.2f}",
            two_digits(c["recall"] * 100),
            two_digits((c["high"] - c["low"]) * 50),
        ]
        for c in found["cells"]
    ]
    return grid(["row", "beam, or breadth", "ms per query", f"recall@{found['m']}, %", "±"], lines)


def query_parts() -> str:
    """Milliseconds of a query with each part, on a CPU and on a GPU."""
    records: Cells = read("bench_parts")
    columns = list(dict.fromkeys((r["device"], r["items"]) for r in records))
    times = {(r["device"], r["items"], r["scorer"]): r["value"] for r in records}
    scorers = dict.fromkeys(r["scorer"] for r in records)

    def cell(key: tuple[str, int, str]) -> str:
        return two_digits(times[key]) if key in times else ""

    lines = [[scorer, *(cell((*column, scorer)) for column in columns)] for scorer in scorers]
    return grid(["ms per query", *(f"{device}, {items:,} items" for device, items in columns)], lines)


def steps() -> str:
    rows = [
        [r["bench"].removeprefix("step "), f"{r['literal_ms']:.1f}", f"{r['ours_ms']:.2f}", f"{r['speedup']:.1f}"]
        for r in read("bench_step_gpu")
    ]
    return grid(["step, optimiser", "as published", "ours", "times"], rows)


def searches(device: str) -> str:
    digits = 2 if device == "cpu" else 3
    rows = [
        [
            f"{r['items']:,}",
            f"{r['batch']}",
            f"{r['threads']}",
            f"{r['literal_ms']:.{digits}f}",
            f"{r['ours_ms']:.{digits}f}",
            f"{r['speedup']:.2f}",
        ]
        for r in read(f"bench_search_{device}")
    ]
    return grid(["items", "batch", "threads", "as published", "ours", "times"], rows)


def growth(device: str) -> str:
    records: Cells = read(f"bench_scale_{device}")
    step = {r["items"]: r for r in records if r["bench"] == "scale step"}
    rows = [
        [
            f"{r['items']:,}",
            f"{r['nodes']:,}",
            f"{r['literal_ms']:.2f}",
            f"{r['ours_ms']:.2f}",
            f"{step[r['items']]['ours_ms']:.2f}" if r["items"] in step else "",
            f"{step.get(r['items'], r)['memory_bytes'] / 1e9:.1f} GB",
            f"{r['table_bytes'] / 1e9:.2f} GB",
        ]
        for r in records
        if r["bench"] == "scale query"
    ]
    return grid(["items", "nodes", "query as published", "query", "step", "memory", "table"], rows)


def builds() -> str:
    """Time to build a cluster tree."""
    names = {"cpu": "two ARM cores"}
    rows = [
        [names.get(r["device"], r["device"]), f"{r['items']:,}", f"{r['dim']}", f"{r['ours_ms'] / 1000:.1f} s"]
        for device in ("gpu", "cpu")
        for r in read(f"bench_build_{device}")
    ]
    return grid(["device", "items", "vector length", "time"], rows)


# Extreme classification


def main_rows() -> Cells:
    """Cells of classifiers, without those of ours that have fewer features or trees."""
    others = ("-words", "-one-tree", "-two-trees")
    return [c for c in cells_of("classification") if not any(other in c["row"] for other in others)]


def drawn_rows() -> Cells:
    """The same, with the fastest of the others."""
    fastest = ("beamtree-linear-words-one-tree", "beamtree-linear-one-tree")
    more = [{**c, "row": "beamtree-linear, one tree"} for c in cells_of("classification") if c["row"] in fastest]
    return [*main_rows(), *more]


def classification() -> str:
    """P@1, P@3 and P@5 by set, row and beam; the best of each cell in bold."""
    cells = main_rows()
    beams = (1, 2, 5, 10, 20)
    lines = []
    for name in dict.fromkeys(c["set"] for c in cells):
        of_set = [c for c in cells if c["set"] == name]
        best = {(k, p): max(c[p] for c in of_set if c["k"] in (k, None)) for k in beams for p in ("p1", "p3", "p5")}
        for row in dict.fromkeys(c["row"] for c in of_set):
            found = {c["k"]: c for c in of_set if c["row"] == row}
            texts = []
            for k in beams:
                cell = found.get(k) or (found.get(None) if k == beams[-1] else None)
                values = [] if cell is None else [(cell[p], best[k, p]) for p in ("p1", "p3", "p5")]
                texts.append(" ".join(f"**{v:.1f}**" if v >= most else f"{v:.1f}" for v, most in values))
            lines.append([name, row, *texts])
    return grid(["set", "row", *(f"k = {k}" for k in beams)], lines)


def gains_of(cell: dict[str, Any]) -> list[str]:
    """Differences with half of their intervals."""
    return [f"{gain:+.1f} ± {error:.1f}" for gain, error in zip(cell["gain"], cell["error"], strict=True)]


def classification_gains() -> str:
    """By how much our classifier is ahead of others at k = 10, with intervals."""
    lines = [[cell["set"], cell["row"], *gains_of(cell)] for cell in read("classification")["gains"]]
    return grid(["set", "beside", "P@1", "P@3", "P@5"], lines)


def classification_cost() -> str:
    """Time and size of classifiers."""
    lines = []
    cells = main_rows()
    for name, row in dict.fromkeys((c["set"], c["row"]) for c in cells):
        found = [c for c in cells if (c["set"], c["row"]) == (name, row) and c["k"] in (2, 5, 10, None)]

        def times(key: str, found: Cells = found) -> str:
            return " ".join("–" if c[key] is None else f"{c[key]:.0f}" for c in found)

        parts = [found[0][key] for key in ("seconds", "tuning")]
        seconds = "–" if None in parts else f"{sum(parts):.0f}"
        lines.append([name, row, times("us_batch"), times("us_single"), seconds, f"{found[0]['mb']:.0f}"])
    heads = ["set", "row", "in a batch, k = 2 5 10", "one by one, k = 2 5 10", "seconds, with tuning", "MB"]
    return grid(heads, lines)


def number_of_trees() -> str:
    """Precision, time and size of one to three trees with words alone, beside PECOS."""
    names = {"pecos": "PECOS"}
    for parts, name in (("beamtree-linear", "linear part"), ("beamtree", "all parts")):
        for number, trees in (("-one-tree", "one tree"), ("-two-trees", "two trees"), ("", "three trees")):
            names[f"{parts}-words{number}"] = f"{trees}, {name}"
    beams, lines = (1, 2, 5, 10), []
    for row, name in names.items():
        found = {c["k"]: c for c in cells_of("classification") if (c["set"], c["row"]) == ("yso-en", row)}
        texts = [
            f"{c['p1']:.1f} {c['p3']:.1f} {c['p5']:.1f}, {c['us_batch']:.0f} {c['us_single']:.0f}"
            for c in (found[k] for k in beams)
        ]
        seconds = found[1]["seconds"] + found[1]["tuning"]
        lines.append([name, *texts, f"{seconds:.0f}", f"{found[1]['mb']:.0f}"])
    return grid(["row", *(f"k = {k}" for k in beams), "seconds", "MB"], lines)


def encoder() -> str:
    """Precision of classifiers with and without the encoder, on test documents."""
    lines = []
    for cell in cells_of("encoder"):
        values = [" ".join(f"{value:.1f}" for value in cell[name]) for name in ("without", "with")]
        lines.append([cell["set"], str(cell["k"]), *values, " ".join(gains_of(cell))])
    return grid(["set", "k", "without", "with", "difference"], lines)


def encoder_validation() -> str:
    """What the encoder adds on validation documents of all sets."""
    lines = [
        [c["set"], f"{c['documents']:,}", f"{c['labels']:,}", f"{c['gain']:+.1f} ± {c['error']:.1f}"]
        for c in read("encoder")["validation"]
    ]
    return grid(["set", "documents", "labels", "difference"], lines)


def label_methods(name: str) -> str:
    """What training under the beam brings to trees over labels, with intervals of the difference to PLT, by beam."""
    names = {
        "plt": "PLT", "tdm": "TDM", "beam": "PLT, negatives of the beam", "otm": "OTM", "means": "means of the leaves",
        "maxima": "fitted to maxima", "every label": "every label scored", "no encoder": "without the encoder",
    }  # fmt: skip
    cells = cells_of(name)
    beams = sorted({cell["k"] for cell in cells})
    found = {(c["set"], c["parts"], c["row"], c["k"]): c for c in cells}
    lines = []
    for key in dict.fromkeys((c["set"], c["parts"], c["row"]) for c in cells):
        own = [found[*key, k] for k in beams]
        values = [[f"{value:.1f}" for value in c["p"]] if c["row"] == "plt" else gains_of(c) for c in own]
        lines.append([key[0], key[1], names[key[2]], *map(", ".join, values)])
    return grid(["set", "parts", "row", *(f"k = {k}" for k in beams)], lines)


# Weights of events, and items without events


def recalls_by_row(name: str, log: str, kinds: Sequence[str] = ("",)) -> str:
    """A line for each row of a log, with intervals, the best of each column in bold."""
    cells = [cell for cell in cells_of(name) if cell["log"] == log]
    places = [(kind, m) for kind in kinds for m in (10, 50, 200)]
    by_place = {(cell["row"], cell.get("items", ""), cell["m"]): cell for cell in cells}
    best = {place: max(cell["value"] for key, cell in by_place.items() if key[1:] == place) for place in places}
    lines = []
    for row in dict.fromkeys(cell["row"] for cell in cells):
        texts = []
        for place in places:
            cell = by_place[row, *place]
            text = two_digits(100 * cell["value"])
            half = 50 * (cell["high"] - cell["low"])
            texts.append((f"**{text}**" if cell["value"] == best[place] else text) + f" ± {half:.2f}")
        lines.append([row, *texts])
    return grid(["recall@m, %", *(f"{kind} {m}".strip() for kind, m in places)], lines)


def cold_draws(log: str) -> str:
    """What is found of new items, and what others lose, beside training with all events, draw by draw."""
    cells = {(cell["row"], cell["items"], cell["m"]): cell for cell in cells_of("cold_items") if cell["log"] == log}
    lines = []
    for row, kinds in (("by features", ("new", "others")), ("not known", ("others",))):
        some = [(kind, cells[row, kind, m]) for kind in kinds for m in (10, 50, 200)]
        empty = [""] * (6 - len(some))
        for draw in range(len(some[0][1]["share_of_trained"])):
            shares = [(kind, 100 * cell["share_of_trained"][draw]) for kind, cell in some]
            values = [share if kind == "new" else 100 - share for kind, share in shares]
            lines.append([f"{row}, draw {draw + 1}", *empty, *(f"{value:.1f}" for value in values)])
        halves = [50 * (cell["lost_high"] - cell["lost_low"]) for _, cell in some]
        means = [100 - 100 * cell["lost"] if kind == "new" else 100 * cell["lost"] for kind, cell in some]
        texts = [f"**{mean:.1f}** ± {half:.1f}" for mean, half in zip(means, halves, strict=True)]
        lines.append([f"{row}, all draws", *empty, *texts])
    heads = [f"new found {m}" for m in (10, 50, 200)] + [f"others lost {m}" for m in (10, 50, 200)]
    return grid(["% of training with all events", *heads], lines)


def cold_trade_off() -> str:
    """What a simulation found of new items, and what others lost, by how new items are placed and scaled."""
    lines = []
    for each in read("cold_items")["trade_off"]:
        values = [100 * value for value in (*each["new"], *each["lost"])]
        lines.append([each["row"], *(f"{value:.1f}" for value in values)])
    heads = [f"new found {m}" for m in (10, 50, 200)] + [f"others lost {m}" for m in (10, 50, 200)]
    return grid(["% of training with all events", *heads], lines)


# Nightly renewal


def renewal() -> str:
    """Recall of the next day, time and answers that stay, night by night."""
    lines = []
    for night in read("renewal")["nights"]:
        recalls = [f"{100 * night[f'{row}@{m}']:.2f}" for m in (10, 200) for row in ("renewed", "fitted", "first")]
        times = [f"{night[f'{what}_cpu_seconds']:.0f}" for what in ("renewal", "fit")]
        shares = [f"{100 * night[name]:.0f}" for name in ("unchanged", "unchanged_by_fits")]
        lines.append([str(night["night"]), *recalls, *times, *shares])
    heads = [f"@{m} {row}" for m in (10, 200) for row in ("renewed", "new fit", "first model")]
    heads += ["s renewed", "s new fit", "stay, % renewed", "stay, % new fit"]
    return grid(["night", *heads], lines)


def renewal_time() -> str:
    """CPU time of a fit and of two renewals with one thread."""
    times = read("renewal")["one_thread"]
    fit, renewals = times["fit_cpu_seconds"], times["renewal_cpu_seconds"]
    lines = [["fit", f"{fit:.1f}", "100"]]
    lines += [["renewal", f"{seconds:.1f}", f"{100 * seconds / fit:.0f}"] for seconds in renewals]
    return grid(["one thread", "s of CPU time", "% of a fit"], lines)


def renewal_summary() -> str:
    """The renewed models beside others over all nights."""
    names = {"fitted": "new fit", "first": "first model"}
    lines = []
    for cell in read("renewal")["summary"]:
        change = f"{100 * (cell['renewed'] / cell['value'] - 1):+.2f} %"
        interval = f"{100 * cell['low']:+.2f} to {100 * cell['high']:+.2f}"
        values = [f"{100 * cell[name]:.2f}" for name in ("renewed", "value")]
        lines.append([str(cell["m"]), names[cell["other"]], *values, change, interval])
    return grid(["m", "beside", "renewed, %", "other, %", "change", "difference"], lines)


# Examples


def example(name: str) -> str:
    """The part of an example to copy: everything above its main block, without its docstring."""
    text = (ROOT / "examples" / f"{name}.py").read_text().split('if __name__ == "__main__":')[0]
    lines = text.split('"""', 2)[2].strip().splitlines()
    imports = [line for line in lines if line.startswith(("import ", "from "))]
    code = "\n".join(line for line in lines if line not in imports)
    for line in imports:  # drop the imports that only the main block uses
        names = re.findall(r"\w+", line.split("import ")[1].split(" as ")[-1])
        if not any(re.search(rf"\b{name}\b", code) for name in names):
            lines.remove(line)
    code = re.sub(r"\n\n\n+(?=import|from)", "\n\n", "\n".join(lines).strip())
    return f"```python\n{code}\n```"


PARTS = {
    "peers_recall_10": lambda: by_log(peers("recall"), [10], LOGS, "recall"),
    "peers_recall_200": lambda: by_log(peers("recall"), [200], LOGS, "recall"),
    "peers_all": all_peers,
    "two_cores": lambda: two_cores(["recall"]),
    "elsewhere": lambda: elsewhere([200]),
    "elsewhere_all": lambda: elsewhere(CUTS),
    "parts": lambda: parts([200]),
    "sequence": sequence,
    "classification": classification,
    "classification_cost": classification_cost,
    "number_of_trees": number_of_trees,
    "classification_gains": classification_gains,
    "encoder": encoder,
    "encoder_validation": encoder_validation,
    "encoder_methods": partial(label_methods, "encoder_methods"),
    "label_methods": partial(label_methods, "label_methods"),
    "calibration": calibration,
    "calibration_unseen": partial(calibration, "exclude_seen"),
    "calibration_filter": partial(calibration, "filter"),
    "reliability_movielens": partial(reliability, "movielens-1m"),
    "context_market": partial(recalls_by_row, "context", "simulated market"),
    "context_visitors": partial(recalls_by_row, "context", "new visitors"),
    "context_movielens": partial(recalls_by_row, "context", "movielens-1m"),
    "context_git": partial(recalls_by_row, "context", "git-rust"),
    "weights_ratings": partial(recalls_by_row, "event_weights", "movielens-1m"),
    "weights_purchases": partial(recalls_by_row, "event_weights", "made-up market"),
    "cold_movielens": partial(recalls_by_row, "cold_items", "movielens-1m", ("new", "others")),
    "cold_draws": partial(cold_draws, "movielens-1m"),
    "cold_trade_off": cold_trade_off,
    "cold_git_rust": partial(recalls_by_row, "cold_items", "git-rust", ("new", "others")),
    "cold_rare": partial(recalls_by_row, "cold_items", "git-rust", ("rare",)),
    "renewal": renewal,
    "renewal_summary": renewal_summary,
    "renewal_time": renewal_time,
    "inner_nodes": inner_nodes,
    "several_trees": several_trees,
    "parts_all": lambda: parts(CUTS),
    "narrow": lambda: narrow(at_ten=False),
    "narrow_10": lambda: narrow(at_ten=True),
    "methods_recall_10": lambda: tree_methods(10),
    "methods_recall_200": lambda: tree_methods(200),
    **{f"compare_{name.replace('-', '_')}": partial(comparison, name) for name in LOGS},
    "trees": lambda: trees(every_run=False),
    "trees_runs": lambda: trees(every_run=True),
    **{f"arena_{name.replace('-', '_')}": partial(arena, name) for name in PUBLISHED},
    "segments_recall": lambda: segments(["recall"], parts=True),
    "segments_lists": lambda: segments([*LIST_METRICS], parts=False),
    "market": market,
    "market_kept": market_kept,
    "random_rules": random_rules,
    **{table: partial(toy, table, full=False) for table in ("table1",)},
    **{f"{table}_full": partial(toy, table, full=True) for table in ("table1", "tableA1")},
    "table2": lambda: synthetic("table2", full=False),
    "table2_full": lambda: synthetic("table2", full=True),
    "tableA2_full": lambda: synthetic("tableA2", full=True),
    "later_methods": later_methods,
    "bench_pareto": pareto,
    "bench_parts": query_parts,
    "bench_step": steps,
    "bench_search": lambda: searches("gpu"),
    "bench_search_cpu": lambda: searches("cpu"),
    "bench_scale": lambda: growth("gpu"),
    "bench_scale_cpu": lambda: growth("cpu"),
    "bench_build": builds,
    **{name: partial(example, name) for name in ("custom_scorer", "custom_part", "custom_method", "custom_tree")},
}


def logarithmic(axis: Any, ticks: Sequence[float]) -> None:
    """A logarithmic axis of times with these ticks, and a grid."""
    axis.set_xscale("log")
    axis.set_xticks(ticks, labels=[f"{tick:g}" for tick in ticks])
    axis.minorticks_off()
    axis.grid(alpha=0.3)


def plot_pareto(cells: Cells, m: int, path: Path) -> None:
    """Recall against milliseconds per query, one line per row; left and above is better."""
    from beamtree.research import plots

    figure, axis = plots.plt.subplots(figsize=(7.2, 4.6))
    for colour, row in zip(cycle(plots.COLOURS), dict.fromkeys(c["row"] for c in cells), strict=False):
        line = sorted((c for c in cells if c["row"] == row), key=lambda c: float(c["ms"]))
        times, recalls = [c["ms"] for c in line], [c["recall"] * 100 for c in line]
        sides = [[(c["recall"] - c["low"]) * 100 for c in line], [(c["high"] - c["recall"]) * 100 for c in line]]
        axis.errorbar(times, recalls, yerr=sides, marker="o", capsize=2, color=colour, label=row)
        for c in line:
            if c["width"]:
                point = (c["ms"], c["recall"] * 100)
                axis.annotate(
                    str(c["width"]), point, xytext=(0, 6), textcoords="offset points", ha="center", fontsize="x-small"
                )
    axis.set(xlabel="milliseconds per query, one thread", ylabel=f"recall@{m}, %")
    times = [float(c["ms"]) for c in cells]
    ticks = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50)
    logarithmic(axis, [tick for tick in ticks if min(times) / 2 < tick < 2 * max(times)])
    axis.legend()
    plots.save_figure(figure, path)


def plot_labels(cells: Cells, path: Path) -> None:
    """P@5 of classifiers against microseconds per document, a panel per set; left and above is better."""
    from beamtree.research import plots

    names = list(dict.fromkeys(c["set"] for c in cells))
    rows = [row for row in dict.fromkeys(c["row"] for c in cells) if not row.endswith("parabel")]
    colours = dict(zip(rows, cycle((*plots.COLOURS, "#ee8866", "#999933")), strict=False))
    figure, axes = plots.plt.subplots(2, 2, figsize=(10, 8))
    for name, axis in zip(names, axes.ravel(), strict=True):
        for row in rows:
            line = [c for c in cells if (c["set"], c["row"]) == (name, row)]
            if line:
                batches = line[0]["us_batch"] is not None
                times = [c["us_batch" if batches else "us_single"] for c in line]
                style = "-" if batches else "--"
                axis.plot(times, [c["p5"] for c in line], style, marker="o", color=colours[row], label=row)
        axis.set(title=name, xlabel="microseconds per document, one thread", ylabel="P@5, %")
        logarithmic(axis, (10, 20, 50, 100, 200, 500, 1000, 2000))
        axis.legend(fontsize="x-small")
    plots.save_figure(figure, path)


def draw() -> None:
    """The pictures of the paper's tables; `beamtree paper figure2` draws Figure 2 from the data sets."""
    from beamtree.research import plots

    pictures = {"table1": plots.plot_toy, "tableA1": plots.plot_toy}
    pictures |= {"table2": plots.plot_bars, "tableA2": plots.plot_sparsity}
    not_keys = {"table", "value", "std", "runs", "paper", "within"}  # the other fields name the cell
    for table, plot in pictures.items():
        cells = [
            Cell(
                table,
                {k: v for k, v in c.items() if k not in not_keys},
                c["value"],
                c["std"],
                c["runs"],
                c["paper"],
                0,
            )
            for c in cells_of(table)
        ]
        plot(cells, ROOT / "docs" / f"{table}.png")
    found = read("bench_pareto")
    plot_pareto(found["cells"], found["m"], ROOT / "docs" / "pareto.png")
    plot_labels(drawn_rows(), ROOT / "docs" / "pictures" / "classification.png")


def filled(text: str) -> str:
    def part(match: re.Match[str]) -> str:
        return f"<!-- {match[1]} -->\n\n{PARTS[match[1]]()}\n\n<!-- end -->"

    return re.sub(r"<!-- (\w+) -->.*?<!-- end -->", part, text, flags=re.S)


def main() -> None:
    check = "--check" in sys.argv
    stale = []
    for page in PAGES:
        old = page.read_text()
        new = filled(old)
        if new != old:
            stale.append(page.name)
            if not check:
                page.write_text(new)
    if not check:
        draw()
    elif stale:
        sys.exit(f"out of date: {', '.join(stale)}; run python docs/fill.py")


if __name__ == "__main__":
    main()
