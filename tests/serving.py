"""Small models to serve, and ways to query an engine."""

import contextlib
import dataclasses
import threading
import time
from concurrent.futures import Future
from datetime import date
from functools import partial

import httpx
import polars as pl
import torch

import beamtree as bt
from beamtree.data import Ids
from beamtree.data.catalogue import Catalogue
from beamtree.ingest.item_tables import read_catalogue
from beamtree.live import LiveModel
from beamtree.live.live_model import ItemCounts, UnknownItemError
from beamtree.query import History, RecommendRequest
from beamtree.serve.engine.engine import Engine, EngineOptions, Job
from beamtree.serve.engine.served_run import LoadedRun, open_run
from beamtree.serve.http.app import make_app
from beamtree.serve.http.server import listen, make_server
from beamtree.serve.http.service import Service
from beamtree.storage.runs import write_run

ITEMS = 60


def make_model(items=ITEMS, seed=0):
    tree = bt.random_tree(items, seed=seed)
    model = bt.TreeModel(tree, bt.DeepScorer(tree.num_nodes, scale=1.0, seed=seed), first_level=2)
    model.ids = Ids([f"i{number}" for number in range(items)])
    model.popularity = torch.arange(items, 0, -1)
    return model.eval()


def titles(ids):
    categories = [f"{'Books' if n % 2 else 'Films'}/{'New' if n % 3 else 'Old'}" for n in range(len(ids))]
    return Catalogue(ids, [f"The title of {name}" for name in ids.names], categories)


def loaded(model=None, **facts):
    model = make_model() if model is None else model
    return LoadedRun(LiveModel(model, catalogue=titles(model.ids)), "shop", facts.pop("digest", "abc"), **facts)


def save_run(folder, items=ITEMS, seed=0):
    """A run folder that was never trained."""
    folder.mkdir(parents=True, exist_ok=True)
    write_run(folder, {"data": None, "method": "otm"})
    bt.save_model(make_model(items, seed), folder)
    return folder


def make_engine(shop, on_batch=None, **options):
    """An engine that never narrows the beam, unless `degrade_after` is given."""
    return Engine(shop, EngineOptions(**{"beam_size": 20, "degrade_after": 60.0, **options}), on_batch)


class SteadyLoad:
    """A load control that always narrows by `step`; it records the waits it observes."""

    def __init__(self, step):
        self.step, self.degrade_after, self.waits = step, 60.0, []

    def observe(self, now, waited, idle):
        self.waits.append(waited)
        return self.step

    def step_after(self, idle):
        return self.step


class Gate:
    """Blocks the search thread of an engine until it is opened."""

    def __init__(self, engine):
        self._open, self._inside = threading.Event(), threading.Event()
        engine.submit(Job(Future(), read=self._wait))
        assert self._inside.wait(60)

    def _wait(self, searcher):
        self._inside.set()
        assert self._open.wait(60)

    def open(self):
        self._open.set()


def submit(engine, *histories, seconds=60.0, **options):
    """Submit a request; its future."""
    job = Job(Future(), time.monotonic() + seconds, RecommendRequest(list(histories), **options))
    engine.submit(job)
    return job.future


@contextlib.contextmanager
def serving(service, make_app=make_app):
    """A service at a real socket, in a thread, and a client of it."""
    server, listening = make_server(make_app(service), service, drain=0), listen("127.0.0.1", 0)
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    port = listening.getsockname()[1]
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            client.port = port
            yield client
    finally:
        server.should_exit = True
        thread.join(60)
        assert not thread.is_alive()


open_shop = partial(open_run, name="shop")


def make_service(run, open_run=open_shop, **how):
    """A service of a run that does not change, unless it is opened otherwise."""
    # Slow and patient: a machine that does other things too must change no answer.
    options = {name: how.pop(name) for name in EngineOptions._fields if name in how}
    engine = EngineOptions(**{"beam_size": 20, "degrade_after": 60.0, **options})
    return Service(run, open_run, options=engine, **{"timeout": 60.0, **how})


class RecordingModel(LiveModel):
    """Records changes; the model itself stays as it is."""

    def __init__(self, model, **options):
        super().__init__(model, **options)
        self.added, self.chosen = {}, {}

    def _changed(self, yes):
        self.snapshot = self.snapshot._replace(version=self.version + yes)
        return yes

    def update_items(self, items, show=False, add=True):
        unknown = [item for item in items if item not in self.added and not self.ids.find_known([item])]
        if unknown and not add:
            raise UnknownItemError(unknown[0])
        self.parse_update(items)
        changed = [item for item, new in items.items() if self.added.get(item) != new]
        self.added |= items
        return ItemCounts(self._changed(len(changed)), 0)

    def remove_items(self, items):
        return self._changed(sum(self.added.pop(item, None) is not None for item in items))

    forget_items = remove_items

    def record_events(self, events, request=None):
        known = 0
        for user, items, _ in events:
            numbers = [number for number in self.catalogue.ids.find(items) if number is not None]
            self.chosen.setdefault(user, []).extend(numbers)
            known += len(numbers)
        self._changed(known > 0)
        return known

    def retire_events(self, before):
        return 0

    def history(self, user, ids=None):
        return History(list(self.chosen[user])) if user in self.chosen else super().history(user, ids)


def priced(ids):
    """Titles, and a table with columns of every kind."""
    count = len(ids)
    columns = {"price": [n / 2 for n in range(count)], "new": [n % 2 == 0 for n in range(count)]}
    columns |= {
        "genres": [["a", f"g{n % 3}"] for n in range(count)],
        "day": [date(2026, 1, 1 + n % 28) for n in range(count)],
    }
    known = titles(ids)
    texts = {"title": known.titles, "category": known.categories}
    return read_catalogue(pl.DataFrame({"item": ids.names, **texts, **columns}), ids)


def open_changing(run, catalogue=titles):
    """A run whose items have titles, and can change."""
    opened = open_shop(run)
    live = RecordingModel(opened.live.model, catalogue=catalogue(opened.ids), data=opened.data)
    return dataclasses.replace(opened, live=live, read_only=False)
