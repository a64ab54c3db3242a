"""Draw the pictures of "How it works": a tree with a beam, and the parts of a score.

python docs/draw.py
"""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch

PICTURES = Path(__file__).parent / "pictures"
INK, GREY, BLUE, GREEN, PAPER = "#222222", "#9a9a9a", "#3b6fb6", "#2e8b57", "#ffffff"
ITEM_SCORES = (0.4, 1.1, 0.2, 0.7, 2.6, 1.9, 0.3, 0.9, 1.4, 0.5, 2.2, 0.8, 0.1, 0.6, 1.7, 0.2)
BEAM_SIZE, M = 3, 3


def node_scores() -> list[list[float]]:
    """Scores by level, root first: a node scores what its best item scores."""
    levels = [list(ITEM_SCORES)]
    while len(levels[0]) > 1:
        below = levels[0]
        levels.insert(0, [max(below[i : i + 2]) for i in range(0, len(below), 2)])
    return levels


def search(levels: list[list[float]]) -> list[tuple[set[int], set[int]]]:
    """For each level, the nodes that are scored and those that the beam keeps."""
    found: list[tuple[set[int], set[int]]] = []
    candidates = {0}
    for scores in levels:
        kept = set(sorted(candidates, key=lambda n: -scores[n])[:BEAM_SIZE])
        found.append((candidates, kept))
        candidates = {2 * n + child for n in kept for child in range(2)}
    return found


def draw_beam(path: Path) -> None:
    """A binary tree over 16 items, searched with a beam of 3."""
    levels = node_scores()
    found = search(levels)
    figure, axes = plt.subplots(figsize=(10, 6), dpi=120)
    height = len(levels) - 1

    def position(level: int, node: int) -> tuple[float, float]:
        return (node + 0.5) * 16 / 2**level, 1.25 * (height - level)

    for level in range(1, height + 1):
        for node in range(2**level):
            parent_kept = node // 2 in found[level - 1][1]
            (x0, y0), (x1, y1) = position(level - 1, node // 2), position(level, node)
            colour, width = (INK, 1.2) if parent_kept else ("#d0d0d0", 0.8)
            axes.plot([x0, x1], [y0, y1], color=colour, linewidth=width, zorder=1)
    best = set(sorted(found[-1][1], key=lambda n: -levels[-1][n])[:M])
    for level, scores in enumerate(levels):
        scored, kept = found[level]
        for node, score in enumerate(scores):
            x, y = position(level, node)
            if level == height and node in best:
                face, edge, text = GREEN, GREEN, PAPER
            elif node in kept:
                face, edge, text = BLUE, BLUE, PAPER
            elif node in scored:
                face, edge, text = "#e4e4e4", INK, INK
            else:
                face, edge, text = PAPER, "#c8c8c8", ""
            axes.add_patch(Circle((x, y), 0.38, facecolor=face, edgecolor=edge, linewidth=1.2, zorder=2))
            if text and level:
                axes.text(x, y, f"{score:.1f}", color=text, ha="center", va="center", fontsize=9, zorder=3)
        note = "root" if level == 0 else f"level {level}" + (" (leaves)" if level == height else "")
        axes.text(-0.5, position(level, 0)[1], note, ha="right", va="center", fontsize=10, color=INK)
        if level:
            counts = f"scored {len(scored)}, kept {len(kept)}"
            axes.text(16.5, position(level, 0)[1], counts, ha="left", va="center", fontsize=10, color=INK)
    key = ((GREEN, GREEN, "returned"), (BLUE, BLUE, "in the beam"), ("#e4e4e4", INK, "scored, dropped"))
    for i, (face, edge, label) in enumerate((*key, (PAPER, "#c8c8c8", "never scored"))):
        axes.add_patch(
            Circle((0.5 + (0, 3.4, 7.4, 12.2)[i], -1.25), 0.25, facecolor=face, edgecolor=edge, linewidth=1.2)
        )
        axes.text(0.95 + (0, 3.4, 7.4, 12.2)[i], -1.25, label, ha="left", va="center", fontsize=10, color=INK)
    save(figure, axes, path, (-3.4, 20.2), (-1.7, 5.6))


def draw_score(path: Path) -> None:
    """From a history to the score of one node."""
    figure, axes = plt.subplots(figsize=(10, 6), dpi=120)
    box(axes, 0, 3.0, 2.6, 1.6, "history x", "items chosen")
    box(axes, 0, 0.9, 2.6, 1.6, "node n", "items below it")
    parts = (
        ("factors", "user vector (ALS) · node vector"),
        ("memory", "best partner item below n"),
        ("repeats", "is an item of x below n?"),
        ("popularity", "most popular item below n"),
        ("sequence", "transformer state · node vector"),
        ("context", "context vector · node vector"),
        ("network", "trained under the beam"),
    )
    for i, (name, what) in enumerate(parts):
        y = 5.55 - 1.2 * i
        is_closed = name in ("factors", "memory", "repeats", "popularity", "context")
        box(axes, 4.4, y, 5.0, 1.0, name, what, face="#eef3fa" if is_closed else "#eaf5ee")
        for source in (3.8, 1.7):
            arrow(axes, (2.6, source), (4.4, y + 0.5), GREY)
        arrow(axes, (9.4, y + 0.5), (12.35, 2.65), INK)
        middle = y + 0.5 + (2.15 - y) * 0.42
        label = {"facecolor": PAPER, "edgecolor": "none", "pad": 1.5}
        axes.text(10.65, middle, f"× w[{name}]", fontsize=9, ha="center", va="center", bbox=label, zorder=3)
    axes.add_patch(Circle((12.7, 2.65), 0.36, facecolor=PAPER, edgecolor=INK, linewidth=1.4, zorder=3))
    axes.text(12.7, 2.63, "+", fontsize=15, ha="center", va="center", zorder=4)
    arrow(axes, (13.06, 2.65), (13.9, 2.65), INK)
    box(axes, 13.9, 2.0, 2.5, 1.3, "g(x, n)", "score of n for x")
    axes.text(
        4.4,
        -2.1,
        "Blue: closed form, no gradients.  Green: learned by gradients.  Weights w: chosen on validation users.",
        fontsize=9.5,
        color=INK,
    )
    save(figure, axes, path, (-0.3, 16.8), (-2.4, 6.8))


def box(axes: Axes, x: float, y: float, width: float, height: float, title: str, text: str, face: str = PAPER) -> None:
    shape = FancyBboxPatch((x, y), width, height, boxstyle="round,pad=0,rounding_size=0.12")
    shape.set(facecolor=face, edgecolor=INK, linewidth=1.2, zorder=2)
    axes.add_patch(shape)
    middle = x + width / 2
    axes.text(middle, y + height * 0.68, title, ha="center", va="center", fontsize=11, weight="bold", zorder=3)
    axes.text(middle, y + height * 0.28, text, ha="center", va="center", fontsize=9, color=INK, zorder=3)


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], colour: str) -> None:
    axes.add_patch(FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=10, color=colour, linewidth=1.0))


def save(figure: plt.Figure, axes: Axes, path: Path, x: tuple[float, float], y: tuple[float, float]) -> None:
    axes.set(xlim=x, ylim=y, aspect="equal")
    axes.axis("off")
    figure.savefig(path, bbox_inches="tight", pad_inches=0.1, facecolor=PAPER, metadata={"Software": None})
    plt.close(figure)


if __name__ == "__main__":
    draw_beam(PICTURES / "beam.png")
    draw_score(PICTURES / "score.png")
