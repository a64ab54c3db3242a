"""YouTube product-DNN (Covington et al. 2016): a user vector, an item vector, and their product."""

import math
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import faiss  # here, so that a missing library is reported before training
import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from beamtree.data import BeforeAfter, Events, random_crops
from beamtree.data.factors import choose_factors, factors
from beamtree.data.inputs import POOLING_WINDOWS
from beamtree.data.seeds import epoch_order, mix
from beamtree.data.views import window_matrix
from beamtree.evaluate.metrics import hits, precision_recall_f
from beamtree.research.baselines.networks import USERS, train_network
from beamtree.train.loop import OnStep
from beamtree.tree import PAD

DIM = 64
HIDDEN = (128, 64)
NEGATIVES = 2000  # sampled items, shared by the users of a batch
BATCH, LR, STEPS = 1000, 3e-3, 10_000
HNSW_LINKS, HNSW_BREADTH = 32, 400  # links per node, and candidates of a search

Index = Callable[[Tensor], Any]  # from vectors of the items [M, DIM + 1] to a FAISS index


class TwoTower(nn.Module):
    """User: an MLP of the mean vectors of ten windows of the history. Item: a vector and a bias."""

    windows: Tensor

    def __init__(self, num_items: int, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(mix(seed, 5))
        self.history = nn.Parameter(torch.randn(num_items, DIM, generator=generator) * 0.05)
        self.items = nn.Parameter(torch.randn(num_items, DIM, generator=generator) * 0.05)
        self.bias = nn.Parameter(torch.zeros(num_items))
        self.register_buffer("windows", window_matrix(), persistent=False)  # [windows, T]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(mix(seed, 6))
            sizes = (len(POOLING_WINDOWS) * DIM, *HIDDEN, DIM)
            layers = [part for a, b in pairwise(sizes) for part in (nn.Linear(a, b), nn.PReLU(b))]
            self.tower = nn.Sequential(*layers[:-1])
        self._index: Any = None

    @torch.no_grad()
    def start_from(self, vectors: Tensor) -> None:
        """Start input and output item vectors from vectors [M, ≤ DIM]; the other dimensions stay random."""
        for weight in (self.history, self.items):
            weight[:, : vectors.shape[1]] = vectors[:, :DIM]

    def user(self, x: Tensor) -> Tensor:
        """The vectors of users with histories x [B, T], and a 1 for the items' bias [B, DIM + 1]."""
        windows = self.windows[:, : x.shape[1]] * (x != PAD).unsqueeze(1)
        means = windows @ embedding(x.clamp(min=0), self.history) / windows.sum(-1, keepdim=True).clamp(min=1)
        return nn.functional.pad(self.tower(means.flatten(1)), (0, 1), value=1.0)

    def vectors(self, items: Tensor | None = None) -> Tensor:
        """The vectors of items, all unless given, with their bias [M, DIM + 1]."""
        parts = self.items, self.bias.unsqueeze(1)
        return torch.cat([part if items is None else embedding(items, part) for part in parts], dim=-1)

    def index(self, build: Index) -> "TwoTower":
        """Build the search index over the items."""
        self._index = build(self.vectors().detach().cpu())
        return self

    @property
    def num_bytes(self) -> int:
        """The size of the weights."""
        return sum(weight.nbytes for weight in self.parameters())

    @torch.no_grad()
    def retrieve(self, x: Tensor, m: int) -> tuple[Tensor, Tensor]:
        """The m items of the highest product and their scores [B, m]; PAD and -inf where the index finds fewer."""
        device = self.items.device
        scores, items = self._index.search(self.user(x.to(device)).cpu().numpy(), m)
        items = torch.from_numpy(items)
        return items, torch.from_numpy(scores).masked_fill(items == PAD, -torch.inf)


def exact(vectors: Tensor) -> Any:
    """An index that computes all products."""
    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(vectors.numpy())
    return index


class HNSWIndex:
    """An HNSW graph for the highest inner product.

    One more dimension makes all items equally long, so that the highest product is the nearest neighbour.
    """

    def __init__(self, vectors: Tensor) -> None:
        squares = vectors.square().sum(1)
        self._longest = float(squares.max())
        spare = (self._longest - squares).clamp(min=0).sqrt().unsqueeze(1)
        self._index = faiss.IndexHNSWFlat(vectors.shape[1] + 1, HNSW_LINKS)
        self._index.hnsw.efConstruction = self._index.hnsw.efSearch = HNSW_BREADTH
        self._index.add(torch.cat([vectors, spare], dim=1).numpy())

    def search(self, users: Any, m: int) -> tuple[Any, Any]:
        """Products and items, best first, like a FAISS index."""
        x = nn.functional.pad(torch.from_numpy(users), (0, 1))
        distances, items = self._index.search(x.numpy(), m)
        products = (x.square().sum(1, keepdim=True).numpy() + self._longest - distances) / 2
        return products, items


def two_tower(
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
) -> TwoTower:
    """Train on random crops of every user's events, as trees are, by sampled softmax.

    Items start from their co-occurrence factors. Negatives are drawn uniformly, the same for a whole batch. With `val`,
    the best weights of CHECKS validations are returned.
    """
    if not int(events.counts().sum()):
        raise ValueError("nothing to train on: no user has an event")
    model = TwoTower(num_items, seed)
    model.start_from(factors(events, num_items) if val is None else choose_factors(events, val, num_items)[1])
    model.to(device)
    view = random_crops(events).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    generator = torch.Generator(device)
    per_epoch = -(-len(view) // batch_size)

    def losses() -> Iterator[Tensor]:
        order = torch.empty(0)
        for t in range(steps):
            epoch, index = divmod(t, per_epoch)
            if index == 0:
                order = epoch_order(len(view), seed, epoch).to(device)
            generator.manual_seed(mix(seed, t))
            x, y = view.batch(order[index * batch_size :][:batch_size], generator)
            yield sampled_softmax(model, x, y, generator)

    return train_network(model, losses(), steps, optimizer, schedule, val, recall, on_step)


@torch.no_grad()
def recall(model: TwoTower, users: BeforeAfter) -> float:
    """R@200 on at most USERS users, by exact search."""
    values = []
    for rows in torch.arange(min(USERS, len(users))).split(64):
        x, y = (part.to(model.items.device) for part in users.batch(rows))
        items = (model.user(x) @ model.vectors().T).topk(min(200, len(model.items))).indices
        values.append(precision_recall_f(items, y, 200)[:, 1])
    return float(torch.cat(values).mean())


def sampled_softmax(model: TwoTower, x: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
    """Softmax cross entropy of each target against items drawn uniformly, which represent all non-targets.

    The mean over the targets y [B, P] of each user, then over users.
    """
    num_items = len(model.items)
    drawn = torch.randint(num_items, (NEGATIVES,), generator=generator, device=x.device)
    user, real = model.user(x), y != PAD
    logits = (model.vectors(y.clamp(min=0)) @ user.unsqueeze(2)).squeeze(2)  # [B, P]
    others = user @ model.vectors(drawn).T + math.log(num_items / NEGATIVES)
    others = others.masked_fill(hits(drawn.expand(len(y), -1), y), -torch.inf).logsumexp(1, keepdim=True)
    losses = (torch.logaddexp(logits, others) - logits).masked_fill(~real, 0.0)
    return (losses.sum(1) / real.sum(1)).mean()
