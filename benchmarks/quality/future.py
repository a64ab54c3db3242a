"""What users do next, at a cut in time: our model beside popularity, EASE, iALS and rules that know the clock.

    python benchmarks/quality/future.py prepare games.parquet out/games
    python benchmarks/quality/future.py measure out/games --rows ours,popularity,ease,ials,rules --json games.json
    python benchmarks/quality/future.py weeks games.parquet --weeks 8 --every 1 7 --json weeks.json

The log is cut at nine tenths of its events. Every row is fitted to all events before the cut, with settings chosen at
an earlier cut of these, and recommends to users who have events on both sides. What counts is recall and NDCG at 20 of
up to ten items that a user takes next, at the time of the first of them. EASE, iALS and rules have a half-life: an
event of age a counts 2^(-a / h); popularity has a window. `--model RUN` measures a saved run instead of fitting
one, and `--no-sequence` the closed form alone. The row `sasrec`, which knows the order alone, needs a GPU.

`weeks` shows how a model ages. It is fitted before the cut, and copies are renewed every so many days with the events
of these days. Day by day all of them recommend to the users of that day, with all that these users did before. Recall
at 20 of up to ten items that a user takes on that day is printed week by week.

The first command and the last need Polars. The second reads prepared data and works where only PyTorch, NumPy, SciPy
and Numba are.
"""

import argparse
import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import beamtree as bt
from beamtree.closed_form.als import implicit_als
from beamtree.closed_form.cooccurrence import cooccurrence
from beamtree.closed_form.ridge import ridge_partners
from beamtree.closed_form.transitions import next_partners
from beamtree.data import BeforeAfter, Events, Prepared, load_data
from beamtree.data.inputs import WHOLE_HISTORY
from beamtree.data.views import recency
from beamtree.evaluate.metrics import bootstrap
from beamtree.parts.sequence import fit_sequence
from beamtree.research.baselines.sasrec import SASRec, sasrec
from beamtree.research.baselines.tuned import LOG_SHARES
from beamtree.scorers import with_inputs
from beamtree.scorers.factors import fold_in, newest_of_each
from beamtree.tree import PAD

SHARE = 0.9  # of the events, before the cut
USERS, COMING, M, BATCH = 4000, 10, 20, 64
DENSE = 10_000  # items up to which EASE is solved exactly
PARTNERS = 200  # of an item beyond that
DAY = 86_400
AGEING = (None, *LOG_SHARES)  # half-lives as shares of the length of the log
WINDOWS = (30, 7, 90, 365, None)  # days
STRENGTHS = ((0.015, 0.01), (0.005, 0.003), (0.03, 0.01), (0.015, 0.1))  # λ and α₀
Find = Callable[[Tensor], Tensor]  # histories x [B, T], newest first -> the M best items [B, M]
Score = Callable[[Tensor], Tensor]  # -> the scores of all items [B, items]


class Users(NamedTuple):
    """Test users."""

    view: BeforeAfter
    targets: Tensor  # [U, COMING], PAD where fewer; items that the log before the cut does not have are numbers beyond


def prepare(log: Path, out: Path, seed: int) -> None:
    """Write the log before the cut as prepared data, and test users as arrays."""
    import polars as pl

    frame = pl.read_parquet(log).select("user", "item", "timestamp").sort("timestamp", maintain_order=True)
    cut = frame["timestamp"][int(SHARE * len(frame))]
    before, after = frame.filter(pl.col("timestamp") < cut), frame.filter(pl.col("timestamp") >= cut)
    out.mkdir(parents=True, exist_ok=True)
    from beamtree.ingest.prepare import prepare as prepare_log

    prepare_log(before, out / "before", user="user", item="item", time="timestamp", seed=seed)
    number = {name: index for index, name in enumerate(load_data(out / "before").items.names)}
    both = sorted(set(before["user"].unique()) & set(after["user"].unique()), key=str)
    chosen = np.random.default_rng(seed).permutation(len(both))[:USERS]
    users = {both[index] for index in chosen.tolist()}

    def by_user(rows: pl.DataFrame) -> dict[Any, list[tuple[Any, int]]]:
        rows = rows.filter(pl.col("user").is_in(list(users)))
        grouped: dict[Any, list[tuple[Any, int]]] = {}
        for user, item, moment in rows.iter_rows():
            grouped.setdefault(user, []).append((item, moment))
        return grouped

    items, times, lengths, cuts = [], [], [], []
    past, future = by_user(before), by_user(after)
    for user in sorted(users, key=str):
        history = [(number[str(item)], moment) for item, moment in past[user] if str(item) in number]
        coming = dict(reversed(future[user]))  # each item once, when it was first taken
        taken = sorted(coming.items(), key=lambda each: [name for name, _ in future[user]].index(each[0]))[:COMING]
        rows = [*history, *((number.setdefault(str(item), len(number)), moment) for item, moment in taken)]
        items += [item for item, _ in rows]
        times += [moment for _, moment in rows]
        lengths.append(len(rows))
        cuts.append(len(history))
    np.savez(out / "users.npz", items=items, times=times, lengths=lengths, cuts=cuts)
    print(f"{log.stem}: {len(before):,} events before the cut, {len(users):,} users")


def read_users(folder: Path) -> Users:
    arrays = np.load(folder / "users.npz")
    offsets = torch.nn.functional.pad(torch.from_numpy(arrays["lengths"]).cumsum(0), (1, 0))
    events = Events(
        offsets,
        torch.from_numpy(arrays["items"]),
        "users after the cut",
        times=torch.from_numpy(arrays["times"]),
        clock=1,
    )
    view = BeforeAfter(events, torch.from_numpy(arrays["cuts"]), history=WHOLE_HISTORY)
    index = view.target_index(torch.arange(len(view)))
    targets = events.items[index.clamp(min=0)].masked_fill(index == PAD, PAD)
    return Users(view, targets)


def quality(found: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Recall and NDCG at M of each user [U] each."""
    hit = ((found.unsqueeze(2) == targets.unsqueeze(1)) & (targets != PAD).unsqueeze(1)).any(2).float()
    count = (targets != PAD).sum(1)
    discount = 1 / torch.log2(torch.arange(M) + 2.0)
    best = torch.nn.functional.pad(discount.cumsum(0), (1, 0))[count.clamp(max=M)]
    return hit.sum(1) / count, (hit * discount).sum(1) / best


def batches(view: BeforeAfter) -> Iterator[Tensor]:
    for rows in torch.arange(len(view)).split(BATCH):
        yield view.batch(rows)[0]


def ours(model: bt.TreeModel, users: Users, beam_size: int = 400) -> Tensor:
    """The M best items of a model for each user."""
    view = with_inputs(model.scorer, users.view)
    device = model.tree.device
    return torch.cat([bt.retrieve(model, x.to(device), beam_size=beam_size, m=M)[0].cpu() for x in batches(view)])


# Rows beside ours: fitted to events whose weights fall with age


def aged(events: Events, half_life: float | None) -> Events:
    """Events of age a with the weight 2^(-a / h); h is a share of the length of the log."""
    if half_life is None:
        return replace(events, weights=None)
    assert events.times is not None
    times = events.times[events.span()].double()
    age = (times.max() - times) / (times.max() - times.min()) / half_life
    return Events(
        (events.offsets - events.offsets[0]),
        events.item_numbers(),
        events.name,
        weights=(-age * np.log(2)).exp().float(),
    )


def recent_popularity(events: Events, num_items: int, settings: dict[str, Any], device: str) -> Score:
    assert events.times is not None
    times, items = events.times[events.span()], events.item_numbers().long()
    if settings["window"] is not None:
        items = items[times > times.max() - settings["window"] * DAY * (events.clock or 1)]
    counts = torch.bincount(items, minlength=num_items).float()
    return lambda x: counts.expand(len(x), -1)


def ease(events: Events, num_items: int, settings: dict[str, Any], device: str) -> Score:
    gram = cooccurrence(aged(events, settings["half_life"]).to(device), num_items)
    if num_items <= DENSE:
        system = gram.dense(torch.arange(num_items, device=device))
        system.diagonal().add_(settings["penalty"])
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(system))
        weights = inverse.div_(-inverse.diagonal()).fill_diagonal_(0.0)
    else:
        partners = ridge_partners(gram, torch.arange(num_items, device=device), settings["penalty"], PARTNERS)
        weights = torch.sparse_csr_tensor(
            partners.offsets, partners.columns.long(), partners.values.float(), (num_items,) * 2
        )
    return lambda x: multiply(history(x, settings["recency"], num_items).to(device), weights).cpu()


def multiply(rows: Tensor, weights: Tensor) -> Tensor:
    return rows @ weights if weights.layout == torch.strided else (weights.to_sparse_coo().T @ rows.T).T


def ials(events: Events, num_items: int, settings: dict[str, Any], device: str) -> Score:
    factors = implicit_als(
        aged(events, settings["half_life"]).to(device),
        num_items,
        penalty=settings["strengths"][0],
        unobserved_weight=settings["strengths"][1],
    )

    def score(x: Tensor) -> Tensor:
        x = x.to(device)
        weights = recency(settings["recency"], x.shape[1]).to(device) * newest_of_each(x)
        return (fold_in(factors, factors.items[x.clamp(min=0)], weights) @ factors.items.T).cpu()

    return score


def rules(events: Events, num_items: int, settings: dict[str, Any], device: str) -> Score:
    pairs = next_partners(aged(events, settings["half_life"]), num_items, most=500)
    weights = torch.sparse_csr_tensor(pairs.offsets, pairs.columns.long(), pairs.values.float(), (num_items,) * 2)
    return lambda x: multiply(history(x, None, num_items, settings["decay"]), weights)


def history(x: Tensor, power: float | None, num_items: int, decay: float = 1.0) -> Tensor:
    """Histories as rows over all items, each event weighted by its place [B, items]."""
    t = torch.arange(x.shape[1])
    weights = decay**t if power is None else recency(power, x.shape[1])
    rows = torch.zeros(len(x), num_items + 1)
    rows.scatter_(1, x.where(newest_of_each(x), num_items), weights.expand_as(x).float())
    return rows[:, :num_items]


# What is tried, one option after another, from the first value of each
GRIDS: dict[str, tuple[Callable[..., Score], dict[str, tuple[Any, ...]]]] = {
    "popularity": (recent_popularity, {"window": WINDOWS}),
    "ease": (ease, {"recency": (0.3, 0.0, 0.6), "penalty": (300.0, 30.0, 100.0, 1000.0), "half_life": AGEING}),
    "ials": (ials, {"recency": (0.3, 0.0, 0.6, 1.0), "strengths": STRENGTHS, "half_life": AGEING}),
    "rules": (rules, {"decay": (0.8, 0.6, 0.9), "half_life": AGEING}),
}


def ranked(score: Score, view: BeforeAfter, num_items: int, leave_out: bool) -> Tensor:
    """The M best items of each user."""
    found = []
    for x in batches(view):
        x = x.where(x < num_items, PAD)
        scores = torch.nn.functional.pad(score(x).clone(), (0, 1), value=-torch.inf)
        if leave_out:
            scores.scatter_(1, x.where(x != PAD, num_items), -torch.inf)
        found.append(scores.topk(M).indices)
    return torch.cat(found)


def events_before_the_cut(data: Prepared) -> Events:
    """Also those that validation users chose something by."""
    return (data.all or data.train).events


def chosen_row(name: str, data: Prepared, users: Users, device: str) -> tuple[Tensor, dict[str, Any]]:
    """The M best items of a row for each test user, and the settings that are best on validation users."""
    make, grid = GRIDS[name]
    train, val = data.train.events, replace(data.val.sample(2000), history=WHOLE_HISTORY)
    index = val.target_index(torch.arange(len(val)))[:, :COMING]
    targets = val.events.items[index.clamp(min=0)].long().masked_fill(index == PAD, PAD)
    grid = {**grid, "leave_out": (True, False)}
    best = {option: values[0] for option, values in grid.items()}
    tried: dict[str, float] = {}

    def measured(settings: dict[str, Any]) -> float:
        key = json.dumps(settings, sort_keys=True)
        if key not in tried:
            score = make(train, data.num_items, settings, device)
            tried[key] = float(quality(ranked(score, val, data.num_items, settings["leave_out"]), targets)[0].mean())
        return tried[key]

    for _ in range(2):
        for option, values in grid.items():
            best = max(({**best, option: value} for value in values), key=measured)
    score = make(events_before_the_cut(data), data.num_items, best, device)
    return ranked(score, users.view, data.num_items, best["leave_out"]), best


def of_sasrec(data: Prepared, users: Users, device: str, seed: int) -> tuple[Tensor, dict[str, Any]]:
    """The M best items of SASRec, trained for as many steps as validation users chose, to all events."""
    chosen = sasrec(data.train.events, data.num_items, val=data.val, device=device, seed=seed)
    settings, everything = chosen.chosen, events_before_the_cut(data)
    assert settings is not None
    encoder, vectors = fit_sequence(everything, data.num_items, settings, device=device, seed=seed)
    model = SASRec(encoder, vectors, everything.popularity(data.num_items).to(device) > 0)
    model = model if bool(chosen.repeats) else model.without_repeats()
    xs = (x.where(x < data.num_items, PAD) for x in batches(users.view))
    about = {"settings": {"dim": settings.dim, "steps": settings.steps, "repeats": bool(chosen.repeats)}}
    return torch.cat([model.retrieve(x, M)[0].cpu() for x in xs]), about


def fit_ours(
    folder: Path, device: str, seed: int, minutes: float | None, sequence: bool | None
) -> tuple[bt.TreeModel, float]:
    began = time.perf_counter()
    shop = bt.Recommender(seed=seed, device=device, minutes=minutes, sequence=sequence).fit(folder / "before")
    return shop.model, time.perf_counter() - began


def weeks(log: Path, count: int, every: list[int], sequence: bool, seed: int, out: Path | None) -> None:
    """Measure a model that stays as it was fitted before the cut beside copies that are renewed every so many days."""
    import polars as pl

    from beamtree.live import renew
    from beamtree.live.renewal import known_to

    frame = pl.read_parquet(log).select("user", "item", "timestamp").sort("timestamp", maintain_order=True)
    cut, moment = frame["timestamp"][int(SHARE * len(frame))], pl.col("timestamp")
    recalls = defaultdict[tuple[int, int], list[float]](list)  # of requests, by days between renewals and week
    with tempfile.TemporaryDirectory() as folder:
        began, shop = time.perf_counter(), bt.Recommender(seed=seed, sequence=None if sequence else False)
        shop.fit(frame.filter(moment < cut), verbose=False)
        print(f"fit {time.perf_counter() - began:.0f} s", flush=True)
        runs = {days: Path(folder) / str(days) for days in every}
        models = {0: shop.model} | dict.fromkeys(every, shop.model)  # 0: never renewed
        data = {0: shop.data} | dict.fromkeys(every, shop.data)
        for run in runs.values():
            shop.save(run)
        for day in range(count * 7):
            start = cut + day * DAY
            for days, run in runs.items():
                if day and not day % days:
                    # A week more: what was not saved the last time gets in, and events count once.
                    recent = frame.filter(moment.is_between(start - (days + 7) * DAY, start - 1))
                    report = renew(run, recent, verbose=False)
                    print(f"day {day}: {report.result} in {report.seconds:.0f} s, {report.events} events", flush=True)
                    renewed = bt.Recommender.load(run)
                    models[days], data[days] = renewed.model, renewed.data
            today = frame.filter(moment.is_between(start, start + DAY - 1))
            for days, model in models.items():
                users = known_to(model, users_of(frame.filter(moment < start), today, data[days]))
                found = bt.evaluate(model, users, m=M, metrics="recall").per_user[:, 0, 0]
                recalls[days, day // 7] += found.tolist()
            if day % 7 == 6:
                done = range(day // 7 + 1)
                summary = [
                    of_weeks(recalls, days, each) for each in (*([week] for week in done), done) for days in models
                ]
                for each in summary[-2 * len(models) :]:
                    print(json.dumps(each), flush=True)
                if out is not None:
                    whole = {"log": log.stem, "sequence": sequence, "weeks": summary}
                    out.write_text(json.dumps(whole, indent=1) + "\n")


def of_weeks(recalls: dict[tuple[int, int], list[float]], every: int, weeks: Sequence[int]) -> dict[str, Any]:
    """Recall of a model in some weeks, and the 95 % interval of what it finds more than the one of the start."""
    own, first = (torch.tensor([value for week in weeks for value in recalls[days, week]]) for days in (every, 0))
    low, high = bootstrap((own - first).unsqueeze(1))
    numbers = {"recall": float(own.mean()), "low": float(low), "high": float(high)}
    return {"weeks": [week + 1 for week in weeks], "every": every, "requests": len(own), **numbers}


def users_of(past: Any, today: Any, data: Prepared) -> BeforeAfter:
    """Users with events in the past and today: the past is history, up to COMING distinct items of today to be found.

    Items that the data does not have get the numbers after its own.
    """
    import polars as pl

    number = {name: index for index, name in enumerate(data.items.names)}
    coming = today.unique(["user", "item"], keep="first", maintain_order=True).join(past, "user", how="semi")
    coming = coming.sort("user", maintain_order=True).filter(pl.int_range(pl.len()).over("user") < COMING)
    rows = pl.concat([past.join(coming, "user", how="semi"), coming]).sort("user", maintain_order=True)
    items = torch.tensor([number.setdefault(str(item), len(number)) for item in rows["item"]])
    counts, found = (part["user"].rle().struct.field("len").to_torch().long() for part in (rows, coming))
    offsets, times = torch.nn.functional.pad(counts.cumsum(0), (1, 0)), rows["timestamp"].to_torch()
    return BeforeAfter(Events(offsets, items, "users of these days", times=times, clock=1), counts - found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    first = commands.add_parser("prepare")
    first.add_argument("log", type=Path)
    first.add_argument("out", type=Path)
    first.add_argument("--seed", type=int, default=0)
    second = commands.add_parser("measure")
    second.add_argument("folder", type=Path)
    second.add_argument("--rows", default="ours,popularity,ease,ials,rules")
    second.add_argument("--model", type=Path)
    second.add_argument("--device", default="cpu")
    second.add_argument("--seed", type=int, default=0)
    second.add_argument("--minutes", type=float)
    second.add_argument("--sequence", action=argparse.BooleanOptionalAction, help="the sequence part")
    second.add_argument("--json", type=Path)
    third = commands.add_parser("weeks")
    third.add_argument("log", type=Path)
    third.add_argument("--weeks", type=int, default=8)
    third.add_argument("--every", type=int, nargs="+", default=[1, 7], help="days between the renewals of each copy")
    third.add_argument("--sequence", action="store_true", help="with a sequence part, which renewals do not train")
    third.add_argument("--seed", type=int, default=0)
    third.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.command == "prepare":
        prepare(options.log, options.out, options.seed)
        return
    if options.command == "weeks":
        weeks(options.log, options.weeks, options.every, options.sequence, options.seed, options.json)
        return
    users, data, records = read_users(options.folder), load_data(options.folder / "before"), []
    print(f"{options.folder.name}: {len(users.targets):,} users, recall@{M} and NDCG@{M} with 95 % intervals")
    for name in options.rows.split(","):
        about: dict[str, Any] = {}
        if name == "ours":
            if options.model is not None:
                model = bt.Recommender.load(options.model, device=options.device).model
            else:
                model, about["seconds"] = fit_ours(
                    options.folder, options.device, options.seed, options.minutes, options.sequence
                )
            found = ours(model, users)
        elif name == "sasrec":
            found, about = of_sasrec(data, users, options.device, options.seed)
        else:
            found, about["settings"] = chosen_row(name, data, users, options.device)
        recall, ndcg = quality(found, users.targets)
        cells = [f"{values.mean():.4f} ± {1.96 * values.std() / len(values) ** 0.5:.4f}" for values in (recall, ndcg)]
        print(f"{name:<12} {'   '.join(cells)}   {about}", flush=True)
        records.append(
            {
                "log": options.folder.name,
                "row": name,
                "recall": float(recall.mean()),
                "ndcg": float(ndcg.mean()),
                **about,
            }
        )
        if options.json is not None:
            options.json.write_text(json.dumps(records, indent=1))


if __name__ == "__main__":
    main()
