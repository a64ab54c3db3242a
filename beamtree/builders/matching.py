"""Matching of items to places of limited capacity, with about the highest total weight."""

import torch
from torch import Tensor

MAX_ROUNDS = 500  # of bidding; the remaining items then take free places
BID_STEP = 0.02  # bids rise by at least this share of the spread of weights: smaller is nearer to the optimum


def match(weights: Tensor, group: Tensor, capacity: Tensor) -> Tensor:
    """For each item the place [M] among its group's C, so that the sum of `weights` [M, C] is about the highest.

    Items of group g [M] share its places, of capacity[g, c] [G, C] items each, in sum enough for all. With two places
    this is exact: the items that gain most by the first place get it. With more it is Bertsekas' auction, all groups at
    once: items bid for the place of the highest gain, and a full place keeps the highest bids.
    """
    short = torch.bincount(group, minlength=len(capacity)) - capacity.sum(1)
    if bool((short > 0).any()):
        raise ValueError(f"group {int(short.argmax())} has {int(short.max())} items more than places")
    if capacity.shape[1] == 1:
        return torch.zeros_like(group)
    if capacity.shape[1] == 2:
        return _halve(weights, group, capacity)
    return _assign_remaining(weights, group, capacity, _auction(weights, group, capacity))


def _halve(weights: Tensor, group: Tensor, capacity: Tensor) -> Tensor:
    gain = weights[:, 0] - weights[:, 1]
    rank = rank_in(group, gain)
    least = torch.bincount(group, minlength=len(capacity)) - capacity[:, 1]  # that must take the first
    first = (rank < least[group]) | ((rank < capacity[group, 0]) & (gain > 0))
    return (~first).long()


def rank_in(group: Tensor, value: Tensor) -> Tensor:
    """Each entry's rank in its group [M], the highest value first; equal values stay in order."""
    order = value.argsort(descending=True, stable=True)
    order = order[group[order].argsort(stable=True)]
    size = torch.bincount(group)
    start = size.cumsum(0) - size
    rank = torch.empty_like(group)
    rank[order] = torch.arange(len(group), device=group.device) - start[group[order]]
    return rank


def _auction(weights: Tensor, group: Tensor, capacity: Tensor) -> Tensor:
    """The place each item won [M]; C where it was outbid at the end."""
    places = capacity.shape[1]
    step = BID_STEP * float((weights.amax(1) - weights.mean(1)).mean()) + 1e-12
    room = capacity.flatten()
    price = torch.zeros_like(room, dtype=weights.dtype).masked_fill(room == 0, torch.inf)
    won = torch.full_like(group, places)
    bid = torch.full_like(weights[:, 0], -torch.inf)
    for _ in range(MAX_ROUNDS):
        out = (won == places).nonzero().squeeze(1)
        if not len(out):
            break
        cost = price.view_as(capacity)[group[out]]
        best = (weights[out] - cost).topk(2)
        second = best.values[:, 1].clamp(min=best.values[:, 0].min() - 1e9)  # a group may have one place left
        won[out] = best.indices[:, 0]
        bid[out] = cost.gather(1, best.indices[:, :1]).squeeze(1) + best.values[:, 0] - second + step
        place = group * places + won
        rank = rank_in(place, bid)
        lost = rank >= room[place]
        full = (rank == room[place] - 1).nonzero().squeeze(1)  # the lowest bid that a full place keeps
        price[place[full]] = bid[full]
        won[lost] = places
        bid[lost] = -torch.inf
    return won


def _assign_remaining(weights: Tensor, group: Tensor, capacity: Tensor, won: Tensor) -> Tensor:
    """Give the remaining items the best free places."""
    places = capacity.shape[1]
    for _ in range(places):
        out = (won == places).nonzero().squeeze(1)
        if not len(out):
            break
        taken = torch.bincount(group * (places + 1) + won, minlength=len(capacity) * (places + 1))
        free = capacity - taken.view(len(capacity), -1)[:, :places]
        choice = weights[out].masked_fill(free[group[out]] == 0, -torch.inf)
        value, place = choice.max(1)
        rank = rank_in(group[out] * places + place, value)
        fits = rank < free[group[out], place]
        won[out[fits]] = place[fits]
    return won
