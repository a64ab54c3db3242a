"""Answers in bulk: ids in, ids out."""

from beamtree.answers.answer import (
    Answer,
    History,
    Tally,
    answer,
    history_of_user,
    item_filter,
    read_histories,
    read_history,
    split_ids,
)

__all__ = [
    "Answer",
    "History",
    "Tally",
    "answer",
    "history_of_user",
    "item_filter",
    "read_histories",
    "read_history",
    "split_ids",
]
