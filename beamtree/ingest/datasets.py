"""Public data sets in one call: downloaded once to a cache folder, and read as frames of Polars.

    movies = bt.datasets.movielens_1m()
    shop = bt.Recommender().fit(movies.log)

A file that is already in the folder is not downloaded: without a network, put it there. The data belong to those who
publish them: read their licenses before you use them for more than a trial.
"""

import hashlib
import http.client
import os
import re
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import polars as pl

from beamtree.errors import explain_full_disk, lookup, short_message
from beamtree.progress import Reporter

MOVIELENS = "https://files.grouplens.org/datasets/movielens"
GOWALLA = "https://snap.stanford.edu/data/loc-gowalla_totalCheckins.txt.gz"
AMAZON = {  # by year: the address of a category, and the unit of its times
    2014: ("http://snap.stanford.edu/data/amazon/productGraph/categoryFiles/ratings_{}.csv", "s"),
    2023: (
        "https://mcauleylab.ucsd.edu/public_datasets/data/amazon_2023/benchmark/0core/rating_only/{}.csv.gz",
        "ms",
    ),
}
MD5 = {  # as published beside the files; others have none
    "ml-1m.zip": "c4d9eecfca2ab87c1945afe126590906",
    "ml-20m.zip": "cd245b17a1ae2cc31bb14903e1204af3",
    "ml-32m.zip": "d472be332d4daa821edc399621853b57",
}
BLOCK = 1 << 20  # bytes that are read at a time
TIMEOUT = 60  # seconds without any byte


class Dataset(NamedTuple):
    """A log, and a table of its items where there is one."""

    log: pl.DataFrame  # user, item, time and, where there are any, rating
    items: pl.DataFrame | None = None  # item, title, genres


def movielens_1m(folder: str | Path | None = None) -> Dataset:
    """MovieLens-1M: a million ratings of 3,706 movies by 6,040 users, and the titles and genres of the movies.

    `folder` is where the files are or will be. Default: beamtree in the cache folder of the user.
    """
    path = download(f"{MOVIELENS}/ml-1m.zip", folder)
    with _naming_damage(path), zipfile.ZipFile(path) as files:
        ratings = files.read("ml-1m/ratings.dat").replace(b"::", b"\t")
        movies = files.read("ml-1m/movies.dat").decode("latin-1").splitlines()
        log = _read_log(ratings, ["user", "item", "rating", "time"], separator="\t")
        rows = [line.split("::") for line in movies]
        items = pl.DataFrame(rows, schema=dict.fromkeys(("item", "title", "genres"), pl.String), orient="row")
    return Dataset(log, items)


def movielens_small(folder: str | Path | None = None) -> Dataset:
    """The small current MovieLens: about 100,000 ratings of 9,000 movies by 600 users. It changes from time to time.

    `folder` is as in `movielens_1m`.
    """
    return _movielens_csv("ml-latest-small", folder)


def movielens_20m(folder: str | Path | None = None) -> Dataset:
    """MovieLens-20M: 20 million ratings of 27,000 movies by 138,000 users.

    `folder` is as in `movielens_1m`. Reading it takes about 2 GB of memory.
    """
    return _movielens_csv("ml-20m", folder)


def movielens_32m(folder: str | Path | None = None) -> Dataset:
    """MovieLens-32M: 32 million ratings of 87,000 movies by 200,000 users.

    `folder` is as in `movielens_1m`. Reading it takes about 3 GB of memory.
    """
    return _movielens_csv("ml-32m", folder)


def amazon_reviews(category: str, year: int = 2023, folder: str | Path | None = None) -> Dataset:
    """Ratings of the products of one category of Amazon, without the texts of the reviews.

    Args:
        category: as in the names of the files, such as All_Beauty, Books or Video_Games; Beauty or Books for 2014.
        year: of the collection: 2014 (as in the paper) or 2023.
        folder: as in `movielens_1m`.
    """
    if not re.fullmatch(r"\w+", category):
        raise ValueError(f"category={category!r}: give a name with underscores, such as Video_Games")
    address, unit = lookup({str(each): source for each, source in AMAZON.items()}, "year", str(year))
    path = download(address.format(category), folder)
    names = ["user", "item", "rating", "time"]
    with _naming_damage(path):
        return Dataset(_read_log(path, names, unit=unit, has_header=year != 2014))


def gowalla(folder: str | Path | None = None) -> Dataset:
    """Gowalla: 6.4 million check-ins of 107,000 users at 1.3 million places, of 2009 and 2010.

    `folder` is as in `movielens_1m`.
    """
    path = download(GOWALLA, folder)
    with _naming_damage(path):
        return Dataset(_read_log(path, ["user", "time", "latitude", "longitude", "item"], separator="\t", unit=None))


# Reading


def _movielens_csv(name: str, folder: str | Path | None) -> Dataset:
    path = download(f"{MOVIELENS}/{name}.zip", folder)
    with _naming_damage(path), zipfile.ZipFile(path) as files:
        log = _read_log(files.read(f"{name}/ratings.csv"), ["user", "item", "rating", "time"], has_header=True)
        items = pl.read_csv(files.read(f"{name}/movies.csv"), infer_schema=False)
        return Dataset(log, items.select(item="movieId", title="title", genres="genres"))


def _read_log(
    source: bytes | Path, names: list[str], *, separator: str = ",", unit: str | None = "s", has_header: bool = False
) -> pl.DataFrame:
    """The columns user, item, time and rating of a text file; with unit=None its times are dates as in ISO 8601."""
    rows = pl.read_csv(source, separator=separator, has_header=has_header, new_columns=names, infer_schema=False)
    if unit is None:
        time = pl.col("time").str.to_datetime("%Y-%m-%dT%H:%M:%SZ", time_unit="us")
    else:
        per_unit = {"s": 1_000_000, "ms": 1_000}[unit]
        time = (pl.col("time").cast(pl.Int64) * per_unit).cast(pl.Datetime("us"))
    columns = [pl.col("user"), pl.col("item"), time]
    return rows.select(columns + [pl.col("rating").cast(pl.Float32)] * ("rating" in names))


@contextmanager
def _naming_damage(path: Path) -> Iterator[None]:
    """A ValueError that names the file where it cannot be read."""
    try:
        yield
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, ValueError, pl.exceptions.PolarsError) as error:
        what = short_message(error, 100)
        raise ValueError(f"{path} cannot be read ({what}): delete it, and it will be downloaded again") from error


# Downloading


def download(url: str, folder: str | Path | None = None) -> Path:
    """The file of an address in a folder, downloaded unless it is there.

    It gets its name when it is complete. What an interrupted download has left is continued.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "beamtree"
    folder = cache if folder is None else Path(folder)
    path = folder / url.rsplit("/", 1)[-1]
    if path.exists():
        return path
    draft = path.with_name(f"{path.name}.part")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with explain_full_disk(folder), Reporter() as report:
            _fetch(url, draft, report)
    except (urllib.error.URLError, ConnectionError, TimeoutError, http.client.HTTPException) as error:
        reason = short_message(getattr(error, "reason", None) or error, 100)
        message = f"{url} cannot be downloaded ({reason}): try again, or put the file into {folder}"
        raise OSError(message) from error
    expected = MD5.get(path.name)
    if expected is not None:
        with draft.open("rb") as file:
            digest = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
        if digest != expected:
            draft.unlink()
            raise OSError(f"{url} has the checksum {digest} and should have {expected}: try again")
    os.replace(draft, path)
    return path


def _fetch(url: str, draft: Path, report: Reporter) -> None:
    """Download to a file, after what it already has if the server can do that."""
    have = draft.stat().st_size if draft.exists() else 0
    headers = {"User-Agent": "beamtree", **({"Range": f"bytes={have}-"} if have else {})}
    try:
        response = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE or not have:
            raise
        draft.unlink()  # it is complete, or of another file
        _fetch(url, draft, report)
        return
    with response:
        continues = have > 0 and response.status == http.HTTPStatus.PARTIAL_CONTENT
        done = have if continues else 0
        total = done + int(response.headers.get("Content-Length") or 0)
        with draft.open("ab" if continues else "wb") as file:
            while block := response.read(BLOCK):
                file.write(block)
                done += len(block)
                report.progress(f"Downloading {draft.stem}", done, max(done, total))
    if done < total:
        raise ConnectionError(f"the connection ended after {done:,} of {total:,} bytes")
