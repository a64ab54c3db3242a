"""SASRec (Kang and McAuley 2018): a causal transformer that predicts the next item at every position of a history.

It is the transformer of our sequence part, without the other parts and the tree: the softmax is over all items where
that fits, and every item is scored.
"""

from copy import copy, deepcopy
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from beamtree.data import HISTORY, BeforeAfter, Events
from beamtree.evaluate.metrics import hits, num_relevant, recall
from beamtree.parts.sequence import SequenceSettings, fit_sequence
from beamtree.research.baselines import pad_results
from beamtree.research.baselines.networks import CHECKS
from beamtree.scorers.sequence import SequenceEncoder, oldest_first
from beamtree.train.loop import OnStep
from beamtree.tree import PAD

BATCH, STEPS = 128, 10_000
# Sizes that are tried; the first without validation users.
GRID = tuple(
    SequenceSettings(dim, dropout, decay, reach=1, steps=STEPS, check_every=1, sampled=None, layers=layers, lr=lr)
    for layers, dim, dropout, decay, lr in ((2, 64, 0.2, 0.0, 1e-3), (1, 128, 0.5, 0.1, 3e-3))
)
FULL_SOFTMAX = {"cpu": 20_000, "cuda": 250_000}  # items up to which the softmax is over all of them
SAMPLED = 2048  # items of the softmax beyond that
USERS = 10_000  # validation users, at most: with one target each, a few hundred cannot choose
PATIENCE = 3  # checks without a better one after which a size is given up
CUTS = (10, 50, 100, 200)


class SASRec(nn.Module):
    """A transformer and one vector per item for input and output; the last number of an item's vector is its bias."""

    known: Tensor
    repeats: Tensor
    chosen: SequenceSettings | None = None  # the size and the number of steps, where validation users chose them

    def __init__(self, encoder: SequenceEncoder, vectors: Tensor, known: Tensor) -> None:
        super().__init__()
        self.encoder, self.items = encoder, nn.Parameter(vectors, requires_grad=False)
        self.register_buffer("known", known)  # items that training users have [M]
        self.register_buffer("repeats", torch.tensor(True, device=vectors.device))  # whether items of x are scored

    @classmethod
    def like(cls, num_items: int, state: dict[str, Tensor]) -> "SASRec":
        """An untrained model of the size of some weights, to load them into."""
        dim = state["items"].shape[1]
        layers = len({name.split(".")[2] for name in state if name.startswith("encoder.blocks.")})
        return cls(SequenceEncoder(dim, layers, 0.0), torch.empty(num_items, dim), torch.ones(num_items).bool())

    def without_repeats(self) -> "SASRec":
        """The same model without items of the history, sharing the weights."""
        model = copy(self)
        model._buffers = {**self._buffers, "repeats": torch.zeros_like(self.repeats)}
        return model

    @property
    def num_bytes(self) -> int:
        """The size of the weights."""
        return sum(weight.nbytes for weight in self.parameters())

    @torch.no_grad()
    def scores(self, x: Tensor) -> Tensor:
        """The score of every item for histories x [B, T], newest first [B, M]; -inf for items without users."""
        sequence, count = oldest_first(x[:, :HISTORY].to(self.items.device))
        states = self.encoder.last(embedding(sequence.clamp(min=0), self.items), count)
        all_scores = states @ self.items.T
        scores = all_scores.masked_fill(~self.known, -torch.inf)
        row, position = (sequence != PAD).nonzero(as_tuple=True)
        items = sequence[row, position]  # items of the history are scored even if no training user has them
        scores[row, items] = all_scores[row, items].where(self.repeats, -torch.inf)
        return scores

    def retrieve(self, x: Tensor, m: int) -> tuple[Tensor, Tensor]:
        """The m items of the highest score [B, m]; padded with PAD and -inf."""
        best = self.scores(x).topk(min(m, len(self.items)))
        return pad_results(best.indices.masked_fill(best.values == -torch.inf, PAD), best.values, m)


def sasrec(
    events: Events,
    num_items: int,
    *,
    steps: int = STEPS,
    batch_size: int = BATCH,
    lr: float | None = None,
    seed: int = 0,
    device: str = "cpu",
    val: BeforeAfter | None = None,
    on_step: OnStep | None = None,
) -> SASRec:
    """Train on runs of every user's events.

    With `val` every size of GRID is trained. The size, when to stop, and whether items of the history are scored are
    then chosen by recall on validation users.

    Args:
        events: of the training users.
        num_items: M.
        steps: of AdamW, at most.
        batch_size: runs of events in a step.
        lr: the learning rate. Default: that of each size.
        seed: of all randomness.
        device: where it is trained.
        val: validation users.
        on_step: called with (steps done, total, loss).
    """
    users = val if val is not None and len(val) else None
    known = events.popularity(num_items).to(device) > 0
    sampled = SAMPLED if num_items > FULL_SOFTMAX[torch.device(device).type] else None
    sizes = GRID if users is not None else GRID[:1]
    best, best_model = -torch.inf, None
    for index, size in enumerate(sizes):
        since_best = 0
        settings = replace(
            size,
            steps=steps,
            check_every=max(1, steps // CHECKS),
            sampled=sampled,
            lr=lr or size.lr,
            batch_size=batch_size,
        )

        def on_check(
            step: int,
            encoder: SequenceEncoder,
            vectors: Tensor,
            index: int = index,
            settings: SequenceSettings = settings,
        ) -> bool:
            nonlocal best, best_model, since_best
            if on_step is not None:
                on_step(index * steps + step, len(sizes) * steps, torch.zeros(()))
            if users is None:
                return False
            model = SASRec(deepcopy(encoder), vectors.clone(), known)
            since_best += 1
            for candidate in (model, model.without_repeats()):
                quality = validation_recall(candidate, users)
                if quality > best:
                    best, best_model, since_best = quality, candidate, 0
                    candidate.chosen = replace(settings, steps=step)
            return since_best >= PATIENCE

        encoder, vectors = fit_sequence(events, num_items, settings, device=device, seed=seed, on_check=on_check)
    return best_model if best_model is not None else SASRec(encoder, vectors, known)


def validation_recall(model: SASRec, users: BeforeAfter) -> float:
    """The mean log of recall at CUTS on at most USERS users, so that all cuts have the same weight."""
    total, rows = torch.zeros(len(CUTS)), torch.arange(min(USERS, len(users)))
    for chunk in rows.split(64):
        x, y = users.batch(chunk)
        hit, relevant = hits(model.retrieve(x, max(CUTS))[0].cpu(), y), num_relevant(y)
        total += torch.stack([recall(hit, relevant, m).sum() for m in CUTS])
    return float((total / len(rows) + 1e-6).log().mean())
