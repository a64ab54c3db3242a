"""Texts of known topics, with these topics as labels, and random matrices."""

import math
from collections import Counter
from itertools import pairwise

import numpy as np

from beamtree.classify.matrix import from_any

WORDS = [[f"topic{t}word{i}" for i in range(12)] for t in range(20)]


TEXT = "topic1word1 topic2word2 topic1word3"


def topic_texts(count, seed=0):
    """Texts of two topics each, and these topics as labels."""
    rng = np.random.default_rng(seed)
    texts, labels = [], []
    for _ in range(count):
        first, second = rng.choice(len(WORDS), 2, replace=False)
        words = [*rng.choice(WORDS[first], 4), *rng.choice(WORDS[second], 4)]
        texts.append(" ".join(words))
        labels.append([f"t{first:02}", f"t{second:02}"])
    return texts, labels


def random_matrix(rng, rows, width, share=0.2):
    dense = rng.random((rows, width)) * (rng.random((rows, width)) < share)
    return from_any(dense.astype(np.float32))


def plain_features(texts, documents):
    """TF-IDF by dictionaries."""
    blocks = []
    for text in texts:
        words = [word for word in text.lower().split() if len(word) > 1]
        blocks.append((words, [f"{a} {b}" for a, b in pairwise(words)], [word[:5] for word in words]))
    result = []
    for document in documents:
        words = [word for word in document.lower().split() if len(word) > 1]
        own = (words, [f"{a} {b}" for a, b in pairwise(words)], [word[:5] for word in words])
        row = {}
        for number, (tokens, weight) in enumerate(zip(own, (1, 0.5, 0.7), strict=True)):
            frequency = Counter(token for each in blocks for token in set(each[number]))
            values = {
                token: (1 + math.log(count)) * (math.log((1 + len(texts)) / (1 + frequency[token])) + 1)
                for token, count in Counter(tokens).items()
                if frequency[token] >= 2
            }
            length = math.sqrt(sum(value**2 for value in values.values()))
            row |= {(number, token): weight * value / length for token, value in values.items()}
        length = math.sqrt(sum(value**2 for value in row.values()))
        result.append({key: value / length for key, value in row.items()})
    return result
