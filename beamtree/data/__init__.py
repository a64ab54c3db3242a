"""Data: what the paper makes up, and what users bring."""

from beamtree.data.batch import Instances, epoch_order, mix
from beamtree.data.factors import factors
from beamtree.data.log import HISTORY, Log, Windows
from beamtree.data.prepared import Ids, Prepared, load
from beamtree.data.synthetic import Gaussian, gaussian, relevant_items, toy

Data = Instances | Log | Windows  # anything that training and evaluation read in batches

__all__ = [
    "HISTORY",
    "Data",
    "Gaussian",
    "Ids",
    "Instances",
    "Log",
    "Prepared",
    "Windows",
    "epoch_order",
    "factors",
    "gaussian",
    "load",
    "mix",
    "relevant_items",
    "toy",
]
