"""One beam width per level, for a share of recall or a time."""

from beamtree.diagnose.tune.choose import USERS, Trial, Tuned, tune

__all__ = ["USERS", "Trial", "Tuned", "tune"]
