"""Libraries that not everybody needs, and what to say where one is missing."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needs(extra: str, what: str) -> Iterator[None]:
    """Around an import: a ValueError in one line where a library of this extra is not installed."""
    try:
        yield
    except ImportError as error:
        missing = error.name.split(".")[0] if error.name else str(error)
        raise ValueError(f"{what} needs {missing}, which is not installed: pip install 'beamtree[{extra}]'") from error
