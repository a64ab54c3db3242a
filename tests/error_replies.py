"""Replies to wrong requests: each is in our own words and has a hint."""

import re

from pydantic_core._pydantic_core import list_all_errors


def fragments():
    """What pydantic and FastAPI say, without what they fill in."""
    templates = [
        error[key]
        for error in list_all_errors()
        for key in ("message_template_python", "message_template_json")
        if key in error
    ]
    parts = {part.strip(" ,.:").lower() for template in templates for part in re.split(r"\{\w+\}", template)}
    ours = {part for part in parts if len(part) >= 12}
    return {*ours, "json decode error", "error parsing the body", "constrained-", "function-", "union["}


FRAGMENTS = fragments()


def check_error(reply, where):
    """An error is in our words and has a hint."""
    content = reply.json()
    assert set(content) == {"error", "hint"}, (where, content)
    for text in content.values():
        found = [fragment for fragment in FRAGMENTS if fragment in text.lower()]
        assert not found, (where, text, found)
    assert content["hint"], where
    assert not re.search(r"\b(schema|validation)\b", content["error"]), content
    return content
