"""A disk that is full for a moment."""

import contextlib
import resource


@contextlib.contextmanager
def full_after(size):
    """Files of this process end at a size: what is written beyond fails, as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
