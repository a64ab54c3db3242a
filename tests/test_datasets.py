"""Public data sets: files of the same form, from a server on this machine."""

import datetime
import gzip
import hashlib
import io
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import polars as pl
import pytest

import beamtree as bt
from beamtree.ingest import datasets

RATINGS_1M = "1::1193::5::978300760\n1::661::3::978302109\n6040::1193::4::956704996\n"
MOVIES_1M = "661::James and the Giant Peach (1996)::Animation|Children's\n1193::Café: a film (1975)::Drama\n"
RATINGS_CSV = "userId,movieId,rating,timestamp\n1,296,5.0,1147880044\n2,306,3.5,1147868817\n"
MOVIES_CSV = 'movieId,title,genres\n296,"Pulp, Fiction (1994)",Crime|Drama\n306,Three Colors (1994),Drama\n'


def zipped(files):
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return data.getvalue()


ML_1M = zipped({"ml-1m/ratings.dat": RATINGS_1M, "ml-1m/movies.dat": MOVIES_1M.encode("latin-1")})


class Server:
    """Serves files; `cut` ends the connection after so many bytes of a file, `requests` are paths and ranges."""

    def __init__(self):
        self.files, self.requests, self.cut, self.ranges = {}, [], None, True
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                wanted = self.headers.get("Range")
                server.requests.append((self.path, wanted))
                content = server.files.get(self.path)
                if content is None:
                    self.send_error(404)
                    return
                start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and server.ranges else 0
                if start >= len(content):
                    self.send_error(416)
                    return
                self.send_response(206 if start else 200)
                self.send_header("Content-Length", str(len(content) - start))
                self.end_headers()
                self.wfile.write(content[start:][: server.cut])

            def log_message(self, *words):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def server(monkeypatch):
    server = Server()
    monkeypatch.setattr(datasets, "MOVIELENS", server.address)
    monkeypatch.setattr(datasets, "MD5", {"ml-1m.zip": hashlib.md5(ML_1M).hexdigest()})
    server.files["/ml-1m.zip"] = ML_1M
    yield server
    server.close()


def test_movielens_1m_is_a_log_and_a_table_of_movies(server, tmp_path):
    movies = bt.datasets.movielens_1m(tmp_path)
    assert movies.log.schema == {"user": pl.String, "item": pl.String, "time": pl.Datetime("us"), "rating": pl.Float32}
    assert movies.log.rows()[0] == ("1", "1193", datetime.datetime(2000, 12, 31, 22, 12, 40), 5.0)
    assert movies.log["user"].to_list() == ["1", "1", "6040"]
    assert movies.items.rows()[1] == ("1193", "Café: a film (1975)", "Drama")
    assert movies.items["genres"][0] == "Animation|Children's"
    again = bt.datasets.movielens_1m(str(tmp_path))
    assert again.log.equals(movies.log)
    assert len(server.requests) == 1  # the second comes from the folder
    assert [path.name for path in tmp_path.iterdir()] == ["ml-1m.zip"]


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("ml-latest-small", datasets.movielens_small),
        ("ml-20m", datasets.movielens_20m),
        ("ml-32m", datasets.movielens_32m),
    ],
)
def test_later_movielens_are_read_from_csv(server, tmp_path, name, read):
    server.files[f"/{name}.zip"] = zipped({f"{name}/ratings.csv": RATINGS_CSV, f"{name}/movies.csv": MOVIES_CSV})
    movies = read(tmp_path)
    assert movies.log.rows()[1] == ("2", "306", datetime.datetime(2006, 5, 17, 12, 26, 57), 3.5)
    assert movies.items.rows()[0] == ("296", "Pulp, Fiction (1994)", "Crime|Drama")


def test_amazon_reviews_of_two_collections(server, tmp_path, monkeypatch):
    server.files["/ratings_Beauty.csv"] = (
        b"A39HTATAQ9V7YF,0205616461,5.0,1369699200\nA3JM6GV9MNOF9X,0558925278,3.0,1355443200\n"
    )
    rows = "user_id,parent_asin,rating,timestamp\nAEYORY2AVPMCPDV57CE337YU5LXA,B08BBQ29N5,3.0,1634275259292\n"
    server.files["/All_Beauty.csv.gz"] = gzip.compress(rows.encode())
    addresses = {2014: (f"{server.address}/ratings_{{}}.csv", "s"), 2023: (f"{server.address}/{{}}.csv.gz", "ms")}
    monkeypatch.setattr(datasets, "AMAZON", addresses)
    old, new = datasets.amazon_reviews("Beauty", 2014, tmp_path), datasets.amazon_reviews("All_Beauty", folder=tmp_path)
    assert old.log.rows()[0] == ("A39HTATAQ9V7YF", "0205616461", datetime.datetime(2013, 5, 28), 5.0)
    assert new.log["time"][0] == datetime.datetime(2021, 10, 15, 5, 20, 59, 292000)
    assert (new.log["item"][0], new.items) == ("B08BBQ29N5", None)
    with pytest.raises(ValueError, match="year '2018' is unknown: choose from 2014, 2023"):
        datasets.amazon_reviews("Beauty", 2018, tmp_path)
    with pytest.raises(ValueError, match="give a name with underscores"):
        datasets.amazon_reviews("../Beauty", folder=tmp_path)
    with pytest.raises(OSError, match=r"Weather\.csv\.gz cannot be downloaded .*Not Found"):
        datasets.amazon_reviews("Weather", folder=tmp_path)


def test_gowalla_has_places_and_dates(server, tmp_path, monkeypatch):
    rows = "0\t2010-10-19T23:55:27Z\t30.2359091167\t-97.7951395833\t22847\n"
    server.files["/checkins.txt.gz"] = gzip.compress(rows.encode())
    monkeypatch.setattr(datasets, "GOWALLA", f"{server.address}/checkins.txt.gz")
    log = datasets.gowalla(tmp_path).log
    assert log.rows() == [("0", "22847", datetime.datetime(2010, 10, 19, 23, 55, 27))]
    assert log.columns == ["user", "item", "time"]


def test_an_interrupted_download_is_continued(server, tmp_path):
    server.cut = 100
    with pytest.raises(OSError, match=r"ml-1m.zip cannot be downloaded \(the connection ended after 100 of"):
        datasets.movielens_1m(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["ml-1m.zip.part"]
    server.cut = None
    assert datasets.movielens_1m(tmp_path).log.height == 3
    assert server.requests == [("/ml-1m.zip", None), ("/ml-1m.zip", "bytes=100-")]
    assert [path.name for path in tmp_path.iterdir()] == ["ml-1m.zip"]


@pytest.mark.parametrize("kept", [100, len(ML_1M), len(ML_1M) + 1])
@pytest.mark.parametrize("ranges", [True, False])
def test_what_is_left_of_another_download_does_no_harm(server, tmp_path, kept, ranges):
    """A server that ignores ranges sends all of it, and one that has no such range is asked for all of it."""
    server.ranges = ranges
    (tmp_path / "ml-1m.zip.part").write_bytes((ML_1M + b"more")[:kept])
    assert datasets.movielens_1m(tmp_path).log.height == 3
    assert (tmp_path / "ml-1m.zip").read_bytes() == ML_1M


def test_a_file_with_another_checksum_is_not_kept(server, tmp_path):
    server.files["/ml-1m.zip"] = ML_1M + b"more"
    with pytest.raises(OSError, match=r"has the checksum .* and should have"):
        datasets.movielens_1m(tmp_path)
    assert not list(tmp_path.iterdir())


def test_without_a_network_one_line_says_what_to_do(tmp_path, monkeypatch):
    server = Server()
    server.close()
    monkeypatch.setattr(datasets, "MOVIELENS", server.address)
    with pytest.raises(OSError, match="refused") as caught:
        datasets.movielens_1m(tmp_path)
    assert f"try again, or put the file into {tmp_path}" in str(caught.value)
    assert "\n" not in str(caught.value)
    (tmp_path / "ml-1m.zip").write_bytes(ML_1M)
    assert datasets.movielens_1m(tmp_path).log.height == 3


@pytest.mark.parametrize("content", [b"", b"no archive", ML_1M[:200], zipped({"readme": "nothing here"})])
def test_a_damaged_file_is_named(tmp_path, content):
    (tmp_path / "ml-1m.zip").write_bytes(content)
    with pytest.raises(ValueError, match=r"ml-1m\.zip cannot be read .*: delete it"):
        datasets.movielens_1m(tmp_path)


def test_files_are_kept_in_the_cache_folder_of_the_user(server, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    datasets.movielens_1m()
    assert (tmp_path / "beamtree" / "ml-1m.zip").exists()


def test_the_log_is_fitted_as_it_is(server, tmp_path):
    ratings = "".join(
        f"{user}::{1 + (user + place) % 30}::{1 + place % 5}::{978300000 + place}\n"
        for user in range(40)
        for place in range(12)
    )
    (tmp_path / "ml-1m.zip").write_bytes(zipped({"ml-1m/ratings.dat": ratings, "ml-1m/movies.dat": b"1::A::B\n"}))
    log = datasets.movielens_1m(tmp_path).log
    shop = bt.Recommender(steps=0, beam_size=30).fit(log, weight="rating", verbose=False)
    assert shop.recommend(["3", "4"], m=3).height == 3
