"""Plots of the tables: our numbers as lines or bars with error bars, the paper's as hollow marks."""

import textwrap
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # no screen needed
import matplotlib.pyplot as plt

from beamtree.beam import as_text
from beamtree.diagnose.inspect import INTERVAL, Inspection
from beamtree.diagnose.tune import TuneResult
from beamtree.research.compare import Result, table
from beamtree.research.compare.report import Entry, by_setting, main_metric, measured_users, records, split_settings
from beamtree.research.paper.cells import Cell

COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#777777", "#000000")


def plot_toy(cells: Sequence[Cell], path: Path) -> None:
    """Regret against k at m = k, one panel per estimator, one line per N."""
    estimators = list(dict.fromkeys(each.key["estimator"] for each in cells))
    figure, axes = plt.subplots(1, len(estimators), figsize=(4.6 * len(estimators), 4.2), sharey=True, squeeze=False)
    names = {"inf": "∞ (float32)", "inf-exact": "∞ (exact order)"}
    for axis, estimator in zip(axes[0], estimators, strict=True):
        panel = [c for c in cells if c.key["estimator"] == estimator and c.key["k"] == c.key["m"]]
        for colour, n in zip(cycle(COLOURS), dict.fromkeys(c.key["N"] for c in panel), strict=False):
            line = [c for c in panel if c.key["N"] == n]
            _line(axis, "k", line, colour, f"N = {names.get(str(n), n)}")
        axis.set(title=estimator, xlabel="beam size k = m", xscale="log")
        axis.set_xticks([1, 5, 10, 20, 50], labels=["1", "5", "10", "20", "50"])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("regret at m (hollow: the paper)")
    axes[0][0].legend()
    save_figure(figure, path)


def plot_bars(cells: Sequence[Cell], path: Path) -> None:
    """Regret per method, one panel per m; the lowest is marked."""
    cuts = list(dict.fromkeys(each.key["m"] for each in cells))
    rows = list(dict.fromkeys(each.key["row"] for each in cells))
    figure, axes = plt.subplots(1, len(cuts), figsize=(3.6 * len(cuts), 4.2), squeeze=False)
    for axis, m in zip(axes[0], cuts, strict=True):
        panel = [c for c in cells if c.key["m"] == m]
        positions = [rows.index(c.key["row"]) for c in panel]
        axis.bar(
            positions,
            [c.value for c in panel],
            yerr=[c.half for c in panel],
            color=[COLOURS[position % len(COLOURS)] for position in positions],
            capsize=3,
        )
        printed = [(position, c.paper) for position, c in zip(positions, panel, strict=True) if c.paper]
        if printed:
            axis.plot(*zip(*printed, strict=True), "ko", mfc="white")
        best = min(panel, key=lambda each: each.value)
        top = max(best.value + best.half, best.paper or 0.0)  # above the bar, its interval and the circle
        above = {"xytext": (0, 5), "textcoords": "offset points", "ha": "center", "fontsize": "small"}
        axis.annotate("best", (rows.index(best.key["row"]), top), **above)
        axis.set(title=f"m = {m}")
        axis.set_xticks(range(len(rows)), labels=rows, rotation=50, ha="right")
        axis.grid(axis="y", alpha=0.3)
    axes[0][0].set_ylabel("regret, 95 % interval (circles: the paper)")
    save_figure(figure, path)


def plot_sparsity(cells: Sequence[Cell], path: Path) -> None:
    """Regret against the sparsity c, one panel per m, one line per method."""
    cuts = list(dict.fromkeys(each.key["m"] for each in cells))
    rows = list(dict.fromkeys(each.key["row"] for each in cells))
    figure, axes = plt.subplots(1, len(cuts), figsize=(3.8 * len(cuts), 4.2), squeeze=False)
    for axis, m in zip(axes[0], cuts, strict=True):
        for colour, row in zip(cycle(COLOURS), rows, strict=False):
            line = [c for c in cells if c.key["m"] == m and c.key["row"] == row]
            _line(axis, "bias", line, colour, str(row))
        axis.set(title=f"m = {m}", xlabel="sparsity c", yscale="log")
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("regret at m (hollow: the paper)")
    axes[0][-1].legend(fontsize="small")
    save_figure(figure, path)


def _line(axis: Any, across: str, cells: Sequence[Cell], colour: str, label: str) -> None:
    cells = sorted(cells, key=lambda each: float(each.key[across]))
    positions = [each.key[across] for each in cells]
    errors = [each.half for each in cells]
    axis.errorbar(positions, [c.value for c in cells], errors, fmt="o-", ms=4, color=colour, capsize=3, label=label)
    printed = [(c.key[across], c.paper) for c in cells if c.paper is not None]
    if printed:
        axis.plot(*zip(*printed, strict=True), "o", ms=8, mfc="none", color=colour)


def plot_comparison(results: Sequence[Result], path: Path) -> None:
    """The recall of every row at each m (or the first metric), with its 95 % interval; the best row is marked.

    The two settings are below each other, in the order of `by_setting`.
    """
    metric, settings = main_metric(results[0].metrics), by_setting(results)
    rows = [f"{each.row} †" if each.kept_the_start else each.label or each.row for each in results]
    cuts = results[0].m
    size = 3.4 * len(cuts), (0.34 * len(rows) + 1.5) * len(settings) + 0.7
    figure, axes = plt.subplots(len(settings), len(cuts), figsize=size, squeeze=False)
    for line, setting in zip(axes, settings, strict=True):
        entries = [entry for entry in table(setting) if entry.metric == metric]
        seen = "unseen items" if setting[0].exclude_seen else "all items"
        for axis, m in zip(line, cuts, strict=True):
            _draw_rows(axis, [entry for entry in entries if entry.m == m])
            axis.set(title=f"{metric}@{m}, {seen}" if len(settings) > 1 else f"{metric}@{m}", xlabel="%")
            axis.set_yticks(range(len(rows)), labels=rows if m == cuts[0] else [""] * len(rows))
            axis.invert_yaxis()
            axis.grid(alpha=0.3, axis="x")
    figure.supxlabel(textwrap.fill(_caption(results), 48 * len(cuts)), fontsize="small")
    save_figure(figure, path)


def _draw_rows(axis: Any, entries: Sequence[Entry]) -> None:
    """One bar per row, in percent, with its number beside it, or inside if there is no room."""
    values = [entry.value * 100 for entry in entries]
    errors = [[(e.value - e.low) * 100 for e in entries], [(e.high - e.value) * 100 for e in entries]]
    colours = [COLOURS[2] if e.best else COLOURS[1] if e.row.startswith("otm") else COLOURS[0] for e in entries]
    axis.barh(range(len(entries)), values, xerr=errors, color=colours, capsize=2)
    top = max(entry.high * 100 for entry in entries)
    end = 1.45 * top + 1e-9
    end = min(end, 100) if top <= 100 else end  # a custom metric need not be a share
    for position, entry in enumerate(entries):
        text = f"{entry.value * 100:.1f}{' best' if entry.best else ''}"
        inside = entry.high * 100 > 0.7 * end
        x, side, colour = (entry.low, "right", "w") if inside else (entry.high, "left", "k")
        axis.text(x * 100, position, f"  {text}  ", ha=side, va="center", fontsize="small", color=colour)
    axis.set_xlim(0, end)


def _caption(results: Sequence[Result]) -> str:
    """The caption of a comparison: what bars, lines and colours mean."""
    users = [measured_users(setting) for setting in split_settings(records(results))]
    parts = [*users, "bars: the mean over users, lines: its 95 % interval"]
    colours = ["green: the best row"]
    if any(each.row.startswith("otm") for each in results):
        colours.append("red: otm and its variants")
    parts += [", ".join([*colours, "blue: other rows"])]
    if any(each.kept_the_start for each in results):
        parts.append("† training found nothing better than the start")
    return "; ".join(parts)


def plot_levels(shares: dict[str, list[float]], path: Path) -> None:
    """Figure 2: the share of each node of a level, the largest first; one line per data set and level."""
    figure, axis = plt.subplots(figsize=(5.4, 4.2))
    for colour, (name, values) in zip(cycle(COLOURS), shares.items(), strict=False):
        axis.plot([(index + 1) / len(values) for index in range(len(values))], values, color=colour, label=name)
    axis.set(xlabel="nodes, as a share of the level", ylabel="S_n / sum over the level", yscale="log")
    axis.grid(alpha=0.3)
    axis.legend()
    save_figure(figure, path)


def plot_summary(summary: Mapping[str, Any], path: Path) -> None:
    """Events per user as a histogram, and the popularity curve."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.2))
    bars = summary["events_per_user"]["histogram"]
    ranges = [f"{bar['from']:,}–{bar['to']:,}" if bar["from"] < bar["to"] else f"{bar['from']:,}" for bar in bars]
    left.bar(ranges, [bar["users"] for bar in bars], color=COLOURS[0])
    left.set_xticks(range(len(bars)), labels=ranges, rotation=50, ha="right")
    left.set(title="Events per user", xlabel="events", ylabel="users")
    curve = summary["popularity"]
    right.plot(
        [point["top"] * 100 for point in curve], [point["share"] * 100 for point in curve], "o-", color=COLOURS[1]
    )
    right.set(title="Popularity", xlabel="items, most popular first, %", ylabel="share of all events, %")
    right.set(xscale="log", ylim=(0, 102))
    for axis in (left, right):
        axis.grid(axis="y", alpha=0.3)
    save_figure(figure, path)


def plot_inspection(inspection: Inspection, path: Path) -> None:
    """The recall of both searches at every m, and where the beam lost relevant items; the bars add up to 100 %."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.6))
    cuts = [cut.m for cut in inspection.cuts]
    for colour, name, recalls in (
        (COLOURS[0], "beam", [cut.beam.recall * 100 for cut in inspection.cuts]),
        (COLOURS[1], "brute force", [cut.brute_force.recall * 100 for cut in inspection.cuts]),
    ):
        errors = [INTERVAL * cut.error * 100 for cut in inspection.cuts] if name == "beam" else None
        left.errorbar(range(len(cuts)), recalls, errors, fmt="o-", ms=4, capsize=3, color=colour, label=name)
    left.set_xticks(range(len(cuts)), labels=[str(m) for m in cuts])
    left.set(title=f"Recall, k = {as_text(inspection.beam_size)}", xlabel="m", ylabel="%")
    left.set_ylim(bottom=0)
    left.legend(title="bars: 95 % interval of the difference", fontsize="small", title_fontsize="small")
    _draw_losses(right, inspection)
    for axis in (left, right):
        axis.grid(axis="y", alpha=0.3)
    save_figure(figure, path)


def _draw_losses(axis: Any, inspection: Inspection) -> None:
    """A waterfall from all relevant items down to those that are found: one bar per level that loses some."""
    last = inspection.cuts[-1]
    tops = [1.0, *(level.survival for level in inspection.levels[:-1])]
    positions = range(len(inspection.levels))
    lost = [level.lost * 100 for level in inspection.levels]
    axis.bar(
        positions,
        lost,
        bottom=[level.survival * 100 for level in inspection.levels],
        color=COLOURS[0],
        label="not in the beam",
    )
    avoidable = [min(level.avoidable, level.lost) * 100 for level in inspection.levels]
    starts = [top * 100 - part for top, part in zip(tops, avoidable, strict=True)]
    axis.bar(positions, avoidable, bottom=starts, color=COLOURS[1], label=f"of these, brute force finds at {last.m}")
    below, recall = last.ranked_below * 100, last.beam.recall * 100
    axis.bar(len(positions), below, bottom=recall, color=COLOURS[3], label=f"in the last beam, ranked below {last.m}")
    axis.bar(len(positions) + 1, recall, color=COLOURS[2], label=f"found at {last.m}")
    labels = [*(f"level {level.level}" for level in inspection.levels), f"rank > {last.m}", "found"]
    axis.set(title="Where relevant items go", ylabel="% of relevant items", ylim=(0, 103))
    axis.set_xticks(range(len(labels)), labels=labels, rotation=60, ha="right", fontsize="small")
    axis.legend(fontsize="small")


def plot_tuned(result: TuneResult, path: Path) -> None:
    """Recall against the time of a query, for uniform beams and the tuned one; left and above is better."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.6))
    uniform = [trial for trial in result.tried if trial.is_uniform]
    for colour, name, trials in ((COLOURS[0], "uniform", uniform), (COLOURS[1], "tuned", [result.chosen])):
        recalls = [trial.recall * 100 for trial in trials]
        sides = [[(t.recall - t.low) * 100 for t in trials], [(t.high - t.recall) * 100 for t in trials]]
        times = [trial.milliseconds for trial in trials]
        left.errorbar(times, recalls, sides, fmt="o-", capsize=2, color=colour, label=name)
    for trial in uniform:
        point = (trial.milliseconds, trial.recall * 100)
        left.annotate(str(trial.beam_size[-1]), point, xytext=(4, 6), textcoords="offset points", fontsize="x-small")
    left.set(title=f"{result.users:,} users", xlabel="milliseconds, one query", ylabel=f"recall@{result.m}, %")
    left.legend(title="bars: 95 % interval of the mean", fontsize="small", title_fontsize="small")
    widths = result.chosen.beam_size
    right.bar(range(len(widths)), widths, color=COLOURS[1])
    right.set(title="The tuned beam", xlabel="searched level, from the top", ylabel="width", yscale="log")
    right.set_xticks(range(len(widths)), labels=[str(level + 1) for level in range(len(widths))])
    for axis in (left, right):
        axis.grid(axis="y", alpha=0.3)
    save_figure(figure, path)


def save_figure(figure: Any, path: Path) -> None:
    """Write a figure to a file and close it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)
