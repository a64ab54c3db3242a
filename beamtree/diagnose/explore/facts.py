"""What the page says about a model."""

from typing import Any

from beamtree.diagnose.explain import parts_of
from beamtree.model import TreeModel


def facts(name: str, model: TreeModel) -> dict[str, Any]:
    """The size and the kind of a model, for JSON."""
    return {
        "name": name,
        "items": model.tree.num_visible,
        "arity": model.tree.arity,
        "height": model.tree.height,
        "first_level": model.first_level,
        "chained": model.chained,
        "parts": parts_of(model),
    }
