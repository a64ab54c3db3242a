"""What training reads: instances in memory, events and views of them, prepared folders, and synthetic data."""

from beamtree.data.events import Events
from beamtree.data.factors import factors
from beamtree.data.ids import Ids
from beamtree.data.inputs import HISTORY
from beamtree.data.instances import Data, Instances
from beamtree.data.prepared import Prepared, load_data
from beamtree.data.synthetic import Gaussian, gaussian, relevant_items, toy
from beamtree.data.views import BeforeAfter, RandomCrops, SlidingWindows, random_crops

__all__ = [
    "HISTORY",
    "BeforeAfter",
    "Data",
    "Events",
    "Gaussian",
    "Ids",
    "Instances",
    "Prepared",
    "RandomCrops",
    "SlidingWindows",
    "factors",
    "gaussian",
    "load_data",
    "random_crops",
    "relevant_items",
    "toy",
]
