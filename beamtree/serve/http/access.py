"""Access control and limits: who may send which requests, and how large they may be."""

import hmac
import ipaddress
import os
from typing import NamedTuple

PUBLIC_PATHS = {  # no token needed
    *("/healthz", "/livez", "/readyz", "/v2/health/live", "/v2/health/ready", "/"),
    *("/docs", "/docs/docs.js", "/docs/swagger-ui-bundle.js", "/docs/swagger-ui.css"),
}
CHANGES_TO_READ = {"/v1/changes"}  # they say what users did
READ_ONLY_POSTS = {"/v1/recommend", "/v1/explain", "/v1/labels"}
SCHEME = "bearer "


class Limits(NamedTuple):
    """The maximum size of one request."""

    m: int = 1_000  # items to recommend
    beam_size: int = 4_000
    history: int = 1_000  # ids of one history
    histories: int = 256  # histories, or users
    listed: int = 100_000  # ids in allowed or exclude
    body: int = 4 << 20  # bytes
    changes: int = 1_000  # items or events to change
    seconds_of_body: float = 10.0  # to receive the body


class Access(NamedTuple):
    """Tokens for reading and for changing; the token for changing also permits reading."""

    read: str | None = None
    change: str | None = None
    open_changes: bool = True  # whether changes need no token where none is set

    def check(self, method: str, path: str, authorization: str) -> tuple[int, str, str] | None:
        """The status, error and hint where a request is not permitted, by its Authorization header."""
        if path in PUBLIC_PATHS and method in ("GET", "HEAD"):
            return None
        token = authorization[len(SCHEME) :].strip() if authorization.lower().startswith(SCHEME) else ""
        may_change = self.change is not None and _equal(token, self.change)
        if is_read_only(method, path) and path not in CHANGES_TO_READ:
            if self.read is None or may_change or _equal(token, self.read):
                return None
            return 401, "a token is required", "send the header Authorization: Bearer TOKEN"
        if may_change or (self.change is None and self.open_changes):
            return None
        if self.change is None:
            return 403, "this service does not accept changes", "start it with BEAMTREE_CHANGE_TOKEN to allow them"
        return 401, "the token for changes is required", "send the header Authorization: Bearer TOKEN"


def access_from_environment(host: str, follows: bool = False) -> Access:
    """The tokens of the environment; without a token for changes, only this machine may make them.

    A service that `follows` another refuses changes itself, and says where to send them.
    """
    read, change = (os.environ.get(f"BEAMTREE_{kind}_TOKEN") or None for kind in ("READ", "CHANGE"))
    return Access(read, change, open_changes=follows or is_local(host))


def is_read_only(method: str, path: str) -> bool:
    """Whether a request changes nothing; an unknown one counts as a change."""
    if method in ("GET", "HEAD", "OPTIONS"):
        return True
    is_inference = path.startswith("/v2/models/") and path.endswith("/infer")
    return method == "POST" and (path in READ_ONLY_POSTS or is_inference)


def _equal(value: str, token: str) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(value.encode("utf-8", "replace"), token.encode("utf-8", "replace"))


def is_local(host: str) -> bool:
    """Whether an address is reachable from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
