"""beamtree: retrieve the right few items out of millions with a learned tree.

Most users need one object:

    import beamtree as bt

    shop = bt.Recommender(seed=0)
    shop.fit("log.parquet")
    shop.recommend(["B00A", "B00B"], m=10)

or, for documents and their labels:

    subjects = bt.Classifier().fit(texts, labels)
    subjects.predict("a history of lighthouses", m=5)

The parts: `prepare` and `load_data` for a log, and `datasets` with public ones; a tree (`cluster_tree` and others); a
`Scorer` on it in a `TreeModel`; a method (`otm` and others) to `fit` it; `retrieve`, `evaluate`, `inspect`;
`save_model`, `load_model`. Everything else is in its module: `beamtree.train`, `beamtree.methods`, `beamtree.metrics`,
`beamtree.theory`, …
"""

from importlib import import_module
from typing import TYPE_CHECKING

from beamtree.beam import brute_force, retrieve
from beamtree.builders import category_tree, cluster_tree, learn_tree, random_tree
from beamtree.classify import Classifier
from beamtree.data import gaussian, load_data
from beamtree.diagnose.inspect import inspect
from beamtree.evaluate import evaluate
from beamtree.evaluate import metrics as metrics
from beamtree.methods import Method, hsm, otm, otm_mixed, plt, tdm
from beamtree.model import TreeModel
from beamtree.query import Rules
from beamtree.recommender import Recommender
from beamtree.scorers import DeepScorer, LinearScorer, Scorer
from beamtree.storage.models import load_model, save_model
from beamtree.train import fit
from beamtree.tree import PAD, Tree

if TYPE_CHECKING:
    from beamtree.ingest import datasets
    from beamtree.ingest.prepare import prepare
else:

    def __getattr__(name):
        """Import `prepare` and `datasets` on first use: Polars is slow to import, and optional."""
        if name not in ("datasets", "prepare"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module = import_module(f"beamtree.ingest.{name}")
        return module if name == "datasets" else module.prepare

    def __dir__():
        return sorted({*globals(), *__all__})


__version__ = "0.2.0"

__all__ = [
    "PAD",
    "Classifier",
    "DeepScorer",
    "LinearScorer",
    "Method",
    "Recommender",
    "Rules",
    "Scorer",
    "Tree",
    "TreeModel",
    "brute_force",
    "category_tree",
    "cluster_tree",
    "datasets",
    "evaluate",
    "fit",
    "gaussian",
    "hsm",
    "inspect",
    "learn_tree",
    "load_data",
    "load_model",
    "otm",
    "otm_mixed",
    "plt",
    "prepare",
    "random_tree",
    "retrieve",
    "save_model",
    "tdm",
]
