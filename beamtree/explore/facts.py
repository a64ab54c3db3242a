"""What the page says about a model."""

from typing import Any

from beamtree.model import TreeModel
from beamtree.scorers import SumScorer


def facts(name: str, model: TreeModel) -> dict[str, Any]:
    """The size and the kind of a model, for JSON."""
    return {
        "name": name,
        "items": model.tree.num_items,
        "arity": model.tree.arity,
        "height": model.tree.height,
        "first_level": model.first_level,
        "chained": model.chained,
        "parts": parts_of(model),
    }


def parts_of(model: TreeModel) -> list[str]:
    """The names of the parts of a score that count."""
    return model.scorer.lean().names if isinstance(model.scorer, SumScorer) else []
