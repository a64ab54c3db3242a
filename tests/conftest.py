"""What tests share: trees of any shape from Hypothesis, and two small shops that are built once for all workers."""

import os
import shutil
from contextlib import closing
from dataclasses import dataclass

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: the threads of small operations wait for each other

import polars as pl
import pytest
import torch
from command import beamtree
from filelock import FileLock
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from sample_logs import cyclic_log
from serving import serving
from topics import topic_texts

import beamtree as bt
from beamtree import PAD, Tree, TreeModel
from beamtree.live import Journal
from beamtree.live.labels import LiveClassifier
from beamtree.scorers import FixedScorer
from beamtree.serve.http.classify import ClassifierService, make_classifier_app

settings.register_profile("beamtree", deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("beamtree")


@pytest.fixture(scope="module")
def browser():
    """Debian's Chromium."""
    playwright = pytest.importorskip("playwright.sync_api", reason="there is no playwright: pip install playwright")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("there is no chromium: apt-get install chromium")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture
def tab(browser):
    """A tab that may complain about nothing, and the addresses it asked."""
    context, trouble = browser.new_context(viewport={"width": 1100, "height": 900}), []
    tab = context.new_page()
    tab.on("console", lambda message: message.type in ("error", "warning") and trouble.append(message.text))
    tab.on("pageerror", lambda error: trouble.append(str(error)))
    tab.asked, tab.trouble = [], trouble
    tab.on("request", lambda request: tab.asked.append(request.url))
    yield tab
    context.close()
    assert not trouble


@dataclass
class Case:
    """One small tree with scores for B users and their relevant items, as tensors and as plain lists."""

    tree: Tree
    slots: list[int | None]
    logits: torch.Tensor  # [B, num_nodes]
    y: torch.Tensor  # [B, P]
    relevant: list[set[int]]

    @property
    def b(self):
        return self.tree.arity

    @property
    def height(self):
        return self.tree.height

    def model(self, chained=False):
        return TreeModel(self.tree, FixedScorer(self.logits), chained=chained)

    def query(self, chained=False):
        model = self.model(chained)
        return model.query(FixedScorer.every(len(self.logits)))


@st.composite
def cases(draw, max_items=40, rows=3, ties=True):
    arity = draw(st.integers(2, 5))
    num_items = draw(st.integers(1, max_items))
    spare = draw(st.integers(0, num_items))  # more empty slots, so that whole subtrees are empty
    seed = draw(st.integers(0, 2**20))
    generator = torch.Generator().manual_seed(seed)
    slots = torch.full((num_items + spare,), PAD)
    slots[torch.randperm(len(slots), generator=generator)[:num_items]] = torch.arange(num_items)
    tree = Tree(slots, arity)
    logits = torch.randn(rows, tree.num_nodes, generator=generator, dtype=torch.float64)
    if ties and draw(st.booleans()):
        logits = logits.round()
    counts = [draw(st.integers(1, num_items)) for _ in range(rows)]
    relevant = [set(torch.randperm(num_items, generator=generator)[:count].tolist()) for count in counts]
    y = torch.full((rows, max(counts) + draw(st.integers(0, 2))), PAD)
    for row, items in enumerate(relevant):
        order = torch.randperm(y.shape[1], generator=generator)[: len(items)]
        y[row, order] = torch.tensor(sorted(items))
    plain = [None if item == PAD else item for item in tree.items().tolist()]
    return Case(tree, plain, logits, y, relevant)


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)


@pytest.fixture(scope="session")
def build_once(tmp_path_factory, worker_id):
    """`build_once(name, build)`: the folder that `build(folder)` fills, in whichever worker needs it first."""
    root = tmp_path_factory.getbasetemp()
    root = root if worker_id == "master" else root.parent

    def folder_of(name, build):
        folder, built = root / name, root / f"{name}.built"
        with FileLock(root / f"{name}.lock"):
            if not built.exists():
                folder.mkdir()
                build(folder)
                built.touch()
        return folder

    return folder_of


@pytest.fixture(scope="session")
def shop_folder(build_once):
    """A cyclic log (`log.csv`), prepared (`data`) and fitted in closed form (`run`). Copy it to change it."""

    def build(folder):
        cyclic_log().write_csv(folder / "log.csv")
        beamtree("prepare", "log.csv", "--out", "data", "--val-users", "10", "--test-users", "10", folder=folder)
        beamtree("train", "data", "--out", "run", "--steps", "0", "--beam-size", "60", folder=folder)

    return build_once("shop", build)


@pytest.fixture
def shop(shop_folder):
    """The recommender of `shop_folder`: a new object for each test."""
    return bt.Recommender.load(shop_folder / "run")


@pytest.fixture(scope="session")
def market_folder(build_once):
    """A simulated log (`market.parquet`), prepared (`prepared`) and trained on (`run`). Copy it to change it."""

    def build(folder):
        size = ["--users", "300", "--items", "150", "--events", "6000"]
        beamtree("simulate", "--out", "market.parquet", *size, folder=folder)
        beamtree("prepare", "market.parquet", "--out", "prepared", "--split", "halves", folder=folder)
        beamtree(*MARKET_TRAIN, folder=folder)

    return build_once("market", build)


MARKET_TRAIN = ["train", "prepared", "--out", "run", "--beam-size", "8", "--nodes", "16", "--epochs", "3"]
MARKET_TRAIN += ["--batch-size", "40"]


@pytest.fixture(scope="session")
def market_data(market_folder):
    return bt.load_data(market_folder / "prepared")


@pytest.fixture(scope="session")
def topic_classifier():
    """A classifier of 600 texts of topics, one of whose labels has a name. Leave it as it is."""
    texts, labels = topic_texts(600)
    return bt.Classifier(trees=2, group=8).fit(texts, labels, names={"t03": "topic3word0 topic3word1"}, verbose=False)


@pytest.fixture(scope="session")
def topics_folder(build_once):
    """Texts of topics (`train.parquet`, `test.parquet`), names of labels, and a classifier (`runs/topics`)."""

    def build(folder):
        texts, labels = topic_texts(300)
        frame = pl.DataFrame({"title": texts, "subjects": labels})
        frame.head(250).write_parquet(folder / "train.parquet")
        frame.tail(50).write_parquet(folder / "test.parquet")
        ids = sorted({label for each in labels for label in each})
        pl.DataFrame({"label": ids, "name": [f"Topic {label[1:]}" for label in ids]}).write_csv(folder / "names.csv")
        done = beamtree(
            "classify", "train", "train.parquet", "--out", "runs/topics", "--label-names", "names.csv", "--group", "8",
            folder=folder,
        )  # fmt: skip
        assert "beamtree classify predict runs/topics" in done.stdout

    return build_once("topics", build)


@pytest.fixture(scope="module")
def label_client(tmp_path_factory):
    """A client of a service of labels that may change: 80 texts on four topics, with a label for each topic."""
    words = [[f"topic{t}word{i}" for i in range(6)] for t in range(4)]
    texts = [f"{words[n % 4][n % 6]} {words[n % 4][n // 4 % 6]}" for n in range(80)]
    classifier = bt.Classifier(group=2).fit(texts, [[f"t{n % 4}"] for n in range(80)], verbose=False)
    with closing(Journal(tmp_path_factory.mktemp("journal"))) as journal:
        service = ClassifierService(LiveClassifier(classifier, journal), "run")
        with serving(service, make_classifier_app) as client:
            yield client
