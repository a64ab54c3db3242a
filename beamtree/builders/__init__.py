"""How T comes to be."""

from beamtree.builders.random import random_tree

__all__ = ["random_tree"]
