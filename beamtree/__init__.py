"""beamtree: retrieve the right few items out of millions with a learned tree."""

from typing import TYPE_CHECKING

from beamtree._version import VERSION
from beamtree.beam import brute_force, retrieve
from beamtree.builders import category_tree, cluster_tree, learn_tree, random_tree
from beamtree.data import Instances, Log, Prepared, gaussian, load
from beamtree.evaluate import Evaluation, evaluate, measure
from beamtree.inspect import Inspection, inspect
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
from beamtree.model import TreeModel, quantized
from beamtree.scorers import DeepScorer, LinearScorer, Scorer
from beamtree.train import constant, cosine, fit, load_model, save
from beamtree.tree import PAD, Tree

if TYPE_CHECKING:
    from beamtree.data.interactions import prepare
else:

    def __getattr__(name):
        """`prepare` is fetched when it is asked for: Polars takes a moment to import, and may not be there."""
        if name != "prepare":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from beamtree.data.interactions import prepare

        return prepare

    def __dir__():
        return sorted({*globals(), *__all__})


__version__ = VERSION

__all__ = [
    "PAD",
    "DeepScorer",
    "Evaluation",
    "Inspection",
    "Instances",
    "LinearScorer",
    "Log",
    "Method",
    "Prepared",
    "Scorer",
    "Tree",
    "TreeModel",
    "brute_force",
    "category_tree",
    "cluster_tree",
    "constant",
    "cosine",
    "evaluate",
    "fit",
    "gaussian",
    "hsm",
    "inspect",
    "learn_tree",
    "load",
    "load_model",
    "measure",
    "otm",
    "otm_mixed",
    "otm_mixed_all",
    "otm_no_beam",
    "otm_no_optest",
    "otm_stochastic",
    "plt",
    "prepare",
    "quantized",
    "random_tree",
    "retrieve",
    "save",
    "tdm",
    "tdm_uniform",
]
