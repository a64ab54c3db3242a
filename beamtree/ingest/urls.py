"""Files by their addresses: paths, patterns such as log/*.parquet, and s3://bucket/log or what else Arrow lists."""

import glob
from fnmatch import fnmatch
from pathlib import Path

from beamtree.errors import requires, short_message

PATTERN = "*?["


class Address(str):
    """A file that is read over a network, by its URL."""

    __slots__ = ()

    @property
    def name(self) -> str:
        """The last part of it."""
        return self.rpartition("/")[2]


Place = Path | Address


def is_address(source: object) -> bool:
    """Whether this is no path, but an address with a scheme."""
    return isinstance(source, str) and "://" in source


def find_places(source: str | Path) -> tuple[list[Place], bool]:
    """The files that a source stands for, sorted; and whether it is one file itself, and no folder or pattern."""
    if isinstance(source, str) and is_address(source):
        return _find_addresses(source.rstrip("/"))
    path = Path(source)
    if path.exists():
        return (sorted(path.iterdir()), False) if path.is_dir() else ([path], True)
    found = sorted(map(Path, glob.glob(str(path), recursive=True))) if set(PATTERN) & set(str(path)) else []
    if not found:
        raise ValueError(f"{path} is not there")
    return list(found), False


def _find_addresses(source: str) -> tuple[list[Place], bool]:
    with requires("", "listing what is at an address"):
        from pyarrow import fs

    folder, _, last = source.rpartition("/")
    pattern = last if set(PATTERN) & set(last) else None
    try:
        system, path = fs.FileSystem.from_uri(folder if pattern else source)
        info = system.get_file_info(path)
        if info.type == fs.FileType.File:
            return [Address(source)], True
        if info.type != fs.FileType.Directory:
            raise ValueError(f"{source} is not there")
        listed = system.get_file_info(fs.FileSelector(path))
    except (OSError, NotImplementedError) as error:
        raise ValueError(f"{source} cannot be listed: {short_message(error)}") from error
    names = sorted(each.base_name for each in listed if each.type == fs.FileType.File)
    base = folder if pattern else source
    found: list[Place] = [Address(f"{base}/{name}") for name in names if pattern is None or fnmatch(name, pattern)]
    if not found:
        raise ValueError(f"{source} is empty")
    return found, False
