"""A prepared folder is the same, byte by byte, as earlier versions wrote it; its fingerprint tells it from others."""

import hashlib
import json
import random
from functools import partial

import numpy as np
import pytest

from beamtree.data import prepared
from beamtree.ingest import arrays
from beamtree.ingest.prepare import prepare


def make_log():
    draw = random.Random(7)
    lines = ["user,item,timestamp,rating"]
    for _ in range(4000):
        user, item = draw.randrange(300), int(60 * draw.random() ** 2)
        lines.append(f"{' ' * (user % 7 == 0)}u{user},{'' if draw.random() < 0.01 else item},{draw.randrange(500)},5")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("at_once", [500, 1 << 24])
@pytest.mark.parametrize(
    ("options", "digest"),
    [
        ({"min_events": 10}, "2029933d1c9ed7bafea248597b2f2134d6db0b7736ef6e48feea020317ead88e"),
        (
            {"min_events": 2, "val_users": 20, "test_users": 40, "seed": 3},
            "449c51c2937df627d72e1fa2210e8cd33b4958ffe8da6a4eace648cf4aba214c",
        ),
    ],
)
def test_halves_are_the_files_of_earlier_versions(tmp_path, monkeypatch, at_once, options, digest):
    """The digests are of what version 0.1 wrote."""
    monkeypatch.setattr(arrays, "EVENTS_AT_ONCE", at_once)
    (tmp_path / "log.csv").write_text(make_log())
    prepare(tmp_path / "log.csv", tmp_path / "out", **options)
    found = hashlib.sha256()
    for path in sorted((tmp_path / "out").iterdir()):
        content = as_0_1_wrote(path) if path.name == prepared.DESCRIPTION else path.read_bytes()
        found.update(path.name.encode() + b"\0" + content)
    assert found.hexdigest() == digest


def as_0_1_wrote(path):
    """A description without checksums, what the times are, and events of the future."""
    description = json.loads(path.read_text())
    del description["seal"], description["id_types"], description["times"]
    del description["settings"]["min_eval_events"], description["report"]["future_time"]
    description["format"] = 1
    description["files"] = {name: known["bytes"] for name, known in description["files"].items()}
    return (json.dumps(description, indent=1) + "\n").encode()


def test_cuts_are_part_of_the_fingerprint(tmp_path):
    def fill(folder, cuts):
        np.save(folder / "offsets.npy", np.array([0, 4]))
        np.save(folder / "events.npy", np.arange(4, dtype=np.int32))
        if cuts is not None:
            np.save(folder / "cuts.npy", np.array(cuts))
        return {}

    made = [prepared.write_folder(tmp_path / "out", partial(fill, cuts=cuts)) for cuts in (None, [2], [3], [3])]
    prints = [each["fingerprint"] for each in made]
    assert len(set(prints)) == 3
    assert prints[2] == prints[3]
