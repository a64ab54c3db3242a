"""A page to watch a model search: one self-contained document, recorded or served."""

from beamtree.diagnose.explore.document import page
from beamtree.diagnose.explore.facts import facts
from beamtree.diagnose.explore.map import catalogue_map
from beamtree.diagnose.explore.record import BEAM_SIZES, inspected, losses, record, variants

__all__ = ["BEAM_SIZES", "catalogue_map", "facts", "inspected", "losses", "page", "record", "variants"]
