"""How much may be asked for, and by whom."""

import hmac
import ipaddress
from typing import NamedTuple

PROBES = {"/healthz", "/livez", "/readyz", "/v2/health/live", "/v2/health/ready"}
OPEN = PROBES | {"/"}  # what nobody needs a token for; the page holds nothing that is not in the package
READING = {"/v1/recommend", "/v1/explain"}  # that are posted and change nothing
SCHEME = "bearer "


class Limits(NamedTuple):
    """What one request may hold."""

    m: int = 1_000  # items that are asked for
    beam_size: int = 4_000
    history: int = 1_000  # ids of one history
    histories: int = 256  # histories, or users
    listed: int = 100_000  # ids of allowed and exclude
    body: int = 4 << 20  # bytes
    changes: int = 1_000  # items or events that change
    seconds_of_body: float = 10.0  # in which it must have come


class Access(NamedTuple):
    """Tokens for reading and for changing, where there are any; who may change may read."""

    read: str | None = None
    change: str | None = None
    open_changes: bool = True  # whether everybody may change things where no token for changing is set

    def refuses(self, method: str, path: str, header: str) -> tuple[int, str, str] | None:
        """The status, the error and the hint where a request may not go on, by its Authorization header."""
        if path in OPEN and method in ("GET", "HEAD"):
            return None
        given = header[len(SCHEME) :].strip() if header.lower().startswith(SCHEME) else ""
        may_change = self.change is not None and _same(given, self.change)
        if reads(method, path):
            if self.read is None or may_change or _same(given, self.read):
                return None
            return 401, "a token is needed", "send the header Authorization: Bearer TOKEN"
        if may_change or (self.change is None and self.open_changes):
            return None
        if self.change is None:
            return 403, "this service does not take changes", "start it with BEAMTREE_CHANGE_TOKEN to allow them"
        return 401, "the token for changes is needed", "send the header Authorization: Bearer TOKEN"


def reads(method: str, path: str) -> bool:
    """Whether a request changes nothing; whatever is not known to be so counts as a change."""
    if method in ("GET", "HEAD", "OPTIONS"):
        return True
    infers = path.startswith("/v2/models/") and path.endswith("/infer")
    return method == "POST" and (path in READING or infers)


def _same(given: str, token: str) -> bool:
    """Whether two texts are equal, in a time that does not tell where they differ."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), token.encode("utf-8", "replace"))


def is_local(host: str) -> bool:
    """Whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
