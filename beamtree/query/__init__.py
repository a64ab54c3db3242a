"""Queries: a request for recommendations in, recommended items out, both with the ids that users write."""

from beamtree.query.history import (
    ERROR,
    POPULAR,
    UNKNOWN_USER,
    History,
    check_unknown,
    encode_history,
    histories_of_users,
    history_of_user,
    id_list,
    in_context,
    is_frame,
    logged_events,
    model_input,
    pad_histories,
    parse_histories,
    parse_history,
    parse_ids,
)
from beamtree.query.masks import MaskCache, allowed_items
from beamtree.query.request import Filter, RecommendRequest, make_filter, read_request, similar_request
from beamtree.query.response import Recommendation, RecommendResponse
from beamtree.query.rules import Boost, Rules, parse_rules, read_rules
from beamtree.query.search import Searcher, hidden_items

__all__ = [
    "ERROR",
    "POPULAR",
    "UNKNOWN_USER",
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
    "check_unknown",
    "encode_history",
    "hidden_items",
    "histories_of_users",
    "history_of_user",
    "id_list",
    "in_context",
    "is_frame",
    "logged_events",
    "make_filter",
    "model_input",
    "pad_histories",
    "parse_histories",
    "parse_history",
    "parse_ids",
    "parse_rules",
    "read_request",
    "read_rules",
    "similar_request",
]
