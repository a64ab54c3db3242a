"""Sparse matrices of documents: rows, stacks, and values that are refused."""

import math

import numpy as np
import pytest
from topics import random_matrix

from beamtree.classify.matrix import Matrix, from_dicts, stack


def test_matrices_of_rows():
    rng = np.random.default_rng(0)
    first, second = random_matrix(rng, 5, 7, 0.4), random_matrix(rng, 3, 7, 0.4)
    assert np.array_equal(stack(first, second).dense(), np.vstack([first.dense(), second.dense()]))
    assert np.array_equal(first.transposed().dense(), first.dense().T)
    rows = np.array([3, 0, 3])
    assert np.array_equal(first.take(rows).dense(), first.dense()[rows])
    empty = Matrix(np.zeros(1, np.int64), np.empty(0, np.int32), np.empty(0, np.float32), 4)
    assert empty.dense().shape == (0, 4)


def test_features_that_add_up_to_infinity_are_an_error():
    with pytest.raises(ValueError, match="document 1 hold NaN or infinity"):
        from_dicts([{"3": 1.0}, {"3": 3e38, "03": 3e38}], 5)


def test_values_of_features_must_be_finite_numbers_of_32_bits():
    for value in (1e300, 10**400, math.nan, -math.inf):
        with pytest.raises(ValueError, match="feature '1' is not one of"):
            from_dicts([{"1": value}], 3)
