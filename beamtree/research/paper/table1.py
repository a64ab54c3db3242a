"""Table 1: the regret of beam search under DirEst, m = k."""

from beamtree.research.paper.report import Cell, cell, expected
from beamtree.research.paper.toy import OnRun, tolerance, toy_regrets

TITLE = "Table 1: toy experiment, M = 1000, b = 2, DirEst, regret at m = k"


def table1(runs: int, seed: int, on_run: OnRun) -> list[Cell]:
    found = toy_regrets(runs, seed, on_run)
    samples = expected()["table1"]["N"]
    cells = []
    for row in expected()["table1"]["rows"]:
        k = row["k"]
        printed = dict(zip(samples, row["regret"], strict=True))
        for n in (*samples, "inf-exact"):
            key = {"estimator": "DirEst", "k": k, "m": k, "N": n}
            values = found["DirEst", n, k, k]
            cells.append(cell("table1", key, values, printed.get(n), tolerance("DirEst", n, k)))
    return cells
