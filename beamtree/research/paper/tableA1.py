"""Table A.1: the regret of beam search under DirEst, HierEst and OptEst, any m ≤ k."""

from beamtree.research.paper.report import Cell, cell, expected
from beamtree.research.paper.toy import OnRun, tolerance, toy_regrets

TITLE = "Table A.1: toy experiment, M = 1000, b = 2, regret at m ≤ k"


def table_a1(runs: int, seed: int, on_run: OnRun) -> list[Cell]:
    found = toy_regrets(runs, seed, on_run)
    samples = expected()["tableA1"]["N"]
    cells = []
    for estimator in ("DirEst", "HierEst", "OptEst"):
        for row in expected()["tableA1"]["rows"]:
            k, m = row["k"], row["m"]
            printed = dict(zip(samples, row[estimator], strict=True))
            columns = samples if estimator == "OptEst" else (*samples, "inf-exact")
            for n in columns:
                key = {"estimator": estimator, "k": k, "m": m, "N": n}
                values = found[estimator, n, k, m]
                near = tolerance(estimator, n, k)
                cells.append(cell("tableA1", key, values, printed.get(n), near))
    return cells
