"""Extreme classification: text or features in, the best few of thousands of labels out."""

from beamtree.classify.classifier import Classifier

__all__ = ["Classifier"]
