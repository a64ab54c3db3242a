"""SASRec (Kang and McAuley 2018): a causal transformer that predicts the next item at every position of a history."""

from collections.abc import Iterator
from copy import copy

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, embedding, scaled_dot_product_attention

from beamtree.data import HISTORY, BeforeAfter, Events
from beamtree.data.seeds import epoch_order, mix
from beamtree.metrics import hits, num_relevant, recall
from beamtree.research.baselines import pad_results
from beamtree.research.baselines.networks import USERS, OnStep, train_network
from beamtree.scorers.sequence import oldest_first
from beamtree.train.sequence import draw_runs
from beamtree.tree import PAD

LAYERS, HEADS = 2, 2
GRID = ((64, 0.2), (256, 0.5))  # dimension and dropout: the first without validation users
LR, WARM_UP = 1e-3, 0.05  # of Adam; the share of steps with a rising rate
BATCH, STEPS = 128, 10_000
FULL_SOFTMAX = 20_000  # items up to which the softmax is over all of them
UNIFORM, IN_BATCH = 2048, 1024  # sampled negatives beyond that: of all items, and of the batch's targets
CUTS = (10, 50, 100, 200)


class Block(nn.Module):
    """Causal attention, then a small MLP, each with a residual connection."""

    def __init__(self, dim: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.before, self.between = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.parts, self.whole = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim), nn.Dropout(dropout))

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, dim] to the same."""
        batch, length, _ = x.shape
        parts = self.parts(self.before(x)).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        query, key, value = parts.unbind()
        mixed = scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
        x = x + nn.functional.dropout(self.whole(mixed.transpose(1, 2).flatten(2)), self.dropout, self.training)
        out: Tensor = x + self.mlp(self.between(x))
        return out


class SASRec(nn.Module):
    """One vector per item for input and output; a vector per position, counted from the oldest event."""

    known: Tensor
    repeats: Tensor

    def __init__(self, num_items: int, seed: int = 0, dim: int = GRID[0][0], dropout: float = GRID[0][1]) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(mix(seed, 7))
            self.items = nn.Parameter(torch.randn(num_items, dim) * dim**-0.5)
            self.bias = nn.Parameter(torch.zeros(num_items))
            self.places = nn.Parameter(torch.randn(HISTORY, dim) * 0.02)
            self.blocks = nn.Sequential(*(Block(dim, dropout) for _ in range(LAYERS)))
        self.dropout, self.last = nn.Dropout(dropout), nn.LayerNorm(dim)
        self.register_buffer("known", torch.ones(num_items, dtype=torch.bool))  # items that training users have
        self.register_buffer("repeats", torch.tensor(True))  # whether items of the history are scored

    @classmethod
    def like(cls, num_items: int, state: dict[str, Tensor]) -> "SASRec":
        """An untrained model of the size of some weights, to load them into."""
        return cls(num_items, dim=state["items"].shape[1])

    def states(self, sequence: Tensor) -> Tensor:
        """The state after every event of sequences [B, T], oldest first, PAD after the newest [B, T, dim]."""
        x = embedding(sequence.clamp(min=0), self.items) + self.places[: sequence.shape[1]]
        out: Tensor = self.last(self.blocks(self.dropout(x)))
        return out

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
        newest = (count - 1).clamp(min=0)
        states = self.states(sequence)[torch.arange(len(x), device=newest.device), newest]
        scores = torch.addmm(self.bias, states, self.items.T).masked_fill_(~self.known, -torch.inf)
        row, position = (sequence != PAD).nonzero(as_tuple=True)
        items = sequence[row, position]  # items of the history are scored even if no training user has them
        repeats = (states[row] * self.items[items]).sum(1) + self.bias[items]
        scores[row, items] = repeats.where(self.repeats, -torch.inf)
        return scores

    def retrieve(self, x: Tensor, m: int) -> tuple[Tensor, Tensor]:
        """The m items of the highest score [B, m]; padded with PAD and -inf."""
        best = self.scores(x).topk(min(m, len(self.items)))
        return pad_results(best.indices.masked_fill(best.values == -torch.inf, PAD), best.values, m)


def draw_sequences(events: Events, users: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """A random run of at most HISTORY + 1 events per user: all but the last, and the next of each [B, T]."""
    run = events.after(*draw_runs(events, users, generator), HISTORY + 1)
    return run[:, :-1].where(run[:, 1:] != PAD, PAD), run[:, 1:]


def next_item_loss(
    model: SASRec, sequence: Tensor, target: Tensor, shares: Tensor, generator: torch.Generator
) -> Tensor:
    """Softmax cross entropy of the targets over all items, or over a sample if there are many items.

    The sample has items drawn uniformly and targets of other positions, with the log Q correction: an item expected n
    times in the sample has 1/n of its weight. `shares` is how often items are targets [M].
    """
    real = target != PAD
    states, target = model.states(sequence)[real], target[real]
    if len(model.items) <= FULL_SOFTMAX:
        return cross_entropy(torch.addmm(model.bias, states, model.items.T), target)
    drawn = torch.randint(len(model.items), (UNIFORM,), generator=generator, device=target.device)
    others = target[torch.randint(len(target), (IN_BATCH,), generator=generator, device=target.device)]
    drawn = torch.cat([drawn, others])
    expected = UNIFORM / len(model.items) + IN_BATCH * shares[drawn]
    logits = states @ embedding(drawn, model.items).T + (model.bias[drawn] - expected.log())
    logits = logits.masked_fill(drawn == target.unsqueeze(1), -torch.inf)
    target_logits = (states * embedding(target, model.items)).sum(1) + model.bias[target]
    return cross_entropy(torch.cat([target_logits.unsqueeze(1), logits], dim=1), torch.zeros_like(target))


def sasrec(
    events: Events,
    num_items: int,
    *,
    steps: int = STEPS,
    batch_size: int = BATCH,
    lr: float = LR,
    seed: int = 0,
    device: str = "cpu",
    val: BeforeAfter | None = None,
    on_step: OnStep | None = None,
) -> SASRec:
    """Train on runs of every user's events.

    With `val` every size of GRID is trained. The size, the weights over the course of training, and whether items of
    the history are scored are then chosen by recall on validation users.

    Args:
        events: of the training users.
        num_items: M.
        steps: of Adam.
        batch_size: users per step.
        lr: the highest learning rate.
        seed: of all randomness.
        device: where it is trained.
        val: users by whom the best weights are chosen.
        on_step: called with (steps done, total, loss).
    """
    events = events.to(device)
    popularity = events.popularity(num_items)
    shares = popularity / popularity.sum()

    def train(dim: int, dropout: float, on_step: OnStep | None) -> SASRec:
        model = SASRec(num_items, seed, dim, dropout).to(device)
        model.known = popularity > 0
        optimizer = torch.optim.Adam(model.parameters(), lr=lr, betas=(0.9, 0.98))
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, lr, steps + 1, pct_start=WARM_UP, cycle_momentum=False
        )
        generator = torch.Generator(device)

        def losses() -> Iterator[Tensor]:
            for t, users in enumerate(_users(events, steps, batch_size, seed), 1):
                generator.manual_seed(mix(seed, t))
                sequence, target = draw_sequences(events, users, generator)
                yield next_item_loss(model.train(), sequence, target, shares, generator)

        with torch.random.fork_rng([] if device == "cpu" else [device]):
            torch.manual_seed(mix(seed, 8))  # of dropout
            return train_network(model, losses(), steps, optimizer, schedule, val, validation_recall, on_step)

    if val is None or not len(val):
        return train(*GRID[0], on_step)
    candidates = list[tuple[float, SASRec]]()
    for index, size in enumerate(GRID):

        def on_grid_step(t: int, total: int, loss: Tensor, index: int = index) -> None:
            if on_step is not None:
                on_step(index * total + t, len(GRID) * total, loss)

        trained = train(*size, on_grid_step)
        candidates += [(validation_recall(model, val), model) for model in (trained, trained.without_repeats())]
    return max(candidates, key=lambda candidate: candidate[0])[1]


def _users(events: Events, steps: int, batch_size: int, seed: int) -> Iterator[Tensor]:
    """The users of each step: all with at least two events, shuffled every epoch."""
    users = (events.counts() > 1).nonzero().squeeze(1)
    if not len(users):
        raise ValueError("nothing to train on: no user has two events")
    per_epoch = -(-len(users) // batch_size)
    for epoch in range(-(-steps // per_epoch)):
        order = users[epoch_order(len(users), seed, epoch).to(users.device)]
        yield from order.split(batch_size)[: steps - epoch * per_epoch]


def validation_recall(model: SASRec, users: BeforeAfter) -> float:
    """The mean log of recall at CUTS on at most USERS users, so that all cuts have the same weight."""
    total, rows = torch.zeros(len(CUTS)), torch.arange(min(USERS, len(users)))
    for chunk in rows.split(64):
        x, y = users.batch(chunk)
        hit, relevant = hits(model.retrieve(x, max(CUTS))[0].cpu(), y), num_relevant(y)
        total += torch.stack([recall(hit, relevant, m).sum() for m in CUTS])
    return float((total / len(rows) + 1e-6).log().mean())
