"""From a request to the engine's words, and from its reply to JSON."""

from collections.abc import Sequence
from typing import Any

from beamtree.answers import Answer
from beamtree.data.catalogue import Catalogue
from beamtree.data.ids import as_id
from beamtree.serve.engine.filters import Filter
from beamtree.serve.engine.limits import Limits
from beamtree.serve.engine.search import Reply
from beamtree.serve.engine.source import Beam, Loaded
from beamtree.serve.http.errors import RefusedError
from beamtree.serve.http.schemas import Explain, Recommend, Who

NAMED = 100  # unknown ids that an answer names


def beam_of(asked: Who) -> Beam | None:
    """The beam of a request, if it names one."""
    return tuple(asked.beam_size) if isinstance(asked.beam_size, list) else asked.beam_size


def filter_of(asked: Who, limits: Limits) -> Filter | None:
    """The filter of a request, if it has one."""
    if asked.allowed is None and not asked.exclude and asked.category is None:
        return None
    for name, listed in (("allowed", asked.allowed or ()), ("exclude", asked.exclude)):
        check_size(name, len(listed), limits.listed, "ids")
    allowed = None if asked.allowed is None else tuple(map(as_id, asked.allowed))
    return Filter(allowed, tuple(map(as_id, asked.exclude)), asked.category)


def rows_of(asked: Recommend | Explain, limits: Limits) -> tuple[list[list[Any]], list[str] | None]:
    """The histories of a request, or its users: exactly one of these."""
    several = {"histories": getattr(asked, "histories", None), "users": getattr(asked, "users", None)}
    given = {"history": asked.history, "user": asked.user, **several}
    named = [name for name, value in given.items() if value is not None]
    if len(named) != 1:
        words = "history or user" if isinstance(asked, Explain) else "history, histories, user or users"
        raise RefusedError(422, f"give one of {words}, not {len(named)} of them", "see /openapi.json for examples")
    if asked.user is not None:
        return [], [as_id(asked.user)]
    if several["users"] is not None:
        check_size("users", len(several["users"]), limits.histories, "users")
        return [], [as_id(user) for user in several["users"]]
    histories: list[list[Any]] = [asked.history] if asked.history is not None else several["histories"] or []
    check_size("histories", len(histories), limits.histories, "histories")
    check_size("history", max(map(len, histories), default=0), limits.history, "ids")
    return histories, None


def check_size(name: str, size: int, limit: int, what: str) -> None:
    if size > limit:
        raise RefusedError(422, f"{name} has {size} {what}, over the limit of {limit}", f"send {limit} at most")


def recommended(loaded: Loaded, reply: Reply, users: Sequence[str] | None, seconds: float) -> dict[str, Any]:
    """A reply as JSON."""
    beam = list(reply.beam) if isinstance(reply.beam, tuple) else reply.beam
    return {
        "model": loaded.name,
        "version": reply.version,
        "degraded": None if reply.narrowed_from is None else {"beam_size": beam, "reason": "load"},
        "milliseconds": round(seconds * 1000, 3),
        "results": [
            _result(reply, each, users[place] if users is not None else None)
            for place, each in enumerate(reply.answers)
        ],
    }


def _result(reply: Reply, found: Answer, user: str | None) -> dict[str, Any]:
    result: dict[str, Any] = {
        "items": found.items,
        "scores": found.scores,
        "ranks": list(range(1, len(found.items) + 1)),
        "unknown": list(found.unknown[:NAMED]),
        "popular": found.is_popular,
        "notes": _notes(reply, found, user),
    }
    if reply.catalogue.has_titles:
        result["titles"] = titles_of(reply.catalogue, found.items)
    if user is not None:
        result["user"] = user
    return result


def _notes(reply: Reply, found: Answer, user: str | None) -> list[str]:
    """What was not as it should be, in words."""
    notes = []
    if user is not None and user in reply.unknown_users:
        notes.append("this user is not known")
    if found.unknown:
        notes.append(f"{len(found.unknown)} ids of the history are not known and were passed over")
    if found.is_popular:
        notes.append("nothing is known of this history: these are popular items")
    if not found.items:
        nothing = "the filter leaves no known item" if reply.left == 0 else "nothing is left that may be found"
        notes.append(f"{nothing}, so the answer is empty")
    return notes


def titles_of(catalogue: Catalogue, items: Sequence[str]) -> list[str | None]:
    """The title of each item, where there is one."""
    return [None if number is None else catalogue.title(number) for number in catalogue.ids.find(items)]
