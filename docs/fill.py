"""Put the numbers of results/*.json into the pages that show them, and draw the pictures beside.

Pages carry markers, `<!-- table2 -->` … `<!-- end -->`, and everything between them is made here.

    python docs/fill.py            # write
    python docs/fill.py --check    # fail where a page is out of date
"""

import json
import re
import sys
import textwrap
from functools import partial
from pathlib import Path
from typing import Any

from beamtree.research.compare.results import MARKDOWN, cost_grid, legend, measured_users, score_grid
from beamtree.research.paper.report import Cell, half_interval

ROOT = Path(__file__).parent.parent
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
LOGS = ("movielens-1m", "amazon-books-unordered", "git-rust", "diginetica")  # of the comparison
Cells = list[dict[str, Any]]


def load(table: str) -> Cells:
    cells: Cells = json.loads((ROOT / "results" / f"{table}.json").read_text())["cells"]
    return cells


def show(cell: dict[str, Any], digits: int, best: bool = False) -> str:
    ours = f"{cell['value']:.{digits}f}"
    ours = f"**{ours}**" if best else ours
    spread = f" ± {half_interval(cell['std'], cell['runs']):.{digits}f}" if cell["runs"] > 1 else ""
    paper = "" if cell["paper"] is None else f" ({cell['paper']:.{digits}f})"
    mark = {True: "", False: " ✗", None: ""}[cell["within"]]
    return f"{ours}{spread}{paper}{mark}"


def grid(heads: list[str], rows: list[list[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def toy(table: str) -> str:
    cells = load(table)
    columns = list(dict.fromkeys(cell["N"] for cell in cells))
    names = {"inf": "N = ∞, float32", "inf-exact": "N = ∞, exact order"}
    places = dict.fromkeys((cell["estimator"], cell["k"], cell["m"]) for cell in cells)
    found = {(cell["estimator"], cell["k"], cell["m"], cell["N"]): cell for cell in cells}
    rows = []
    for place in places:
        shown = [found.get((*place, n)) for n in columns]
        rows.append([*map(str, place), *(show(cell, 3) if cell else "" for cell in shown)])
    return grid(["estimator", "k", "m", *(names.get(n, f"N = {n}") for n in columns)], rows)


def synthetic(table: str) -> str:
    cells = load(table)
    columns = list(dict.fromkeys(cell["m"] for cell in cells))
    lowest = {
        (bias, m): min(cell["value"] for cell in cells if (cell["bias"], cell["m"]) == (bias, m))
        for bias, m in {(cell["bias"], cell["m"]) for cell in cells}
    }
    found = {(cell["bias"], cell["row"], cell["m"]): cell for cell in cells}
    rows = []
    for bias, row in dict.fromkeys((cell["bias"], cell["row"]) for cell in cells):
        shown = [found[bias, row, m] for m in columns]
        texts = [show(cell, 4, best=cell["value"] == lowest[bias, cell["m"]]) for cell in shown]
        rows.append([f"{bias:g}", row, str(shown[0]["runs"]), *texts])
    return grid(["c", "method", "runs", *(f"m = {m}" for m in columns)], rows)


def scores(name: str) -> str:
    cells = load(name)
    columns = list(dict.fromkeys(cell["m"] for cell in cells))
    found = {(cell["metric"], cell["row"], cell["m"]): cell for cell in cells}
    rows, names = [], list(dict.fromkeys(cell["row"] for cell in cells))
    for metric in dict.fromkeys(cell["metric"] for cell in cells):
        for row in names:
            texts = []
            for m in columns:
                cell = found[metric, row, m]
                best = cell["value"] == max(other["value"] for key, other in found.items() if key[::2] == (metric, m))
                value = f"{cell['value'] * 100:.1f}"
                shown = f"**{value}**" if best and len(names) > 1 else value
                between = f" [{cell['low'] * 100:.1f}, {cell['high'] * 100:.1f}]" if "low" in cell else ""
                texts.append(shown + between)
            rows.append([metric, row, *texts])
    return grid(["%", "row", *(f"@{m}" for m in columns)], rows)


def comparison(name: str) -> str:
    """The table that `beamtree compare` writes, from the results that are kept."""
    cells = load(f"compare-{name}")
    notes = textwrap.fill(legend(cells).replace("*", MARKDOWN.star), 100)
    users = [f"{measured_users(cells)}."] if measured_users(cells) else []
    return "\n\n".join([*users, score_grid(cells).markdown(2), notes, cost_grid(cells).markdown()])


M = ("10", "50", "100", "200")
FOUR = "@10 50 100 200, %"


def parts_row(
    model: str, k: int = 400, method: str = "otm-mixed", recipe: str = "beamtree"
) -> dict[str, dict[str, Any]]:
    """What parts.py measured of a model on each log: values by metric and cut."""
    how = {"model": model, "k": k, "method": method, "recipe": recipe, "exclude_seen": False}
    return {c["log"]: c for c in load("parts") if all(c[name] == value for name, value in how.items())}


def several(rows: dict[str, dict[str, list[str]]], logs: tuple[str, ...], head: str) -> str:
    """Rows of a few numbers per log, the best of each column in bold."""
    best = {
        log: [
            max(map(float, column)) for column in zip(*(row[log] for row in rows.values() if log in row), strict=True)
        ]
        for log in logs
    }

    def shown(values: list[str], tops: list[float]) -> str:
        return " ".join(f"**{v}**" if float(v) == top else v for v, top in zip(values, tops, strict=True))

    lines = [[name, *(shown(row[log], best[log]) if log in row else "–" for log in logs)] for name, row in rows.items()]
    return grid([head, *logs], lines)


def two_digits(values: Any) -> list[str]:
    return [f"{value:.2f}" for value in values]


def strong(metric: str) -> str:
    """The rows that a user would pick instead, of this harness, beside all parts."""
    rows: dict[str, dict[str, list[str]]] = {}
    for log in LOGS:
        values = {(c.get("row"), c.get("m")): c["value"] for c in load(f"compare-{log}") if c["metric"] == metric}
        peers = {(c["row"], c["m"]): c["value"] for c in load("peers") if (c["log"], c["metric"]) == (log, metric)}
        names = dict.fromkeys(c["row"] for c in load("peers"))
        found = {name: [100 * peers[name, int(m)] for m in M] for name in names if (name, 10) in peers}
        found["otm, the network alone"] = [100 * values["otm", int(m)] for m in M]
        for name, model in (("beamtree, as it starts", "start"), ("beamtree", "trained")):
            found[name] = [parts_row(model)[log][metric][m] for m in M]
        for name in names:
            rows.setdefault(name, {})
        for name, each in found.items():
            rows.setdefault(name, {})[log] = two_digits(each)
    return several(rows, LOGS, f"{metric}{FOUR}")


def two_cores() -> str:
    """What `beamtree train` makes without a GPU, and in which time."""
    lines = []
    for cell in load("two_cores"):
        values = (" ".join(two_digits(cell[metric])) for metric in ("recall", "precision", "f1"))
        lines.append([cell["log"], f"{cell['seconds']:,}", *values])
    return grid(["log", "seconds", f"R{FOUR}", "P", "F"], lines)


def elsewhere() -> str:
    """Recall of rows that other programs measured on the same users."""
    rows: dict[str, dict[str, list[float]]] = json.loads((ROOT / "results" / "elsewhere.json").read_text())["recall"]
    shown = {name: {log: two_digits(values) for log, values in row.items()} for name, row in rows.items()}
    shown["beamtree"] = {
        log: two_digits(row["recall"][m] for m in M) for log, row in parts_row("trained").items() if log in LOGS
    }
    return several(shown, LOGS, f"R{FOUR}")


def parts() -> str:
    """What is left without each part, and what each finds alone."""
    models = list(
        dict.fromkeys(c["model"] for c in load("parts") if c["model"] not in ("start", "trained", "refitted"))
    )
    lines = []
    for model in ["start", "trained", *sorted(models, key=lambda name: name.endswith("alone"))]:
        row = parts_row(model)
        lines.append(
            [model, *(" ".join(two_digits(row[log]["recall"][m] for m in M)) if log in row else "" for log in LOGS)]
        )
    return grid([f"R{FOUR}", *LOGS], lines)


def narrow() -> str:
    """What narrow beams find: recall@10 and recall@k."""
    logs = ("amazon-books-unordered", "git-rust", "market", "movielens-1m")
    rows = {}
    for recipe, what in (("beamtree", "all parts"), ("deep", "the network alone")):
        for k in (20, 50):
            for name, model, method in (
                ("untrained", "start", "otm-mixed"),
                ("TDM", "trained", "tdm"),
                ("OTM", "trained", "otm-mixed"),
            ):
                found = parts_row(model, k, method, recipe)
                cells = {
                    log: two_digits(found[log]["recall"][m] for m in ("10", str(k))) for log in logs if log in found
                }
                rows[f"{what}, k = {k}, {name}"] = cells
    lines = [[name, *(" ".join(row[log]) if log in row else "" for log in logs)] for name, row in rows.items()]
    return grid(["R@10 and R@k, %", *logs], lines)


def query_parts() -> str:
    """What a query costs with each part, on a CPU and on a GPU."""
    found = records("bench_parts")
    columns = list(dict.fromkeys((r["device"], r["items"]) for r in found))
    took = {(r["device"], r["items"], r["scorer"]): r["value"] for r in found}
    lines = []
    for name in dict.fromkeys(r["scorer"] for r in found):
        cells = [(took[(*column, name)], took[(*column, "deep")]) for column in columns]
        lines.append([name, *(f"{value:.2f} ({value / deep:.2f})" for value, deep in cells)])
    return grid(["ms (times the deep scorer)", *(f"{d}, {items:,} items" for d, items in columns)], lines)


def pareto() -> str:
    """Recall against milliseconds."""
    found: dict[str, Any] = json.loads((ROOT / "results" / "bench_pareto.json").read_text())
    lines = [
        [
            c["row"],
            str(c["width"] or ""),
            f"{c['ms']:.2f}",
            f"{c['recall'] * 100:.2f} ± {(c['high'] - c['low']) * 50:.2f}",
        ]
        for c in found["cells"]
    ]
    return grid(["row", "beam, or breadth", "ms per query", f"recall@{found['m']}, %"], lines)


def beauty() -> str:
    """Amazon Beauty: ours beside what others print."""
    found: dict[str, Any] = json.loads((ROOT / "results" / "beauty.json").read_text())
    ways = ("masked", "open", "unsaid")
    order = sorted(found["rows"], key=lambda row: -max(row[way][0] for way in ways if row.get(way)))

    def shown(pair: list[float] | None) -> str:
        return "" if pair is None else " ".join(f"{value:.4f}"[1:] for value in pair)

    lines = [[r["row"], r["whose"], r["fitted"], *(shown(r.get(way)) for way in ways)] for r in order]
    return grid(["R@10 NDCG@10", "measured by", "fitted to all but", "seen left out", "seen stay", "not said"], lines)


def example(name: str) -> str:
    """The part of an example that others would copy: all above what it does when it is run."""
    text = (ROOT / "examples" / f"{name}.py").read_text().split('if __name__ == "__main__":')[0]
    lines = text.split('"""', 2)[2].strip().splitlines()  # without what the file says about itself
    imports = [line for line in lines if line.startswith(("import ", "from "))]
    code = "\n".join(line for line in lines if line not in imports)
    for line in imports:  # what only the rest of the file needs
        names = re.findall(r"\w+", line.split("import ")[1].split(" as ")[-1])
        if not any(re.search(rf"\b{name}\b", code) for name in names):
            lines.remove(line)
    code = re.sub(r"\n\n\n+(?=import|from)", "\n\n", "\n".join(lines).strip())
    return f"```python\n{code}\n```"


def trees() -> str:
    def shown(runs: list[float]) -> str:
        return f"{sum(runs) / len(runs):.2f} ({', '.join(f'{run:.2f}' for run in runs)})" if runs else ""

    found = records("trees")
    names = list(found[0])[1:]
    return grid(["tree", *names], [[r["tree"], *(shown(r[name]) for name in names)] for r in found])


def kept(name: str) -> str:
    shares: dict[str, list[float]] = json.loads((ROOT / "results" / f"{name}.json").read_text())["kept"]
    levels = range(8, 8 + len(next(iter(shares.values()))))
    rows = [[row, *(f"{share * 100:.0f}" for share in each)] for row, each in shares.items()]
    return grid(["% kept at level", *map(str, levels)], rows)


def records(name: str) -> Cells:
    found: Cells = json.loads((ROOT / "results" / f"{name}.json").read_text())
    return found


def steps() -> str:
    rows = [
        [r["bench"].removeprefix("step "), f"{r['literal_ms']:.1f}", f"{r['ours_ms']:.2f}", f"{r['speedup']:.1f}"]
        for r in records("bench_step_gpu")
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
        for r in records(f"bench_search_{device}")
    ]
    return grid(["items", "batch", "threads", "as published", "ours", "times"], rows)


def growth(device: str) -> str:
    found = records(f"bench_scale_{device}")
    step = {r["items"]: r for r in found if r["bench"] == "scale step"}
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
        for r in found
        if r["bench"] == "scale query"
    ]
    return grid(["items", "nodes", "query as published", "query", "step", "memory", "table"], rows)


def builds() -> str:
    """How long a cluster tree of many items takes, on a GPU and on a CPU."""
    names = {"cpu": "two ARM cores"}
    found = [r for device in ("gpu", "cpu") for r in records(f"bench_build_{device}")]
    rows = [
        [names.get(r["device"], r["device"]), f"{r['items']:,}", f"{r['dim']}", f"{r['ours_ms'] / 1000:.1f} s"]
        for r in found
    ]
    return grid(["device", "items", "numbers per vector", "time"], rows)


PARTS = {
    **{f"compare_{name.replace('-', '_')}": partial(comparison, name) for name in LOGS},
    **{name: partial(example, name) for name in ("your_own_scorer", "your_own_method", "your_own_tree")},
    **{f"strong_{metric}": partial(strong, metric) for metric in ("recall", "precision", "f1")},
    "beauty": beauty,
    "bench_pareto": pareto,
    "bench_parts": query_parts,
    "elsewhere": elsewhere,
    "two_cores": two_cores,
    "parts": parts,
    "narrow": narrow,
    "trees": trees,
    "bench_build": builds,
    "bench_step": steps,
    "bench_search": lambda: searches("gpu"),
    "bench_search_cpu": lambda: searches("cpu"),
    "bench_scale": lambda: growth("gpu"),
    "bench_scale_cpu": lambda: growth("cpu"),
    "market": lambda: scores("market"),
    "market_kept": lambda: kept("market"),
    "table1": lambda: toy("table1"),
    "tableA1": lambda: toy("tableA1"),
    "table2": lambda: synthetic("table2"),
    "tableA2": lambda: synthetic("tableA2"),
}


def draw() -> None:
    """The pictures of the paper's tables; that of Figure 2 is drawn from the data sets, by the command."""
    from beamtree.research import plots

    pictures = {"table1": plots.plot_toy, "tableA1": plots.plot_toy}
    pictures |= {"table2": plots.plot_bars, "tableA2": plots.plot_sparsity}
    others = {"table", "value", "std", "runs", "paper", "within"}  # the rest of a record names the cell
    for table, plot in pictures.items():
        cells = [
            Cell(table, {k: v for k, v in c.items() if k not in others}, c["value"], c["std"], c["runs"], c["paper"], 0)
            for c in load(table)
        ]
        plot(cells, ROOT / "docs" / f"{table}.png")
    found = json.loads((ROOT / "results" / "bench_pareto.json").read_text())
    plots.plot_pareto(found["cells"], found["m"], ROOT / "docs" / "pareto.png")


def filled(text: str) -> str:
    def part(match: re.Match[str]) -> str:
        return f"<!-- {match[1]} -->\n\n{PARTS[match[1]]()}\n\n<!-- end -->"

    return re.sub(r"<!-- (\w+) -->.*?<!-- end -->", part, text, flags=re.S)


def main() -> None:
    stale = []
    for page in PAGES:
        old = page.read_text()
        new = filled(old)
        if new != old:
            stale.append(page.name)
            if "--check" not in sys.argv:
                page.write_text(new)
    if "--check" not in sys.argv:
        draw()
    if stale and "--check" in sys.argv:
        sys.exit(f"out of date: {', '.join(stale)}; run python docs/fill.py")


if __name__ == "__main__":
    main()
