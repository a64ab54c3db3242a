"""Table A.2: the regret of every method on synthetic data of growing sparsity, c = 0 … -5."""

from beamtree.research.paper.report import Cell
from beamtree.research.paper.synthetic import DEFAULT_ROWS, OnJob, OnStep, Plan, synthetic_cells

TITLE = "Table A.2: synthetic data, M = 1000, d = 10, k = 50, regret at m by sparsity c"
PLAN = Plan(DEFAULT_ROWS, biases=(0.0, -1.0, -2.0, -3.0, -4.0, -5.0), runs=5)


def table_a2(plan: Plan, on_step: OnStep, on_job: OnJob) -> list[Cell]:
    return synthetic_cells("tableA2", plan, on_step, on_job)
