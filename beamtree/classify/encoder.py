"""The encoder part: softmax of ⟨u(x), v_l⟩ + b_l over labels, where u(x) is a weighted sum of feature vectors.

Vectors and biases are trained by cross-entropy, each label of a document counting alike. Every label is scored, so the
part is only trained where there are few labels. There it adds what a linear classifier of each label cannot know: that
features are alike because they have the same labels.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch.nn.functional import embedding_bag

from beamtree.classify.matrix import Matrix
from beamtree.progress import OnProgress, no_progress

WORK, ENTRIES = 100_000_000, 4_000_000  # documents times labels, and features of all documents, at most
DIM, EPOCHS, BATCH, LEARNING_RATE, DROPOUT = 100, 12, 256, 0.01, 0.3


class Encoder(NamedTuple):
    """Vectors of features and labels; empty where the part is not used."""

    features: np.ndarray  # float32 [F, dim]
    labels: np.ndarray  # float32 [L, dim]
    biases: np.ndarray  # float32 [L]

    def probabilities(self, x: Matrix) -> np.ndarray:
        """The softmax over labels of each document [n, L]: the plain definition."""
        logits = x.dense() @ self.features @ self.labels.T + self.biases
        odds = np.exp(logits - logits.max(1, keepdims=True))
        result: np.ndarray = odds / odds.sum(1, keepdims=True)
        return result


def no_encoder() -> Encoder:
    """The encoder of a model that has none."""
    return Encoder(np.zeros((0, 1), np.float32), np.zeros((0, 1), np.float32), np.zeros(0, np.float32))


def is_affordable(x: Matrix, y: Matrix) -> bool:
    """Whether training takes a minute or two on two cores, and a search is not much longer."""
    return x.rows * y.width <= WORK and len(x.columns) <= ENTRIES


def train_encoder(x: Matrix, y: Matrix, *, seed: int = 0, on_progress: OnProgress = no_progress) -> Encoder:
    """Train on documents with a label each or more; one without would count for nothing."""
    rng, drawn = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    features, labels = (torch.empty(size, DIM).normal_(0, DIM**-0.5, generator=drawn) for size in (x.width, y.width))
    counts = torch.from_numpy(np.bincount(y.columns, minlength=y.width) + 0.5).float().log()
    parts = [each.requires_grad_() for each in (features, labels, counts - counts.mean())]
    optimizers: list[torch.optim.Optimizer] = [torch.optim.SparseAdam(parts[:1]), torch.optim.Adam(parts[1:])]
    batches = -(-x.rows // BATCH)
    for epoch in range(EPOCHS):
        for number, rows in enumerate(np.array_split(rng.permutation(x.rows), batches)):
            own, right = x.take(rows), y.take(rows)
            kept = torch.rand(len(own.values), generator=drawn) >= DROPOUT
            weights = torch.from_numpy(own.values) * kept / (1 - DROPOUT)
            columns, offsets = torch.from_numpy(own.columns).long(), torch.from_numpy(own.offsets[:-1])
            u = embedding_bag(columns, parts[0], offsets, mode="sum", sparse=True, per_sample_weights=weights)
            row, share = right.row_of_entry(), 1 / np.maximum(np.diff(right.offsets), 1)
            log_p = (u @ parts[1].T + parts[2]).log_softmax(1)[row, right.columns]
            loss = -(log_p * torch.from_numpy(share[row])).sum() / len(rows)
            for optimizer in optimizers:
                optimizer.param_groups[0]["lr"] = LEARNING_RATE * (1 - (epoch + number / batches) / EPOCHS)
                optimizer.zero_grad()
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
        on_progress("Encoder", epoch + 1, EPOCHS)
    return Encoder(*(each.detach().numpy() for each in parts))
