"""How T comes to be."""

from beamtree.builders.cluster import cluster_tree
from beamtree.builders.random import random_tree

__all__ = ["cluster_tree", "random_tree"]
