"""Tree builders: random, by category, by clustering, and learned from a model."""

from beamtree.builders.category import category_tree
from beamtree.builders.cluster import cluster_tree
from beamtree.builders.learned import learn_tree
from beamtree.builders.random import random_tree

__all__ = ["category_tree", "cluster_tree", "learn_tree", "random_tree"]
