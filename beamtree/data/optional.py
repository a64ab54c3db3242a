"""Libraries that not everybody needs, and what to say where one is missing."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needs(extra: str, what: str) -> Iterator[None]:
    """Around an import: a ValueError in one line where a library of this extra, or of none, is missing."""
    try:
        yield
    except ImportError as error:
        missing = error.name.split(".")[0] if error.name else str(error)
        install = f"'beamtree[{extra}]'" if extra else missing
        raise ValueError(f"{what} needs {missing}, which is not installed: pip install {install}") from error
