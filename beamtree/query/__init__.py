"""Queries: a request for recommendations in, recommended items out, both with the ids that users write."""

from beamtree.query.history import (
    History,
    encode_history,
    histories_of_users,
    history_of_user,
    id_list,
    logged_events,
    pad_histories,
    parse_histories,
    parse_ids,
)
from beamtree.query.rules import Boost, Rules, parse_rules, read_rules
from beamtree.query.searcher import (
    Filter,
    MaskCache,
    Recommendation,
    RecommendRequest,
    RecommendResponse,
    Searcher,
    allowed_items,
    hidden_items,
    make_filter,
    similar_request,
)

__all__ = [
    "Boost",
    "Filter",
    "History",
    "MaskCache",
    "RecommendRequest",
    "RecommendResponse",
    "Recommendation",
    "Rules",
    "Searcher",
    "allowed_items",
    "encode_history",
    "hidden_items",
    "histories_of_users",
    "history_of_user",
    "id_list",
    "logged_events",
    "make_filter",
    "pad_histories",
    "parse_histories",
    "parse_ids",
    "parse_rules",
    "read_rules",
    "similar_request",
]
