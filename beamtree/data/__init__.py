"""Data: what the paper makes up."""

from beamtree.data.batch import Instances, epoch_order, mix
from beamtree.data.synthetic import Gaussian, gaussian, relevant_items, toy

__all__ = ["Gaussian", "Instances", "epoch_order", "gaussian", "mix", "relevant_items", "toy"]
