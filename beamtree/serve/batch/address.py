"""Whether a cluster of Ray answers at an address, and what to do where it does not.

Another process finds out: Ray tries for minutes where it is refused, says why on the way, and may end who called it.
"""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from threading import Timer

from beamtree.errors import requires, short_message

SECONDS = 60  # within which a cluster must answer
CLIENT = "ray://"
MODE, TOKEN, TOKEN_PATH = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"
TOKEN_FILE = "~/.ray/auth_token"
LOOKS = "RAY_gcs_server_request_timeout_seconds"  # how long Ray looks for a part of the cluster on this machine
PROBE = """
import logging, sys
try:
    import ray
    logging.getLogger("ray.util.client.worker").setLevel("DEBUG")  # here it says why it is refused
    ray.init(sys.argv[1], log_to_driver=False, logging_level="ERROR")
    print(sys.argv[1] if "://" in sys.argv[1] else ray.get_runtime_context().gcs_address)
    ray.shutdown()
except Exception as error:
    words = []
    while error is not None:
        words.append(" ".join(f"{type(error).__name__}: {error}".split()))
        error = error.__cause__
    sys.exit("\\n".join(words[::-1]))
"""
# What Ray says, in small letters; after one of the first three it would only try again.
NO_TOKEN = ("invalidauthtoken", "authentication token", "token authentication")
OTHER_PORT = ("method not found",)
OTHER_VERSION = ("version mismatch",)
NO_CLIENTS = ("ray client connection timeout",)
NONE_HERE = ("could not find any running ray",)
NOT_A_MEMBER = ("no node info found matching", "cannot find a local raylet")


def take_token() -> None:
    """Have Ray send the token that it finds, before it is imported.

    For a cluster on this machine it does so by itself; at an address it would not, and a cluster that asks for none
    takes any.
    """
    if MODE in os.environ or _token_place() is None:
        return
    os.environ[MODE] = "token"
    if "ray" in sys.modules:  # which has read its settings already
        sys.modules["ray"]._raylet.Config.initialize("")


def check_answers(address: str) -> str:
    """The address of a cluster that takes us, as Ray knows it; a ValueError where there is none.

    Where several run on this machine, auto is any of them, and not the same one each time.
    """
    if address != "auto":
        _check_reachable(address)
    if address.startswith(CLIENT):
        with requires("ray", f"an address {CLIENT}HOST:PORT"):
            __import__("grpc")
    found, said, code = _probe(address)
    if code == 0:
        return found
    reason = _reason(said, address)
    if reason is None and code == -getattr(signal, "SIGKILL", 9):
        reason = f"no Ray answers there within {SECONDS} seconds"
    last = said[-1] if said else "it ended without a word"
    raise ValueError(f"address={address}: {reason or f'Ray cannot use it: {short_message(last)}'}")


def _check_reachable(address: str) -> None:
    host, _, port = address.removeprefix(CLIENT).rpartition(":")
    if not host or not port.isdigit() or "/" in host:
        raise ValueError(f"address={address}: give HOST:PORT, {CLIENT}HOST:PORT or auto")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=SECONDS / 6).close()
    except (OSError, OverflowError) as error:
        raise ValueError(f"address={address}: nothing answers there ({short_message(error)})") from error


def _probe(address: str) -> tuple[str, list[str], int]:
    """Where Ray connected, what it said, and how it ended: killed where it took too long, or could only fail."""
    said: list[str] = []
    with subprocess.Popen(
        [sys.executable, "-c", PROBE, address],
        env={LOOKS: str(SECONDS // 3), **os.environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    ) as probe:
        limit = Timer(SECONDS, probe.kill)
        limit.start()
        try:
            for line in probe.stderr or ():
                said += [line] if line.strip() else []
                if _says([line], *NO_TOKEN, *OTHER_PORT, *OTHER_VERSION):
                    probe.kill()
            found = probe.stdout.read().split() if probe.stdout else []
            return found[-1] if found else address, said, probe.wait()
        finally:
            limit.cancel()
            probe.kill()


def _says(said: list[str], *words: str) -> bool:
    return any(word in line.lower() for line in said for word in words)


def _reason(said: list[str], address: str) -> str | None:
    """Why a cluster does not take us, and what to do; None where that is not known."""
    if _says(said, *NO_TOKEN):
        return _about_token()
    if _says(said, *OTHER_VERSION):
        words = short_message(next(line for line in said if _says([line], *OTHER_VERSION)))
        return f"{words[words.lower().index(OTHER_VERSION[0]) :]}: install the same on both sides"
    if address.startswith(CLIENT):
        port = "the port of `ray start --ray-client-server-port`, 10001 unless given"
        return f"no Ray takes clients there: give {port}" if _says(said, *NO_CLIENTS) else None
    if _says(said, *OTHER_PORT):
        return "that is another port of Ray: give the one of `ray start --port`, or ray:// and the one of clients"
    if _says(said, *NONE_HERE):
        return "no Ray runs on this machine: give the address of one, or none to have one started"
    if _says(said, *NOT_A_MEMBER):
        return f"this machine is no part of that cluster: give {CLIENT}HOST:10001"
    return None


def _token_place() -> str | None:
    """Where Ray finds a token, in its order."""
    for name in (TOKEN, TOKEN_PATH):
        if os.environ.get(name):
            return name
    return TOKEN_FILE if Path(TOKEN_FILE).expanduser().is_file() else None


def _about_token() -> str:
    place, mode = _token_place(), os.environ.get(MODE)
    if mode is not None and mode.lower() != "token":
        return f"the cluster asks for a token, and {MODE} is {mode}: set it to token, and give the token in {TOKEN}"
    if place is None:
        return f"the cluster asks for a token: give it in {TOKEN}, or in a file that {TOKEN_PATH} names"
    if place == TOKEN_PATH and not Path(os.environ[TOKEN_PATH]).is_file():
        return f"{TOKEN_PATH} names {os.environ[TOKEN_PATH]}, which is not there: give the cluster's token in {TOKEN}"
    return f"the cluster does not take the token of {place}: give its own in {TOKEN}"
