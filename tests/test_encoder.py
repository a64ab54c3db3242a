"""The encoder of a classifier: what it learns, and when it is kept."""

from dataclasses import replace

import numpy as np
import torch
from topics import topic_texts

from beamtree.classify.encoder import Encoder, train_encoder
from beamtree.classify.matrix import empty, from_any, from_entries
from beamtree.classify.model import train
from beamtree.classify.part_weights import choose_weights
from beamtree.classify.text import TextFeatures


def test_the_encoder_learns_that_features_are_alike_because_their_labels_are():
    """Two synonyms per topic: a document has one of them and a word of its own."""
    rng = np.random.default_rng(0)
    topics, synonym = rng.integers(0, 10, 400), rng.integers(0, 2, 400)
    rows = np.repeat(np.arange(400), 2)
    columns = np.stack([2 * topics + synonym, rng.integers(20, 60, 400)], axis=1).ravel()
    x = from_entries(rows, columns, np.ones(800), (400, 60)).normalized()
    y = from_entries(np.arange(400), topics, np.ones(400), (400, 10))
    state = torch.random.get_rng_state()
    encoder = train_encoder(x, y, seed=1)
    assert torch.equal(torch.random.get_rng_state(), state)  # its own randomness
    assert all(map(np.array_equal, encoder, train_encoder(x, y, seed=1)))
    p = encoder.probabilities(from_any(np.eye(60)[:20]))
    assert np.allclose(p.sum(1), 1, atol=1e-5)
    assert (p.argmax(1) == np.arange(20) // 2).all()
    u = encoder.features[:20] / np.linalg.norm(encoder.features[:20], axis=1, keepdims=True)
    alike = u @ u.T
    assert alike[0::2, 1::2].diagonal().min() > alike[0::2, 0::2][~np.eye(10, dtype=bool)].max()


def test_an_encoder_is_only_kept_where_it_pays(monkeypatch):
    texts, lists = topic_texts(300)
    x = TextFeatures.fit(texts).transform(texts)
    numbers = np.array([[int(label[1:]) for label in each] for each in lists])
    y = from_entries(np.repeat(np.arange(300), 2), numbers.ravel(), np.ones(600), (300, 20))
    kept, held_out = np.arange(200), np.arange(200, 300)
    model = train(x.take(kept), y.take(kept), empty(20, x.width), group=8)
    assert len(model.encoder.biases) == 20
    validation = x.take(held_out), y.take(held_out)
    useless = Encoder(*(np.zeros_like(each) for each in model.encoder))
    chosen, _ = choose_weights(replace(model, encoder=useless), *validation, 10)
    assert (chosen.weights.encoder, len(chosen.encoder.biases)) == (0, 0)
    linear = model.linear._replace(weights=np.zeros_like(model.linear.weights))
    labels = model.labels._replace(columns=(model.labels.columns + 7) % 20)
    blind = replace(model, linear=linear, labels=labels)  # only the encoder knows anything
    chosen, found = choose_weights(blind, *validation, 10)
    assert chosen.weights.encoder > 0
    assert found["all parts"] >= found["without encoder"] + 0.002
    for limit, value in (("WORK", 3_999), ("ENTRIES", 100)):
        with monkeypatch.context() as patch:
            patch.setattr(f"beamtree.classify.encoder.{limit}", value)
            assert not len(train(x.take(kept), y.take(kept), empty(20, x.width), group=8).encoder.biases)
