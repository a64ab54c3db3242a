"""Put the numbers of results/*.json into the pages that show them, and the pictures beside.

Pages carry markers, `<!-- table2 -->` … `<!-- end -->`, and everything between them is made here.

    python docs/fill.py            # write
    python docs/fill.py --check    # fail where a page is out of date
"""

import json
import re
import shutil
import sys
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PAGES = (
    ROOT / "README.md",
    ROOT / "docs" / "tables.md",
    ROOT / "docs" / "guide.md",
    ROOT / "docs" / "real-data.md",
    ROOT / "docs" / "speed.md",
    ROOT / "docs" / "comparison.md",
)
Cells = list[dict[str, Any]]


def load(table: str) -> Cells:
    cells: Cells = json.loads((ROOT / "results" / f"{table}.json").read_text())["cells"]
    return cells


def show(cell: dict[str, Any], digits: int, best: bool = False) -> str:
    ours = f"{cell['value']:.{digits}f}"
    ours = f"**{ours}**" if best else ours
    error = f"{cell['std'] / cell['runs'] ** 0.5:.{digits}f}"
    paper = "" if cell["paper"] is None else f" ({cell['paper']:.{digits}f})"
    mark = {True: "", False: " ✗", None: ""}[cell["within"]]
    return f"{ours} ± {error}{paper}{mark}"


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
    rows = []
    for metric in dict.fromkeys(cell["metric"] for cell in cells):
        for row in dict.fromkeys(cell["row"] for cell in cells):
            texts = []
            for m in columns:
                cell = found[metric, row, m]
                best = cell["value"] == max(other["value"] for key, other in found.items() if key[::2] == (metric, m))
                value = f"{cell['value'] * 100:.1f}"
                shown = f"**{value}**" if best else value
                between = f" [{cell['low'] * 100:.1f}, {cell['high'] * 100:.1f}]" if "low" in cell else ""
                texts.append(shown + between)
            rows.append([metric, row, *texts])
    return grid(["%", "row", *(f"@{m}" for m in columns)], rows)


def comparison(name: str) -> str:
    """The paper's layout: a line for each row, P, R and F at every m, and what it took."""
    cells = load(f"compare-{name}")
    found = {(cell["row"], cell["metric"], cell.get("m")): cell for cell in cells}
    cuts = list(dict.fromkeys(cell["m"] for cell in cells if "m" in cell))
    metrics = {"precision": "P", "recall": "R", "f1": "F"}
    lines = []
    for row in dict.fromkeys(cell["row"] for cell in cells):
        shown = []
        for metric in metrics:
            for m in cuts:
                cell = found[row, metric, m]
                value = f"**{cell['value'] * 100:.2f}**" if cell["best"] else f"{cell['value'] * 100:.2f}"
                star = "" if cell["p"] is None or cell["p"] >= 0.05 else "\\*\\*" if cell["p"] < 0.01 else "\\*"
                shown.append(f"{value} ± {(cell['high'] - cell['low']) * 50:.2f}{star}")
        seconds, ms, size = (
            found[row, cost, None]["value"] for cost in ("training_seconds", "ms_per_query", "num_bytes")
        )
        lines.append([row, *shown, f"{seconds:,.0f} s", f"{ms:.2f}", f"{size / 1e6:,.1f} MB"])
    heads = [f"{short}@{m}" for short in metrics.values() for m in cuts]
    return grid(["row", *heads, "training", "ms/query", "size"], lines)


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


PARTS = {
    **{
        f"compare_{name.replace('-', '_')}": partial(comparison, name)
        for name in ("movielens-1m", "amazon-books-unordered", "git-rust", "diginetica")
    },
    "trees": trees,
    "bench_step": steps,
    "bench_search": lambda: searches("gpu"),
    "bench_search_cpu": lambda: searches("cpu"),
    "bench_scale": lambda: growth("gpu"),
    "bench_scale_cpu": lambda: growth("cpu"),
    "movielens_gpu": lambda: scores("movielens-gpu"),
    "amazon": lambda: scores("amazon"),
    "git_rust": lambda: scores("git-rust"),
    "diginetica": lambda: scores("diginetica"),
    "market": lambda: scores("market"),
    "market_kept": lambda: kept("market"),
    "movielens": lambda: scores("movielens"),
    "table1": lambda: toy("table1"),
    "tableA1": lambda: toy("tableA1"),
    "table2": lambda: synthetic("table2"),
    "tableA2": lambda: synthetic("tableA2"),
}


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
        for picture in (ROOT / "results" / f"{part}.png" for part in (*PARTS, "figure2")):
            if picture.exists():  # pictures are not committed there
                shutil.copy(picture, ROOT / "docs")
    if stale and "--check" in sys.argv:
        sys.exit(f"out of date: {', '.join(stale)}; run python docs/fill.py")


if __name__ == "__main__":
    main()
