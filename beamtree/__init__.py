"""beamtree: retrieve the right few items out of millions with a learned tree."""

from beamtree._version import VERSION
from beamtree.beam import retrieve
from beamtree.builders import random_tree
from beamtree.data import Instances, gaussian
from beamtree.evaluate import evaluate
from beamtree.methods import (
    Method,
    hsm,
    otm,
    otm_mixed,
    otm_mixed_all,
    otm_no_beam,
    otm_no_optest,
    otm_stochastic,
    plt,
    tdm,
    tdm_uniform,
)
from beamtree.model import TreeModel
from beamtree.scorers import LinearScorer, Scorer
from beamtree.train import fit, load_model, save
from beamtree.tree import PAD, Tree

__version__ = VERSION

__all__ = [
    "PAD",
    "Instances",
    "LinearScorer",
    "Method",
    "Scorer",
    "Tree",
    "TreeModel",
    "evaluate",
    "fit",
    "gaussian",
    "hsm",
    "load_model",
    "otm",
    "otm_mixed",
    "otm_mixed_all",
    "otm_no_beam",
    "otm_no_optest",
    "otm_stochastic",
    "plt",
    "random_tree",
    "retrieve",
    "save",
    "tdm",
    "tdm_uniform",
]
