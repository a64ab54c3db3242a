"""No file of any folder that is opened is unpickled: its code would run."""

import pickle
import shutil

import numpy as np
import polars as pl
import pytest
import torch
from sample_logs import cyclic_log
from serving import make_service, serving

import beamtree as bt
from beamtree.batch.folder import find_tasks, pending_tasks, run_locally
from beamtree.batch.job import BatchJob
from beamtree.cli.check import _checks
from beamtree.distributed.checkpoint import load_part_for_training, write_sharded
from beamtree.distributed.sharding import shard_model
from beamtree.live import Journal
from beamtree.live.saved import read_run_catalogue
from beamtree.query import RecommendRequest
from beamtree.storage.runs import open_data, open_model
from beamtree.storage.tuned import load_tuned_beam, save_tuned_beam
from beamtree.train import Checkpoints, steps_done
from stress.checksums import update_checksums
from stress.payloads import PAYLOADS, files_in, plant, plant_shards

HISTORY = ["i01", "i02", "i03"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A folder of every kind that is opened."""
    root = tmp_path_factory.mktemp("folders")
    table = pl.DataFrame({"item": [f"i{number:02}" for number in range(60)], "title": [f"T{n}" for n in range(60)]})
    shop = bt.Recommender(steps=2, batch_size=20, beam_size=10).fit(cyclic_log(), items=table, verbose=False)
    shop.update_items({"new": {"like": ["i03"]}})
    shop.remove_items(["i44"])
    shop.save(root / "run")
    save_tuned_beam(root / "run", {"beam_size": [30] * 7})
    shutil.copytree(root / "run" / "data", root / "prepared")
    model = bt.load_model(root / "run")
    bt.save_model(model, root / "model")
    train(root / "training", shop.data)
    (root / "sharded").mkdir()
    shutil.copy(root / "run" / "run.json", root / "sharded")
    write_sharded(root / "sharded", shard_model(bt.load_model(root / "run")), 0, {}, set(), {})
    texts = [f"word{number % 7} other{number % 5}" for number in range(60)]
    labels = [[f"l{number % 7}"] for number in range(60)]
    bt.Classifier(trees=1, group=8).fit(texts, labels, verbose=False).save(root / "classifier")
    journal = Journal(root / "journal")
    journal.append({"kind": "remove", "item": "i01"})
    journal.close()
    (root / "asked").mkdir()
    pl.DataFrame({"user": ["a"], "history": [HISTORY]}).write_parquet(root / "asked" / "part.parquet")
    answer(root)
    return root


def train(folder, data, **options):
    tree = bt.random_tree(data.num_items)
    model = bt.TreeModel(tree, bt.DeepScorer(tree.num_nodes, seed=0))
    checkpoints = Checkpoints(folder, seconds=None, **options)
    bt.fit(model, data.train, bt.tdm(4), steps=1, batch_size=8, checkpoints=checkpoints)


def answer(root):
    job = BatchJob(root / "run", RecommendRequest(m=3, beam_size=20))
    with pending_tasks(job, find_tasks(job, root / "asked", root / "answers"), root / "answers") as tasks:
        return [summary.users for summary in run_locally("cpu")(job, tasks)]


def recommended(folder):
    return bt.Recommender.load(folder).recommend(HISTORY, m=5)["item"].to_list()


def evaluated(folder):
    model = open_model(folder, "cpu")
    return bt.evaluate(model, open_data(folder, model).test, beam_size=20, m=5)["recall", 5]


def retrieved(folder):
    items, _ = bt.retrieve(bt.load_model(folder), torch.tensor([[1, 2, 3]]), beam_size=20, m=5)
    return items.tolist()


def checked(folder):
    for _, check in _checks(folder):
        check()


def titles(folder):
    catalogue = read_run_catalogue(folder, bt.load_model(folder).ids)
    return catalogue and catalogue.titles


def resumed(folder):
    train(folder, bt.load_data(folder.parent / "prepared"), resume=True)
    return steps_done(folder)


def entries(folder):
    journal = Journal(folder)
    journal.close()
    return journal.entries


OPENERS = {
    "model": [retrieved, checked],
    "run": [recommended, evaluated, retrieved, checked, titles, load_tuned_beam],
    "sharded": [retrieved, checked, load_part_for_training],
    "training": [resumed, retrieved, checked],
    "prepared": [lambda folder: bt.load_data(folder).dislikes([0]), checked],
    "classifier": [lambda folder: len(bt.Classifier.load(folder).predict(["word3"], 2)), checked],
    "journal": [entries],
    "answers": [lambda folder: answer(folder.parent)],
}


def called(opener, folder):
    """What an opener returns, or its error, which must be one line."""
    try:
        result = opener(folder)
    except (ValueError, OSError) as error:
        result = f"refused: {error}"
    assert "\n" not in str(result) or not isinstance(result, str), result
    return "a model" if isinstance(result, torch.nn.Module) else result


def copy_of(folders, tmp_path):
    target = tmp_path / "copy"
    shutil.rmtree(target, ignore_errors=True)
    return shutil.copytree(folders, target)


def check_kind(folders, tmp_path, kind, payloads, openers):
    marker = tmp_path / "executed"
    for file in files_in(folders / kind):
        for payload in payloads:
            for sign in (True, False):
                copy = copy_of(folders, tmp_path)
                plant(copy / file.relative_to(folders), PAYLOADS[payload](marker), sign=sign)
                for opener in openers:
                    called(opener, copy / kind)
                    assert not marker.exists(), (kind, file.name, payload, sign, opener)


def test_payloads_are_executed_by_whoever_unpickles_them(tmp_path):
    marker = tmp_path / "executed"
    for name, load in {
        "pickle": lambda path: pickle.loads(path.read_bytes()),
        "array": lambda path: np.load(path, allow_pickle=True),
        "archive": lambda path: torch.load(path, weights_only=False),
    }.items():
        (tmp_path / "file").write_bytes(PAYLOADS[name](marker))
        load(tmp_path / "file")
        marker.rmdir()


def test_every_folder_is_opened_as_it_is(folders, tmp_path):
    copy = copy_of(folders, tmp_path)
    for kind, openers in OPENERS.items():
        for opener in openers:
            assert not str(called(opener, copy / kind)).startswith("refused"), (kind, called(opener, copy / kind))


@pytest.mark.parametrize("kind", ["sharded", "prepared"])
def test_no_file_is_unpickled(folders, tmp_path, kind):
    check_kind(folders, tmp_path, kind, ["pickle" if kind == "sharded" else "array"], OPENERS[kind][:1])


@pytest.mark.extended
@pytest.mark.parametrize("kind", OPENERS)
def test_no_file_is_unpickled_by_anyone(folders, tmp_path, kind):
    check_kind(folders, tmp_path, kind, PAYLOADS, OPENERS[kind])


@pytest.mark.parametrize("kind", ["model", "run", "training"])
def test_a_list_of_shards_is_not_unpickled(folders, tmp_path, kind):
    marker, copy = tmp_path / "executed", copy_of(folders, tmp_path)
    plant_shards(copy / kind, PAYLOADS["pickle"](marker))
    for opener in OPENERS[kind]:
        found = called(opener, copy / kind)
        assert not marker.exists(), (kind, opener)
        if opener is not load_tuned_beam:
            assert "was written over ranks by an older version of beamtree: train again" in str(found)


def test_a_run_with_a_payload_is_not_served(folders, tmp_path):
    marker, copy = tmp_path / "executed", copy_of(folders, tmp_path)
    shutil.copytree(copy / "run", copy / "planted")
    plant_shards(copy / "planted", PAYLOADS["pickle"](marker))
    with serving(make_service(copy / "run")) as client:
        answer = client.post("/v1/model", json={"run": "planted"})
        assert answer.status_code == 422
        assert "older version of beamtree" in answer.text
        assert client.post("/v1/recommend", json={"history": HISTORY}).status_code == 200
    assert not marker.exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s["files"]["shard-0"].update(file="../model/tree-0.safetensors"), "not one of its files"),
        (lambda s: s["files"]["shard-0"].update(file="/dev/zero"), "not one of its files"),
        (lambda s: s["files"]["shard-0"].update(file="link"), "is a link out of its folder"),
        (lambda s: s["files"].update({"shard-9": s["files"]["shard-0"]}), "does not name the files of a model"),
        (lambda s: s["files"].pop("shard-0"), "does not name the files of a model"),
        (lambda s: s["shards"].update(ranks=10**12), "does not name the files of a model"),
        (lambda s: s["shards"].update(ranks=0), "does not name the files of a model"),
        (lambda s: s["shards"].update(rows=["nothing"]), "damaged"),
        (lambda s: s["shards"].update(rows=[[]]), "damaged"),
        (lambda s: s["shards"].update(lists=[{}]), "damaged"),
        (lambda s: s["shards"].update(cut=3), "damaged|another version|do not fit"),
        (lambda s: s["shards"].update(cut=10**9), "damaged|another version|do not fit"),
        (lambda s: s["shards"].pop("lists"), "does not say how the model is divided"),
        (lambda s: s.update(shards=None), "does not say how the model is divided"),
        (lambda s: s["scorer_settings"]["parts"]["factors"][1].update(num_nodes=10**10), "do not fit"),
    ],
)
def test_settings_of_shards_that_fit_no_model_are_one_line(folders, tmp_path, change, message):
    folder = shutil.copytree(folders / "sharded", tmp_path / "sharded")
    (tmp_path / "secret").write_bytes(next(folder.glob("shard-0*")).read_bytes())
    (folder / "link").symlink_to(tmp_path / "secret")
    update_checksums(folder, change)
    for opener in (retrieved, load_part_for_training):
        with pytest.raises(ValueError, match=message) as caught:
            opener(folder)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s["files"].pop("labels.txt"),
        lambda s: s["files"].update({"../model/settings.json": {"bytes": 5}}),
        lambda s: s.update(files=[]),
        lambda s: s.update(unsigned={"counts": "U2"}),
        lambda s: s.update(unsigned={"nothing": "uint32"}),
        lambda s: s.update(weights={"other": 1}),
    ],
)
def test_settings_that_fit_no_classifier_are_one_line(folders, tmp_path, change):
    folder = shutil.copytree(folders / "classifier", tmp_path / "classifier")
    update_checksums(folder, change, "classifier.json")
    with pytest.raises(ValueError, match=r"damaged|not one of its files") as caught:
        bt.Classifier.load(folder)
    assert "\n" not in str(caught.value)
