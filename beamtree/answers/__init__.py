"""Answers in bulk: ids in, ids out."""

from beamtree.answers.answer import (
    Answer,
    History,
    Tally,
    answer,
    as_columns,
    as_users,
    history_of_user,
    item_filter,
    listed,
    read_histories,
    read_history,
    split_ids,
)

__all__ = [
    "Answer",
    "History",
    "Tally",
    "answer",
    "as_columns",
    "as_users",
    "history_of_user",
    "item_filter",
    "listed",
    "read_histories",
    "read_history",
    "split_ids",
]
