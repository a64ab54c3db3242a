"""The page as one HTML document: markup, styles, scripts and data in one file, and nothing from elsewhere.

Titles are hostile: they may hold tags, quotes and control characters. All data are compressed and written in base64,
which has no character that means anything in HTML, and the scripts put text on the screen as text. A policy in the
document lets the browser run the one script whose checksum it names, and ask nobody but the server it came from.
"""

import base64
import gzip
import hashlib
import html
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FILES = Path(__file__).parent / "page"
SCRIPTS = (
    "words",
    "source",
    "state",
    "layout",
    "text",
    "tree",
    "gestures",
    "panels",
    "charts",
    "compare",
    "map",
    "keys",
    "app",
)


def page(data: Mapping[str, Any] | None = None, *, live: bool = False) -> str:
    """The page for what `record` gave; or a `live` one, which holds nothing and asks the server it came from."""
    if (data is None) is not live:
        raise ValueError("give what `record` gave, or live=True: a page has its data from one of the two")
    data = data or {"format": 1, "live": True, "name": "live"}
    script = "\n".join((FILES / f"{name}.js").read_text(encoding="utf-8") for name in SCRIPTS)
    script = f'"use strict";\n(() => {{\n{script}\n}})();\n'
    style = (FILES / "page.css").read_text(encoding="utf-8")
    asks = "'self'" if live else "'none'"
    policy = (
        f"default-src 'none'; script-src '{_checksum(script)}'; style-src '{_checksum(style)}'; "
        f"connect-src {asks}; img-src data:; base-uri 'none'; form-action 'none'"
    )
    parts = {
        "policy": html.escape(policy),
        "title": html.escape(_printable(str(data["name"]))),
        "style": style,
        "data": _packed(data),
        "script": script,
    }
    text = (FILES / "page.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], text)  # in one pass: a title may look like a place


def _packed(data: Mapping[str, Any]) -> str:
    """JSON, compressed, in base64; the same data give the same text."""
    plain = json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return base64.b64encode(gzip.compress(plain.encode("utf-8", "replace"), mtime=0)).decode("ascii")


def _checksum(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)
