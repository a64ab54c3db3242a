"""Text as sparse features: TF-IDF of words, pairs of words and beginnings of words."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np

from beamtree.classify.matrix import Matrix
from beamtree.kernels import classify as kernels

WORD = re.compile(r"\b\w\w+\b")
PREFIX = 5  # letters of the beginning of a word, which words of one stem share
WEIGHTS = (1.0, 0.5, 0.7)  # of words, pairs of words and beginnings
MIN_DOCUMENTS = 2  # documents that a feature must be in
SMALL_CORPUS = 50  # documents of which every word is a feature


class TextFeatures:
    """The vocabulary of a collection of texts, and the features of any text.

    Each document has three blocks: words, pairs of adjacent words, and the first five letters of words. A block is
    (1 + log tf) · idf of its features, has the length of its weight, and the whole has length 1.

    Args:
        vocabulary: features of the three blocks, one block after the other.
        ends: one after the last feature of each block.
        idf: of each feature.
    """

    def __init__(self, vocabulary: Sequence[str], ends: Sequence[int], idf: np.ndarray) -> None:
        self.vocabulary, self.ends, self.idf = list(vocabulary), tuple(ends), idf
        starts = (0, *self.ends[:-1])
        self._numbers = [
            {self.vocabulary[number]: number for number in range(start, end)}
            for start, end in zip(starts, self.ends, strict=True)
        ]

    @classmethod
    def fit(cls, texts: Iterable[str]) -> "TextFeatures":
        """The features that are in two or more of the texts; of few texts all."""
        counts: list[Counter[str]] = [Counter() for _ in WEIGHTS]
        total = 0
        for text in texts:
            total += 1
            for count, block in zip(counts, blocks(text), strict=True):
                count.update(set(block))
        enough = MIN_DOCUMENTS if total > SMALL_CORPUS else 1
        vocabulary: list[str] = []
        ends, frequencies = [], []
        for count in counts:
            kept = sorted(feature for feature, number in count.items() if number >= enough)
            vocabulary += kept
            frequencies += [count[feature] for feature in kept]
            ends.append(len(vocabulary))
        idf = np.log((1 + total) / (1 + np.array(frequencies, np.float64))) + 1
        return cls(vocabulary, ends, idf.astype(np.float32))

    def __len__(self) -> int:
        return len(self.vocabulary)

    def transform(self, texts: Iterable[str]) -> Matrix:
        """The features of texts, rows of length 1; a text without a known word has none."""
        tokens: list[int] = []
        starts = [0]
        for text in texts:
            for numbers, block in zip(self._numbers, blocks(text), strict=True):
                tokens += [number for feature in block if (number := numbers.get(feature)) is not None]
            starts.append(len(tokens))
        rows = kernels.weigh(np.array(starts), np.array(tokens, np.int32), self.idf, self.ends, WEIGHTS)
        return Matrix(*rows, len(self))


def blocks(text: str) -> tuple[list[str], list[str], list[str]]:
    """The words of a text, its pairs of adjacent words, and the beginnings of its words."""
    words = WORD.findall(text.lower())
    return words, [f"{first} {second}" for first, second in pairwise(words)], [word[:PREFIX] for word in words]
