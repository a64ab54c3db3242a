"""Answers to people and machines: ids in, ids out."""

from beamtree.serve.answers import Answer, Tally, answer, split_ids

__all__ = ["Answer", "Tally", "answer", "split_ids"]
