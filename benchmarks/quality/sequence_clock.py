"""What times bring to the sequence part: the transformer alone, every item ranked, in PyTorch and nothing else.

    python benchmarks/quality/sequence_clock.py arrays movielens-1m.parquet arrays/movielens-1m.npz
    python benchmarks/quality/sequence_clock.py train arrays/movielens-1m.npz --device cuda --set '{"layers": 4}'

The first command needs Polars, the second only PyTorch and NumPy. `--split leave-one-out`: the last event of a user is
for testing, the one before for validation. `--split cut`: what users did in the newest tenth of the events is predicted
from what they did before; what is chosen is chosen at an earlier cut, in the training events. Seen items are left out.
"""

import argparse
import json
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, dropout, embedding, softplus

PAD = NO_TIME = -1
BASES, LONGEST = 16, 18.5  # Gaussians over log(1 + seconds), up to three years
HEAD = 32  # numbers of an attention head
SHARE = 0.1  # of the events, that come after a cut
GROUP = 16  # batches that are sorted by length together
CHECKED = 3_000  # validation users of a check
PERIODS = 86_400, 604_800  # a day and a week, in seconds


@dataclass(frozen=True)
class Settings:
    dim: int = 128
    layers: int = 2
    dropout: float = 0.2
    weight_decay: float = 0.0
    lr: float = 3e-3
    decay: bool = False  # to zero at the last step
    steps: int = 2_500
    warm_up: int = 200
    check_every: int = 250
    patience: int = 1_500
    batch_size: int = 128
    average: float = 1e-3
    length: int = 199  # events that are read
    reach: int = 1
    targets: int = 1
    sampled: int = 0  # negatives of the loss; 0 for all items
    clock: str = "request"  # or "events": only times between events; or "none"
    without: float = 0.0  # the share of windows that lose their times
    calendar: bool = False  # hour and weekday of the request
    near: bool = False  # a bias by the number of events between two events, too
    smoothing: float = 0.0  # of the labels


class Log(NamedTuple):
    """Events of each user, oldest first: user u has those from offsets[u] to stop[u]."""

    items: Tensor  # [E]
    times: Tensor  # [E]
    start: Tensor  # [U]
    stop: Tensor  # [U]

    def before(self, stop: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """The newest items and times before an event of each user [U, length], oldest first and PAD at the end."""
        start = torch.maximum(self.start, stop - length)
        index = start.unsqueeze(1) + torch.arange(length, device=start.device)
        real = index < stop.unsqueeze(1)
        index = index.clamp(max=len(self.items) - 1)
        return self.items[index].masked_fill(~real, PAD), self.times[index].masked_fill(~real, NO_TIME)


class Users(NamedTuple):
    """Users of whom a part of the events is to be predicted."""

    x: Tensor  # [U, T]
    times: Tensor  # [U, T]
    request: Tensor  # [U]
    y: Tensor  # [U, P]
    seen: Tensor  # [U, S]


def bases(seconds: Tensor) -> Tensor:
    """16 Gaussians of log(1 + seconds) in a new dimension, which is the second; 0 where the time is not known."""
    centers = torch.linspace(0, LONGEST, BASES, device=seconds.device)
    width = LONGEST / (BASES - 1)
    z = torch.log1p(seconds.clamp(min=0).float()).clamp(max=LONGEST).unsqueeze(1)
    centers = centers.view(-1, *[1] * (z.dim() - 2))
    phi = (-0.5 * ((z - centers) / width).square()).exp_()
    phi = phi.masked_fill((seconds < 0).unsqueeze(1), 0)
    return phi.bfloat16() if phi.is_cuda else phi


class Block(nn.Module):
    def __init__(self, settings: Settings) -> None:
        super().__init__()
        dim, self.rate = settings.dim, settings.dropout
        self.heads = max(1, dim // HEAD)
        self.before_attention, self.before_mlp = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention_in, self.attention_out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim), nn.Dropout(self.rate))
        self.clock = nn.Parameter(torch.zeros(self.heads, BASES)) if settings.clock != "none" else None
        self.near = nn.Parameter(torch.zeros(self.heads, BASES)) if settings.near else None

    def forward(self, x: Tensor, phi: Tensor | None, near: Tensor | None, mask: Tensor) -> Tensor:
        query, key, value = (
            each.unflatten(2, (self.heads, -1)).transpose(1, 2)
            for each in self.attention_in(self.before_attention(x)).chunk(3, dim=2)
        )
        bias = mask
        if near is not None:
            bias = bias + torch.matmul(self.near, near.flatten(2)).unflatten(2, near.shape[2:])
        if phi is not None:
            bias = torch.matmul(self.clock, phi.flatten(2)).unflatten(2, phi.shape[2:]) + bias
        scores = torch.matmul(query * query.shape[-1] ** -0.5, key.transpose(2, 3)) + bias
        mixed = dropout(scores.softmax(-1, dtype=value.dtype), self.rate, self.training) @ value
        x = x + dropout(self.attention_out(mixed.transpose(1, 2).flatten(2)), self.rate, self.training)
        return x + self.mlp(self.before_mlp(x))


class Encoder(nn.Module):
    def __init__(self, num_items: int, settings: Settings) -> None:
        super().__init__()
        self.settings = settings
        dim = settings.dim
        self.vectors = nn.Parameter(torch.randn(num_items, dim) * dim**-0.5)
        self.start = nn.Parameter(torch.randn(dim) * dim**-0.5)
        self.positions = nn.Parameter(torch.randn(settings.length + 1, dim) * 0.02)
        self.blocks = nn.ModuleList(Block(settings) for _ in range(settings.layers))
        self.gap = nn.Parameter(torch.zeros(BASES, dim)) if settings.clock == "request" else None
        self.calendar = nn.Parameter(torch.zeros(4 * len(PERIODS), dim)) if settings.calendar else None
        self.dropout, self.norm = nn.Dropout(settings.dropout), nn.LayerNorm(dim)
        with torch.no_grad():
            self.vectors[:, -1] = 0

    def forward(self, x: Tensor, times: Tensor, request: Tensor) -> Tensor:
        """States [B, T + 1, dim] of items x [B, T], their times, and when each state is asked [B, T + 1]."""
        vectors = embedding(x.clamp(min=0), self.vectors)
        h = torch.cat([self.start.expand(len(x), 1, -1), vectors], 1) + self.positions[: x.shape[1] + 1]
        of_key = torch.cat([torch.full_like(times[:, :1], NO_TIME), times], 1)
        phi = None
        if self.settings.clock == "events":
            request = of_key
        if self.settings.clock != "none":
            since = (request.unsqueeze(2) - of_key.unsqueeze(1)).clamp(min=0)  # [B, query, key]
            known = (request != NO_TIME).unsqueeze(2) & (of_key != NO_TIME).unsqueeze(1)
            phi = bases(since.masked_fill(~known, -1))
            if self.gap is not None:
                last = phi.diagonal(dim1=2, dim2=3).transpose(1, 2)  # [B, T + 1, BASES]
                h = h + last.to(h.dtype) @ self.gap
        if self.calendar is not None:
            waves = []
            for period in PERIODS:
                angle = (request % period).float() * (2 * torch.pi / period)
                waves += [angle.sin(), angle.cos(), (2 * angle).sin(), (2 * angle).cos()]
            h = h + (torch.stack(waves, 2) * (request != NO_TIME).unsqueeze(2)) @ self.calendar
        h = self.dropout(h)
        place = torch.arange(h.shape[1], device=h.device)
        apart = place.unsqueeze(1) - place
        mask = torch.zeros(apart.shape, device=h.device, dtype=torch.bfloat16 if h.is_cuda else h.dtype)
        mask = mask.masked_fill(apart < 0, -torch.inf)
        near = None
        if self.settings.near:  # the same bases reach 200 events where a unit is exp(18.5 / log(201))
            near = bases((torch.log1p(apart.clamp(min=0).float()) * (LONGEST / 5.3)).expm1().unsqueeze(0))
        for block in self.blocks:
            h = block(h, phi, near, mask)
        h = self.norm(h)
        return torch.cat([h[..., :-1], torch.ones_like(h[..., :1])], -1)


def draw_windows(
    log: Log, users: Tensor, settings: Settings, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Runs of events: x and times [B, T], when each position is asked [B, T + 1], and targets [B, T + 1, K]."""
    device = users.device
    start, stop = log.start[users], log.stop[users]
    spare = (stop - start - settings.length - 1).clamp(min=0)
    start = start + (torch.rand(len(users), generator=generator, device=device) * (spare + 1)).long().minimum(spare)
    length = min(settings.length, int((stop - start).max()) - 1)
    length = min(settings.length, -(-(length + 1) // 8) * 8 - 1)
    index = start.unsqueeze(1) + torch.arange(length + 1, device=device)  # of the next event
    ahead = (stop.unsqueeze(1) - index).unsqueeze(2)
    most = ahead.clamp(min=1, max=settings.reach)
    share = torch.rand(*index.shape, settings.targets, generator=generator, device=device)
    offset = (most + 1.0).pow(share).long().clamp(min=1).minimum(most) - 1
    coming = index.unsqueeze(2) + offset
    y = torch.where(ahead > 0, log.items[coming.clamp(max=len(log.items) - 1)], PAD)
    real = ahead.squeeze(2) > 0
    index = index.clamp(max=len(log.items) - 1)
    items, times = torch.where(real, log.items[index], PAD), torch.where(real, log.times[index], NO_TIME)
    if settings.without:
        lost = torch.rand(len(users), 1, generator=generator, device=device) < settings.without
        times = times.masked_fill(lost, NO_TIME)
    return items[:, :-1], times[:, :-1], times, y


def loss_of(
    states: Tensor, vectors: Tensor, y: Tensor, shares: Tensor, settings: Settings, generator: torch.Generator
) -> Tensor:
    """The mean over targets y [N, K] of -log softmax over all items, or over a sample of them with corrections."""
    real = y != PAD
    if not settings.sampled:
        dtype = torch.bfloat16 if states.is_cuda else states.dtype
        logits = states.to(dtype) @ vectors.to(dtype).T
        if y.shape[1] == 1:
            return cross_entropy(logits.float(), y[:, 0], ignore_index=PAD, label_smoothing=settings.smoothing)
        log_p = logits.float().log_softmax(1)
        return -(log_p.gather(1, y.clamp(min=0)) * real).sum() / real.sum()
    half = settings.sampled // 2
    uniform = torch.randint(len(vectors), (half,), generator=generator, device=y.device)
    positives = y[real]
    others = positives[torch.randint(len(positives), (half,), generator=generator, device=y.device)]
    negatives = torch.cat([uniform, others])
    logits = states @ vectors[negatives].T - (half / len(vectors) + half * shares[negatives]).log()
    for target in y.unbind(1):
        logits = logits.masked_fill(negatives == target.unsqueeze(1), -torch.inf)
    own = torch.bmm(embedding(y.clamp(min=0), vectors), states.unsqueeze(-1)).squeeze(-1)
    return (softplus(logits.logsumexp(1, keepdim=True) - own) * real).sum() / real.sum()


OnCheck = Callable[[int, "Encoder", Tensor], bool]


def train(log: Log, num_items: int, settings: Settings, seed: int, on_check: OnCheck) -> None:
    """Train; on_check(step, encoder with the running means of the weights, loss) says whether to stop."""
    device = log.items.device
    on_gpu = device.type == "cuda"
    torch.manual_seed(seed)
    encoder = Encoder(num_items, settings).to(device)
    means = deepcopy(encoder)
    optimizer = torch.optim.AdamW(
        encoder.parameters(), settings.lr, (0.9, 0.98), weight_decay=settings.weight_decay, fused=on_gpu
    )
    counts = log.stop - log.start
    users = (counts > 1).nonzero().squeeze(1)
    users = users.repeat_interleave(-(-counts[users] // (settings.length + 1)))
    own = torch.zeros(len(log.items), dtype=torch.bool, device=device)
    for s, e in zip(log.start.tolist(), log.stop.tolist(), strict=True):
        own[s:e] = True
    shares = torch.bincount(log.items[own], minlength=num_items).float()
    shares /= shares.sum()
    per_epoch = -(-len(users) // settings.batch_size)
    generator = torch.Generator(device).manual_seed(seed)
    for step in range(1, settings.steps + 1):
        batch = (step - 1) % per_epoch
        if batch == 0:
            batches = by_length(users, counts.clamp(max=settings.length + 1), settings.batch_size, generator)
        rows = batches[batch]
        x, times, request, y = draw_windows(log, rows, settings, generator)
        with torch.autocast(device.type, torch.bfloat16, enabled=on_gpu):
            states = encoder.train()(x, times, request)
        real = (y != PAD).any(2)
        loss = loss_of(states[real].float(), encoder.vectors, y[real], shares, settings, generator)
        share = min(1.0, step / settings.warm_up)
        if settings.decay:
            share = min(share, 1e-2 + (settings.steps - step) / max(1, settings.steps - settings.warm_up))
        for group in optimizer.param_groups:
            group["lr"] = settings.lr * share
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            weights = [each.detach() for each in encoder.parameters()]
            torch._foreach_lerp_(list(means.parameters()), weights, max(settings.average, 1 / (step + 9)))
        if (step % settings.check_every == 0 or step == settings.steps) and on_check(step, means.eval(), loss.detach()):
            break


def by_length(users: Tensor, lengths: Tensor, size: int, generator: torch.Generator) -> list[Tensor]:
    """Batches of an epoch in a random order: users of a batch have histories of about one length."""
    users = users[torch.randperm(len(users), generator=generator, device=users.device)]
    group = torch.arange(len(users), device=users.device) // (GROUP * size)
    batches = users[(group * (int(lengths.max()) + 1) + lengths[users]).argsort()].split(size)
    order = torch.randperm(len(batches), generator=generator, device=users.device)
    return [batches[each] for each in order.tolist()]


@torch.no_grad()
def evaluate(encoder: Encoder, users: Users, m: int, timed: bool = True, chunk: int = 256) -> tuple[float, float]:
    """Recall@m and NDCG@m, in percent, of users whose seen items are left out."""
    totals, count = torch.zeros(2, dtype=torch.float64), 0
    device = users.x.device
    for rows in torch.arange(len(users.x), device=device).split(chunk):
        x, times, request, y, seen = (each[rows] for each in users)
        if not timed:
            times, request = torch.full_like(times, NO_TIME), torch.full_like(request, NO_TIME)
        real = (x != PAD).sum(1)
        asked = torch.cat([times, torch.full_like(times[:, :1], NO_TIME)], 1)  # the next event, as in training
        asked.scatter_(1, real.unsqueeze(1), request.unsqueeze(1))
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            states = encoder(x, times, asked)
        states = states[torch.arange(len(x), device=device), real].float()
        scores = states @ encoder.vectors.T
        scores = torch.cat([scores, torch.zeros_like(scores[:, :1])], 1)  # PAD writes here
        scores.scatter_(1, torch.where(seen == PAD, scores.shape[1] - 1, seen), -torch.inf)
        scores[:, -1] = -torch.inf
        found = scores.topk(m, dim=1).indices
        hits = (found.unsqueeze(2) == y.unsqueeze(1)).any(2).double()
        relevant = (y != PAD).sum(1).double()
        gains = 1 / torch.arange(2, m + 2, device=device).double().log2()
        ideal = gains.cumsum(0)[(relevant.clamp(max=m) - 1).long()]
        totals[0] += (hits.sum(1) / relevant).sum().cpu()
        totals[1] += ((hits * gains).sum(1) / ideal).sum().cpu()
        count += len(x)
    return tuple(round(100 * float(total) / count, 2) for total in totals)


def leave_one_out(log: Log, length: int, left: int) -> tuple[Log, Users]:
    """Training events without the last `left` of each user, and the event after them to be predicted."""
    stop = torch.maximum(log.stop - left, log.start)
    kept = stop - log.start >= 1
    log = Log(log.items, log.times, log.start[kept], log.stop[kept])
    stop = stop[kept]
    return Log(log.items, log.times, log.start, stop), users_at(log, stop, stop + 1, length)


def users_at(log: Log, cut: Tensor, stop: Tensor, length: int) -> Users:
    """Users who are asked about at an event each; what comes before another is to be predicted."""
    x, times = log.before(cut, length)
    width = int((stop - cut).max())
    index = cut.unsqueeze(1) + torch.arange(width, device=cut.device)
    y = log.items[index.clamp(max=len(log.items) - 1)].masked_fill(index >= stop.unsqueeze(1), PAD)
    seen = log.before(cut, int((cut - log.start).max().clamp(max=2_500)))[0]
    return Users(x, times, log.times[cut], y, seen)


def cut(log: Log, share: float, until: float, length: int, coming: int = 10, count: int = 5_000) -> tuple[Log, Users]:
    """Events before a moment, and up to ten that came between it and another for users who were there before it."""
    index = torch.cat([torch.arange(s, e) for s, e in zip(log.start.tolist(), log.stop.tolist(), strict=True)])
    ordered = log.times.cpu()[index].sort().values
    moments = [int(ordered[min(len(ordered) - 1, int(each * len(ordered)))]) for each in (share, until)]
    user = torch.repeat_interleave(torch.arange(len(log.start)), (log.stop - log.start).cpu())
    times = log.times.cpu()[index]

    def before(moment: int) -> Tensor:
        return log.start + torch.bincount(user[times < moment], minlength=len(log.start)).to(log.start.device)

    first = before(moments[0])
    last = log.stop if until >= 1 else before(moments[1])
    trained = first > log.start
    events = Log(log.items, log.times, log.start[trained], first[trained])
    both = (trained & (last > first)).nonzero().squeeze(1)
    both = both[torch.linspace(0, len(both) - 1, min(count, len(both)), device=both.device).long()]
    some = Log(log.items, log.times, log.start[both], log.stop[both])
    users = users_at(some, first[both], torch.minimum(last[both], first[both] + coming), length)
    return events, users


def make_arrays(source: Path, target: Path) -> None:
    import polars as pl

    frame = pl.read_parquet(source)
    if "timestamp" not in frame.columns:
        frame = frame.with_row_index("timestamp")
    frame = frame.select(
        pl.col("user").cast(pl.Categorical).to_physical().alias("user")
        if frame["user"].dtype == pl.String
        else pl.col("user").rank("dense") - 1,
        pl.col("item").cast(pl.Categorical).to_physical().alias("item")
        if frame["item"].dtype == pl.String
        else pl.col("item").rank("dense") - 1,
        "timestamp",
    ).sort("user", "timestamp", maintain_order=True)
    frame = frame.with_columns(pl.col("user").rank("dense") - 1, pl.col("item").rank("dense") - 1)
    counts = np.bincount(frame["user"].to_numpy())
    np.savez_compressed(
        target,
        offsets=np.concatenate([[0], counts.cumsum()]),
        items=frame["item"].to_numpy().astype(np.int32),
        times=frame["timestamp"].to_numpy().astype(np.int64),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["arrays", "train"])
    parser.add_argument("log", type=Path)
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--split", choices=["leave-one-out", "cut"], default="leave-one-out")
    parser.add_argument("--set", default="{}", help="Settings that differ, as JSON")
    parser.add_argument("--test", action="store_true", help="Report test users, too")
    parser.add_argument("--minutes", type=float, default=60.0)
    args = parser.parse_args()
    if args.command == "arrays":
        make_arrays(args.log, args.out)
        return
    settings = replace(Settings(), **json.loads(args.set))
    arrays = {name: torch.from_numpy(each).to(args.device) for name, each in np.load(args.log).items()}
    offsets, items = arrays["offsets"].long(), arrays["items"].long()
    log = Log(items, arrays["times"], offsets[:-1], offsets[1:])
    num_items = int(items.max()) + 1
    length = settings.length
    if args.split == "cut":
        m = 20
        events, val = cut(log, (1 - SHARE) ** 2, 1 - SHARE, length)
        test = cut(log, 1 - SHARE, 1.0, length)[1] if args.test else None
    else:
        m = 10
        events, val = leave_one_out(log, length, 2)
        test = leave_one_out(log, length, 1)[1] if args.test else None
    some = Users(*(each[:: max(1, len(val.x) // CHECKED)] for each in val))
    began, best = time.monotonic(), (0.0, 0)
    head = {"log": args.log.stem, "split": args.split, "seed": args.seed, "set": json.loads(args.set)}

    def on_check(step: int, encoder: Encoder, loss: Tensor) -> bool:
        nonlocal best
        row = {"step": step, "loss": round(float(loss), 3), "seconds": round(time.monotonic() - began, 1)}
        row["val"] = evaluate(encoder, some, m)
        best = max(best, (sum(row["val"]), step))
        stop = step - best[1] >= settings.patience or time.monotonic() - began > 60 * args.minutes
        if stop or step == settings.steps:
            row["last"] = True
            row["val"] = evaluate(encoder, val, m)
            row["val untimed"] = evaluate(encoder, val, m, timed=False)
            if test is not None:
                row["test"] = evaluate(encoder, test, m)
                row["test untimed"] = evaluate(encoder, test, m, timed=False)
        print(json.dumps({**head, **row}), flush=True)
        return stop

    train(events, num_items, settings, args.seed, on_check)


if __name__ == "__main__":
    main()
