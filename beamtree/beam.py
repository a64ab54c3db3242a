"""Beam search (Eq. 3) as `walk`, whose steps the compiled search of a CPU takes too, and retrieval (Eq. 4)."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn.functional import log_softmax, logsigmoid

from beamtree import kernels
from beamtree.errors import positive_int
from beamtree.kernels import search_cpu
from beamtree.kernels.cuda_graphs import WARMUP_RUNS, CudaGraphCache
from beamtree.kernels.search_cpu import PreparedParts, prepare_parts, search_parts
from beamtree.kernels.threads import one_thread, parallel_map
from beamtree.mask import NodeMask
from beamtree.model import ModelState, Query, State, TreeModel
from beamtree.search.choice import AUTO, BEAM, SCAN, choose, resolve_search
from beamtree.search.scan import best_items, scan, scan_by_definition
from beamtree.tree import PAD, Tree

Expand = Callable[[Tensor, State], State]
Drawn = Callable[[Callable[[int], Tensor]], Tensor]
BeamSize = int | Sequence[int]  # k, or one width for each searched level, first to last
DEFAULT_BEAM_SIZE = 400  # of searches; the default in training is in `train.recipes`
WIDE, EVENTS_AT_ONCE = 300, 1 << 14  # columns of x from which fewer users are searched together on a GPU
_GRAPHS: WeakKeyDictionary[TreeModel, tuple[ModelState, CudaGraphCache]] = WeakKeyDictionary()
_PREPARED: WeakKeyDictionary[TreeModel, tuple[ModelState, PreparedParts | None]] = WeakKeyDictionary()
_FILTERED_SEARCHES: WeakKeyDictionary[NodeMask, int] = WeakKeyDictionary()  # on a GPU, with each filter


class BeamLevel(NamedTuple):
    """The result of one step down."""

    level: int
    candidates: Tensor  # B̃_h: the children of the beam above [B, W], [1, W] while all are kept
    beam: Tensor  # B_h: the best k of them in no order, PAD where there are fewer [B or 1, ≤ k]
    scores: Tensor  # what they were compared by [B, ≤ k], -inf at PAD


def default_beam_size(m: int, beam_size: int = DEFAULT_BEAM_SIZE) -> int:
    """The beam of a search for m items that names none: that of all searches, but at least m."""
    return max(beam_size, m)


def widths(model: TreeModel, beam_size: BeamSize, m: int = 1) -> tuple[int, ...]:
    """The width of the beam on each searched level: `beam_size`, but at least m.

    **Then a search returns m items if m are allowed.** A beam enters only nodes with an allowed item below. On every
    level it holds all nodes that may be entered, or at least m of them: it begins with all nodes above the first level,
    every node has a child that may be entered, and the beam keeps all of these children, or as many as its width, which
    is at least m. So the last beam holds every allowed item, or at least m of them.
    """
    levels = model.tree.height + 1 - model.first_level
    if type(beam_size) is type(m) is int and 0 < m <= beam_size:
        return (beam_size,) * levels
    several = isinstance(beam_size, Iterable) and not isinstance(beam_size, str)
    beam_size = tuple(beam_size) if several else beam_size  # type: ignore[arg-type]
    each = beam_size if isinstance(beam_size, tuple) else (beam_size,) * levels
    result, m = tuple(positive_int("beam_size", width) for width in each), positive_int("m", m)
    if len(result) != levels:
        spans = f"levels {model.first_level} to {model.tree.height}"
        raise ValueError(f"beam_size has {len(result)} widths and {spans} are searched: give {levels}, or one number")
    if m > result[-1]:
        most = "the last width" if several else "beam_size"
        raise ValueError(f"m={m} with beam_size={as_text(beam_size)}: from 1 up to {most} items can be retrieved")
    return tuple(max(width, m) for width in result)


def as_text(beam_size: BeamSize) -> str:
    """A beam size as text: 400, or 100,200,400."""
    return ",".join(map(str, beam_size)) if isinstance(beam_size, Sequence) else str(beam_size)


def walk(
    query: Query,
    beam_size: BeamSize,
    expand: Expand | None = None,
    *,
    mask: NodeMask | None = None,
    excluded: Tensor | None = None,
    skip_full_levels: bool = False,
) -> Iterator[BeamLevel]:
    """Eq. 3, level by level from the top: expand the beam, score the children, keep the best k.

    Args:
        query: a model and a batch of users.
        beam_size: k, or the width of each level.
        expand: how candidates are scored. Default: by p_g.
        mask: which nodes may be entered. Default: those with an item below.
        excluded: the slots that are excluded for each user, from `mask.excluded` [B, E].
        skip_full_levels: do not score levels that fit into the beam. A chained model scores them all, because the
            score of a node depends on its parent's.
    """
    expand = expand or query.model.expand
    skips = skip_full_levels and not query.model.chained
    tree, mask = query.tree, mask or query.tree.mask
    beam = mask.nodes(query.levels.start - 1).unsqueeze(0)  # the same for every row
    state: State = (torch.zeros(beam.shape, device=tree.device),)
    candidates = tree.children(beam, mask=mask).flatten(1)  # [1, kb]
    for level, k in zip(query.levels, widths(query.model, beam_size), strict=True):
        if skips and mask is not tree.mask and not candidates.is_cuda and len(candidates) == 1:
            candidates = candidates[candidates != PAD].unsqueeze(0)  # of a filter that leaves few, so that all are kept
        if skips and candidates.shape[1] <= k and level < tree.height:
            candidates = tree.children(candidates, level, mask).flatten(1)
            continue
        if excluded is not None:
            candidates = mask.keep_for(excluded, level, candidates)
        with torch.no_grad():  # not around the loop, where the caller's code runs between levels
            state = expand(query.logits(level, candidates), state)  # [B, kb]
            beam, best, children = _select(tree, mask, candidates, state[0], k, level)
            if best is not None:
                state = tuple(part.gather(1, best) for part in state)
        yield BeamLevel(level, candidates, beam, state[0])
        candidates = children


def _select(
    tree: Tree, mask: NodeMask, candidates: Tensor, scores: Tensor, k: int, level: int
) -> tuple[Tensor, Tensor | None, Tensor]:
    """The best k candidates, their columns (None if all are kept), and their children, above the leaves."""
    below = level < tree.height
    if candidates.shape[1] <= k:
        return candidates, None, tree.children(candidates, level, mask).flatten(1) if below else candidates
    if kernels.fits(scores) and scores.shape[1] <= kernels.MAX_SELECTED:
        from beamtree.kernels.select import select

        entered = None if mask.full_to == tree.height else mask.entered
        return select(candidates, scores, k, tree.arity, entered, below)
    best = scores.topk(k, sorted=False).indices
    beam = candidates.expand_as(scores).gather(1, best)
    return beam, best, tree.children(beam, level, mask).flatten(1) if below else beam


def gumbel_expand(generator: torch.Generator, drawn: Drawn | None = None) -> Expand:
    """Stochastic beam search (Kool et al. 2019): walk with it draws k leaves without replacement.

    A leaf is drawn by going down, each child with the probability of its share of its siblings' p_g. The state is the
    perturbed log-probability, which is the score and whose maximum over siblings is that of their parent, and the
    log-probability itself. `drawn` is `Query.drawn`, for a query that has a part of a batch.
    """

    def expand(logits: Tensor, parents: State) -> State:
        top, log_p = parents[0].unsqueeze(-1), parents[-1].unsqueeze(-1)  # both 0 at the root
        logits = logits.unflatten(1, (top.shape[1], -1))  # [B, n, b]
        log_p = log_p + log_softmax(logsigmoid(logits), dim=-1)
        noise = _uniform(logits, generator) if drawn is None else drawn(lambda rows: _uniform(logits, generator, rows))
        gumbel = log_p - torch.log(-torch.log(noise.clamp(min=1e-20)))
        gap = gumbel - gumbel.amax(-1, keepdim=True)  # ≤ 0; 0 for the highest sibling
        shift = top - gumbel + torch.log(-torch.expm1(gap))  # -inf for the highest sibling
        perturbed = top - shift.clamp(min=0) - torch.log1p(torch.exp(-shift.abs()))
        return perturbed.masked_fill(logits == -torch.inf, -torch.inf).flatten(1), log_p.flatten(1)

    return expand


def _uniform(like: Tensor, generator: torch.Generator, rows: int | None = None) -> Tensor:
    shape = (len(like) if rows is None else rows, *like.shape[1:])
    return torch.rand(shape, generator=generator, device=like.device)


def users_at_once(model: TreeModel, x: Tensor) -> int:
    """How many of some users are scored together: on a GPU few with long histories, since each event names items."""
    if not x.is_cuda or not model.scorer.reads_items or x.shape[1] <= WIDE:
        return max(1, x.shape[0])
    return max(1, EVENTS_AT_ONCE // x.shape[1])


@torch.no_grad()
def retrieve(
    model: TreeModel,
    x: Tensor,
    *,
    beam_size: BeamSize | None = None,
    m: int = 10,
    allowed: NodeMask | Tensor | None = None,
    exclude: Tensor | None = None,
    search: str = AUTO,
) -> tuple[Tensor, Tensor]:
    """Î_x (Eq. 4): the m best items of the last beam, or of all, and their log p_g, best first [B, m].

    Args:
        model: a tree and a scorer.
        x: users, as the scorer takes them [B, ...].
        beam_size: k, or one width for each searched level, first to last; see `widths`. Default: 400 or m.
        m: the number of items, at most k or the last width; narrower levels are widened to m.
        allowed: the items that may be returned. Default: all. For many searches make `model.tree.allow(items)` once.
        exclude: items to exclude for each user [B, E], PAD where fewer.
        search: beam; scan, which scores every allowed item; or auto: a beam where a `beam_size` is given, else the
            faster one, see `beamtree.search.choice`.

    The beam enters only nodes with an allowed item below, so a user gets m items if m are left. Otherwise the row ends
    in PAD and -inf.
    """
    search, m = resolve_search(search, beam_size), positive_int("m", m)
    sizes = widths(model, default_beam_size(m) if beam_size is None else beam_size, m)
    _check_users(model, x, exclude)
    return _retrieve(model, x, sizes, m, allowed, exclude, search)


def _retrieve(
    model: TreeModel,
    x: Tensor,
    sizes: tuple[int, ...],
    m: int,
    allowed: NodeMask | Tensor | None,
    exclude: Tensor | None,
    search: str,
) -> tuple[Tensor, Tensor]:
    """`retrieve` for arguments that were checked."""
    if x.shape[0] > (few := users_at_once(model, x)):
        parts = x.split(few)
        hidden = [None] * len(parts) if exclude is None else exclude.split(few)
        found = [
            _retrieve(model, some, sizes, m, allowed, own, search) for some, own in zip(parts, hidden, strict=True)
        ]
        return torch.cat([items for items, _ in found]), torch.cat([scores for _, scores in found])
    mask = model.tree.mask_of(allowed)
    if mask.is_empty or not x.shape[0]:
        return _no_items(x, m)
    if search == AUTO:
        search = _choose(model, x, mask, sizes, m)

    def run(x: Tensor, *exclude: Tensor) -> tuple[Tensor, Tensor]:
        ((items, scores),) = _search(model, x, (mask,), exclude[0] if exclude else None, sizes, m, (search,))
        return items, _log_prob(model, scores)

    inputs = (x,) if exclude is None or not exclude.shape[1] else (x, exclude)
    if not kernels.fits(x) or not model.scorer.capturable or (allowed is not None and _is_rare(mask)):
        return run(*inputs)
    key = search, sizes if search == BEAM else None, m, model.chained, model.first_level, mask
    items, scores = _graphs_of(model)(key, run, *inputs)
    return items, scores


def _choose(model: TreeModel, x: Tensor, mask: NodeMask, sizes: tuple[int, ...], m: int) -> str:
    """The faster search for users, which may find all items or those of a mask."""
    return choose(model, x, mask, sizes, lambda users, search: _retrieve(model, users, sizes, m, None, None, search))


@torch.no_grad()
def retrieve_each(
    model: TreeModel,
    x: Tensor,
    masks: Sequence[NodeMask],
    *,
    beam_size: BeamSize,
    m: int,
    exclude: Tensor,
    search: str = BEAM,
) -> list[tuple[Tensor, Tensor]]:
    """`retrieve` with each of some masks: on a CPU they are searched beside each other, and users encoded once.

    `search` is auto, beam or scan, whatever the beam size is.
    """
    sizes, m = widths(model, beam_size, m), positive_int("m", m)
    _check_users(model, x)
    if len(masks) < 2 or x.device.type != "cpu" or not x.shape[0] or any(mask.is_empty for mask in masks):
        return [_retrieve(model, x, sizes, m, mask, exclude, search) for mask in masks]
    searches = [_choose(model, x, mask, sizes, m) if search == AUTO else search for mask in masks]
    found = _search(model, x, masks, exclude if exclude.shape[1] else None, sizes, m, searches)
    items, scores = zip(*found, strict=True)
    return list(zip(items, _log_prob(model, torch.cat(scores)).split(len(x)), strict=True))


@torch.no_grad()
def best_scores(model: TreeModel, x: Tensor, *, beam_size: int, m: int) -> Tensor:
    """What the items of `retrieve` were compared by, best first, -inf where there are fewer [B, m]."""
    ((_, scores),) = _search(model, x, (model.tree.mask,), None, widths(model, beam_size, m), m)
    return scores


def _search(
    model: TreeModel,
    x: Tensor,
    masks: Sequence[NodeMask],
    exclude: Tensor | None,
    sizes: tuple[int, ...],
    m: int,
    searches: Sequence[str] = (BEAM,),
) -> list[tuple[Tensor, Tensor]]:
    """For each mask, the m best items, of the last beam or in a scan of all, and their scores [B, m].

    Where there are fewer, they are PAD and -inf.
    """
    leaves = None if exclude is None else model.tree.leaf_of_item(exclude)
    prepared = None if model.chained or x.device.type != "cpu" else _prepared_parts(model)
    parts = None if prepared is None else search_parts(model.scorer, model.tree, x, prepared)

    def run(task: tuple[NodeMask, str]) -> tuple[Tensor, Tensor]:
        mask, search = task
        if search == SCAN:
            return scan(model, x, mask, leaves, m, parts)
        excluded = None if leaves is None else mask.excluded(leaves)
        if parts is not None:
            histories = model.scorer.histories(x)
            return search_cpu.search(model.tree, mask, parts, histories, excluded, model.first_level, sizes, m)
        return walk_to_items(model, x, sizes, m, mask=mask, excluded=excluded)

    tasks = list(zip(masks, searches, strict=True))
    return [run(task) for task in tasks] if len(masks) == 1 or parts is None else parallel_map(run, tasks)


def _prepared_parts(model: TreeModel) -> PreparedParts | None:
    """What the compiled search takes from a model, made again when its weights or its tree change."""
    cached = _PREPARED.get(model)
    if cached is None or not cached[0].is_of(model):
        cached = _PREPARED[model] = ModelState(model), prepare_parts(model.scorer, model.tree)
    return cached[1]


def walk_to_items(
    model: TreeModel,
    x: Tensor,
    sizes: BeamSize,
    m: int,
    *,
    mask: NodeMask | None = None,
    excluded: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The m best items of the last beam of `walk` and their scores [B, m], PAD and -inf where there are fewer."""
    *_, last = walk(model.query(x), sizes, mask=mask, excluded=excluded, skip_full_levels=True)
    items = model.tree.item_of_leaf(last.beam).expand_as(last.scores)
    return best_items(items, last.scores.masked_fill(items == PAD, -torch.inf), m)  # empty slots, where admitted


def _log_prob(model: TreeModel, scores: Tensor) -> Tensor:
    """log p_g of the scores of a search. On a busy CPU, waiting for a second thread takes longer than the search."""
    with one_thread() if scores.device.type == "cpu" else nullcontext():
        return model.scores_to_log_prob(scores)


def _is_rare(mask: NodeMask) -> bool:
    """Whether a filter has been searched with too few times to record its searches; counts this one."""
    count = _FILTERED_SEARCHES[mask] = _FILTERED_SEARCHES.get(mask, 0) + 1
    return count <= WARMUP_RUNS


def _graphs_of(model: TreeModel) -> CudaGraphCache:
    """The recorded searches of a model, discarded when its weights or its tree change."""
    cached = _GRAPHS.get(model)
    if cached is None or not cached[0].is_of(model):
        cached = _GRAPHS[model] = ModelState(model), CudaGraphCache(WARMUP_RUNS)
    return cached[1]


def _check_users(model: TreeModel, x: Tensor, exclude: Tensor | None = None) -> None:
    """Raise a ValueError where x are not users that the model can score, or other items are excluded than it has."""
    if not isinstance(x, Tensor):
        raise ValueError(f"x is a {type(x).__name__}: give a tensor of item numbers, or ids to a Recommender")
    model.scorer.check(x)
    if model.scorer.reads_items and x.device.type == "cpu":  # on a GPU this would wait
        model.tree.check_items(model.scorer.histories(x))
    if exclude is not None and exclude.device.type == "cpu":
        model.tree.check_items(exclude)


@torch.no_grad()
def brute_force(
    model: TreeModel,
    x: Tensor,
    *,
    m: int = 10,
    allowed: NodeMask | Tensor | None = None,
    exclude: Tensor | None = None,
    leaves_at_once: int = 4096,
) -> tuple[Tensor, Tensor]:
    """What `retrieve` would return if the beam lost nothing: every allowed leaf is scored.

    Args:
        model: a tree and a scorer.
        x: users, as the scorer takes them [B, ...].
        m: the number of items.
        allowed: the items that may be returned. Default: all.
        exclude: items to exclude for each user [B, E], PAD where fewer.
        leaves_at_once: leaves that are scored together.
    """
    _check_users(model, x, exclude)
    m, mask = positive_int("m", m), model.tree.mask_of(allowed)
    if mask.is_empty or not x.shape[0]:
        return _no_items(x, m)
    hidden = None if exclude is None or not exclude.shape[1] else model.tree.leaf_of_item(exclude)
    items, scores = scan_by_definition(model, x, mask, hidden, m, leaves_at_once)
    return items, _log_prob(model, scores)


def _no_items(x: Tensor, m: int) -> tuple[Tensor, Tensor]:
    """What is found where nothing is allowed."""
    items = torch.full((len(x), m), PAD, device=x.device)
    return items, items.float().fill_(-torch.inf)
