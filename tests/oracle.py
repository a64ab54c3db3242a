"""The paper's definitions, written as plainly and slowly as they read. No tensor code is shared with the package.

A tree is given by its leaf slots (an item or None), its arity b and its height H; nodes are numbered level by level.
"""

import itertools
import math


def nodes_of(b, level):
    first = (b**level - 1) // (b - 1)
    return range(first, first + b**level)


def parent(b, n):
    return (n - 1) // b


def children(b, n):
    return [b * n + i for i in range(1, b + 1)]


def leaves_below(slots, b, height, n):
    """L(n), as node ids."""
    first = nodes_of(b, height).start
    if n >= first:
        return [n]
    return [leaf for child in children(b, n) for leaf in leaves_below(slots, b, height, child)]


def items_below(slots, b, height, n):
    first = nodes_of(b, height).start
    return [slots[leaf - first] for leaf in leaves_below(slots, b, height, n) if slots[leaf - first] is not None]


def only(slots, allowed, excluded=()):
    """The leaf slots with nothing on them but what may be found: a filter is a tree with the other leaves empty."""
    return [item if item in allowed and item not in excluded else None for item in slots]


def z(slots, b, height, n, relevant):
    """Eq. 1."""
    return any(item in relevant for item in items_below(slots, b, height, n))


def z_hat(slots, b, height, n, relevant, score):
    """Eq. 15; a tie goes to the relevant child. Empty children are not children."""
    first = nodes_of(b, height).start
    if n >= first:
        return slots[n - first] in relevant
    real = [c for c in children(b, n) if items_below(slots, b, height, c)]
    if not real:
        return False
    best = max(score(c) for c in real)
    return any(z_hat(slots, b, height, c, relevant, score) for c in real if score(c) == best)


def beam_search(slots, b, height, k, prob, admit_empty=False, first_level=1):
    """Eq. 3: (B̃_h, B_h) of each level; prob(n) compares nodes. k is a number, or a list with one of each level."""
    beam, found = list(nodes_of(b, first_level - 1)), []
    widths = k if isinstance(k, list) else [k] * (height + 1 - first_level)
    for k in widths:
        candidates = [c for n in beam for c in children(b, n) if admit_empty or items_below(slots, b, height, c)]
        beam = sorted(candidates, key=prob, reverse=True)[:k]
        found.append((candidates, beam))
    return found


def path_prob(b, n, logit, first_level=1):
    """p_g of a chained model: the product of sigmoids from the first level down to n."""
    p = 1.0
    while n >= nodes_of(b, first_level).start:
        p *= 1 / (1 + math.exp(-logit(n)))
        n = parent(b, n)
    return p


def bce(label, g):
    return math.log(1 + math.exp(-g)) if label else math.log(1 + math.exp(g))


def p_star(slots, b, height, n, eta):
    """Eq. 9."""
    return max((eta[item] for item in items_below(slots, b, height, n)), default=0.0)


def z_star(slots, b, height, n, eta, relevant):
    """Eq. 13; among equals the first leaf."""
    items = items_below(slots, b, height, n)
    return bool(items) and max(items, key=lambda item: eta[item]) in relevant


def regret(eta, retrieved, m):
    """Eq. 10 for one x."""
    best = sorted(eta, reverse=True)[:m]
    return (sum(best) - sum(eta[item] for item in retrieved[:m])) / m


def reciprocal_rank(retrieved, relevant, m):
    """One over the rank, counted from 1, of the first item that is relevant."""
    for rank, item in enumerate(retrieved[:m], start=1):
        if item in relevant:
            return 1 / rank
    return 0.0


def precision_recall_f(retrieved, relevant, m):
    """Eqs. 5-7."""
    found = len([item for item in retrieved[:m] if item in relevant])
    p, r = found / m, found / len(relevant)
    return p, r, (2 * p * r / (p + r) if p + r else 0.0)


def answer_by_rules(scores, kinds, limits, pins, m, diversity=0.0, vectors=None, pool=100, new=(), least=0):
    """The answer that `beamtree.query.rules` defines, from all allowed items; all selections are tried.

    Args:
        scores: of each allowed item, with boosts.
        kinds: of each item its value in each column, None for none.
        limits: of each column.
        pins: (place, item) in the order of places.
        m: how many items.
        diversity: d.
        vectors: of each item.
        pool: how many candidates diversity chooses from.
        new: the new items.
        least: how many of them the answer has at least, where it can.
    """

    def keeps(items):
        for column, limit in enumerate(limits):
            values = [kinds[item][column] for item in items if kinds[item][column] is not None]
            if any(values.count(value) > limit for value in values):
                return False
        return True

    def largest(items):
        """The most items, up to m, of a selection with these."""
        others = [item for item in scores if item not in items]
        for size in range(min(m - len(items), len(others)), -1, -1):
            if any(keeps([*items, *more]) for more in itertools.combinations(others, size)):
                return len(items) + size
        return 0

    holds = []
    for place, item in pins:
        if place <= m and item in scores and keeps([other for _, other in holds] + [item]):
            holds.append((place, item))
    pinned = [item for _, item in holds]
    size, answer = largest(pinned), []
    best = max((score for item, score in scores.items() if item not in pinned), default=0.0)
    while len(answer) < size:
        left = [(place, item) for place, item in holds if item not in answer]
        if left and (left[0][0] <= len(answer) + 1 or len(answer) + len(left) == size):
            answer.append(left[0][1])
            continue
        fixed = {*answer, *pinned}
        candidates = [
            item for item in scores if item not in fixed and keeps([*fixed, item]) and largest([*fixed, item]) == size
        ]
        candidates.sort(key=lambda item: -scores[item])
        missing = least - len(fixed & set(new))
        if missing > 0 and size - len(fixed) <= missing:
            candidates = [item for item in candidates if item in new] or candidates
        if diversity:

            def value(item):
                cosines = [cosine(vectors[item], vectors[other]) for other in answer]
                return (1 - diversity) * scores[item] / (best or 1.0) - diversity * max(cosines, default=0.0)

            candidates = [max(candidates[:pool], key=value)]
        answer.append(candidates[0])
    return answer


def cosine(one, other):
    lengths = math.hypot(*one) * math.hypot(*other)
    return sum(a * b for a, b in zip(one, other, strict=True)) / lengths if lengths else 0.0


# Trends


def trend_counts(rows, half_life, day=86400):
    """By item: Σ weight · 2^(-age / half_life) of rows (user, item, second, weight).

    Days without a row age nothing. Of a user's rows with an item on one day only the one that counts most does.
    """
    days, newest = {second // day for _, _, second, _ in rows}, max(second for _, _, second, _ in rows)
    best = {}
    for user, item, second, weight in rows:
        empty = sum(each not in days for each in range(second // day, newest // day))
        share = max(weight, 0) * 2 ** (-(newest - second - empty * day) / half_life)
        best[user, item, second // day] = max(share, best.get((user, item, second // day), 0.0))
    counts = {}
    for (_, item, _), share in best.items():
        counts[item] = counts.get(item, 0.0) + share
    return counts
