"""Features of texts against TF-IDF by dictionaries."""

import math

import numpy as np
from topics import plain_features

from beamtree.classify.text import TextFeatures


def test_features_are_tf_idf_of_words_pairs_and_beginnings(monkeypatch):
    texts = ["red lamp red", "blue lamp", "red lamps", "a green chair", "green chair and lamp", "Red LAMP"]
    monkeypatch.setattr("beamtree.classify.text.SMALL_CORPUS", 0)
    features = TextFeatures.fit(texts)
    documents = ["red red lamp", "lamp chair", "unknown words", "", "lamps green chair green chair"]
    found = features.transform(documents)
    starts = (0, *features.ends)
    for row, expected in enumerate(plain_features(texts, documents)):
        own = slice(found.offsets[row], found.offsets[row + 1])
        block = np.searchsorted(starts, found.columns[own], side="right") - 1
        names = [features.vocabulary[column] for column in found.columns[own]]
        got = dict(zip(zip(block.tolist(), names, strict=True), found.values[own], strict=True))
        assert got.keys() == expected.keys()
        assert all(math.isclose(got[key], expected[key], rel_tol=1e-5) for key in got)
        assert (np.diff(found.columns[own]) > 0).all()
