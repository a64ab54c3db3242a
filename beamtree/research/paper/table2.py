"""Table 2: the regret of every method on the synthetic data with c = -5."""

from beamtree.research.paper.report import Cell
from beamtree.research.paper.synthetic import DEFAULT_ROWS, OnJob, OnStep, Plan, synthetic_cells

TITLE = "Table 2: synthetic data, M = 1000, d = 10, k = 50, regret at m"
PLAN = Plan(DEFAULT_ROWS, biases=(-5.0,), runs=5)


def table2(plan: Plan, on_step: OnStep, on_job: OnJob) -> list[Cell]:
    return synthetic_cells("table2", plan, on_step, on_job)
