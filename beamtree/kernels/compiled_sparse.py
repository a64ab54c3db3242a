"""Sparse matrices of the closed form on a CPU, compiled by Numba: products, strongest entries, and ALS solves."""

import numpy as np

from beamtree.kernels.compiled_search import solve_dual
from beamtree.kernels.compiled_shared import FASTMATH, compiled, select, sort
from beamtree.mask import PAD


@compiled()
def without_repeats(x, weights, items, values):
    """The distinct items of one list x [T], PAD left out, with the weights of their first places; returns how many."""
    count = 0
    for t in range(len(x)):
        if x[t] != PAD:
            new = True
            for s in range(t):
                new &= x[s] != x[t]
            if new:
                items[count], values[count] = x[t], weights[t]
                count += 1
    return count


@compiled()
def compact_spans(events, start, stop, newest_first, weights, worth, offsets, items, values):
    """The same for lists events[start … stop] [B] each, of which at most len(weights) items count: from the beginning,
    or newest first from the end. They follow each other: offsets [B + 1], and as much of items and values. From the
    beginning, an item has the largest size of its events in `worth`, unless that is empty.
    """
    offsets[0] = 0
    for b in range(len(start)):
        first = offsets[b]
        if newest_first:
            newest = events[max(start[b], stop[b] - len(weights)) : stop[b]][::-1]
            offsets[b + 1] = first + without_repeats(newest, weights, items[first:], values[first:])
        else:
            oldest = events[start[b] : min(stop[b], start[b] + len(weights))]
            offsets[b + 1] = first + without_repeats(oldest, weights, items[first:], values[first:])
            for place in range(first, offsets[b + 1] if len(worth) else first):
                values[place] = 0
                for t in range(len(oldest)):
                    if oldest[t] == items[place]:
                        values[place] = max(values[place], abs(worth[start[b] + t]))


@compiled()
def distinct_crops(start, cut, stop, crops, times):
    """The distinct crops of each user, of R each [R, U], into crops [3, R U] and times [R U]; returns how many."""
    count = 0
    for user in range(start.shape[1]):
        first = count
        for drawn in range(len(start)):
            same = first
            while same < count and (
                crops[0, same] != start[drawn, user]
                or crops[1, same] != cut[drawn, user]
                or crops[2, same] != stop[drawn, user]
            ):
                same += 1
            if same == count:
                crops[0, same], crops[1, same], crops[2, same] = start[drawn, user], cut[drawn, user], stop[drawn, user]
                times[same] = 0
                count += 1
            times[same] += 1
    return count


@compiled()
def starts_of(numbers, start):
    """Where each number begins when they are sorted: into start [most + 2], zeros before; returns a copy [most + 1]."""
    for number in numbers:
        start[number + 1] += 1
    for number in range(len(start) - 1):
        start[number + 1] += start[number]
    return start[:-1].copy()


@compiled()
def keep_largest(entries, sizes, count, most):
    """Move at most `most` of the first `count` entries to the front, the largest first; returns how many."""
    kept = min(count, most)
    if count > most:
        select(entries, sizes, count, most)
    sort(entries, sizes, kept)
    return kept


@compiled()
def transpose(offsets, columns, values, new_offsets, new_columns, new_values):
    """Rows for columns; the new columns of a row rise. `new_offsets` [columns + 1] are zeros at the start."""
    place = starts_of(columns, new_offsets)
    for row in range(len(offsets) - 1):
        for entry in range(offsets[row], offsets[row + 1]):
            at = place[columns[entry]]
            place[columns[entry]] = at + 1
            new_columns[at], new_values[at] = row, values[entry]


@compiled()
def count_product(first, last, a_offsets, a_columns, b_offsets, b_columns, seen, counts):
    """How many entries the rows first … last of the product A B have [rows of A]; `seen` [columns of B] are all PAD."""
    for row in range(first, last):
        count = 0
        for entry in range(a_offsets[row], a_offsets[row + 1]):
            middle = a_columns[entry]
            for other in range(b_offsets[middle], b_offsets[middle + 1]):
                if seen[b_columns[other]] != row:
                    seen[b_columns[other]] = row
                    count += 1
        counts[row] = count


@compiled()
def product(
    first, last, a_offsets, a_columns, a_values, b_offsets, b_columns, b_values, sums, offsets, columns, values
):
    """The rows first … last of A B, with columns in no order; `sums` [columns of B] are NaN before and after."""
    for row in range(first, last):
        end = offsets[row]
        for entry in range(a_offsets[row], a_offsets[row + 1]):
            middle, factor = a_columns[entry], a_values[entry]
            for other in range(b_offsets[middle], b_offsets[middle + 1]):
                column = b_columns[other]
                if np.isnan(sums[column]):
                    sums[column] = factor * b_values[other]
                    columns[end] = column
                    end += 1
                else:
                    sums[column] += factor * b_values[other]
        for entry in range(offsets[row], end):
            values[entry] = sums[columns[entry]]
            sums[columns[entry]] = np.nan


@compiled(fastmath=FASTMATH)
def multiply(first, last, offsets, columns, values, dense, result):
    """The rows first … last of a sparse matrix times a dense one."""
    for row in range(first, last):
        total = result[row]
        total[:] = 0
        for entry in range(offsets[row], offsets[row + 1]):
            vector, value = dense[columns[entry]], values[entry]
            for i in range(len(total)):
                total[i] += value * vector[i]


@compiled()
def group(row, start, order):
    """The entries of each row, in the order they have: start [rows + 1], zeros before, and order [E]."""
    place = starts_of(row, start)
    for entry in range(len(row)):
        order[place[row[entry]]] = entry
        place[row[entry]] += 1


@compiled()
def strongest(first, last, start, order, column, value, most, counts, columns, values):
    """The `most` entries of largest absolute value of the rows first … last, strongest first, into [rows, most]."""
    longest = 1
    for row in range(first, last):
        longest = max(longest, start[row + 1] - start[row])
    entries, sizes = np.empty(longest, np.int64), np.empty(longest, np.float32)
    for row in range(first, last):
        count = 0
        for i in range(start[row], start[row + 1]):
            if value[order[i]] != 0:
                entries[count], sizes[count] = order[i], abs(value[order[i]])
                count += 1
        counts[row] = keep_largest(entries, sizes, count, most)
        for i in range(counts[row]):
            columns[row, i], values[row, i] = column[entries[i]], value[entries[i]]


@compiled()
def thresholds(first, last, weights, count, least):
    """The count-th largest absolute value of the rows first … last [rows]."""
    nodes, sizes = np.empty(weights.shape[1], np.int64), np.empty(weights.shape[1], np.float32)
    for row in range(first, last):
        for i in range(weights.shape[1]):
            sizes[i] = abs(weights[row, i])
        select(nodes, sizes, len(sizes), count)
        least[row] = sizes[count - 1]
        for i in range(count):
            least[row] = min(least[row], sizes[i])


@compiled()
def strongest_of_dense(first, last, weights, least, most, counts, columns, values):
    """`strongest` of a dense matrix, of the entries that are at least `least` [columns] in size."""
    entries, sizes = np.empty(weights.shape[1], np.int64), np.empty(weights.shape[1], np.float32)
    for row in range(first, last):
        count = 0
        for i in range(weights.shape[1]):
            size = abs(weights[row, i])
            if size >= least[i] and size > 0:
                entries[count], sizes[count] = i, size
                count += 1
        counts[row] = keep_largest(entries, sizes, count, most)
        for i in range(counts[row]):
            columns[row, i], values[row, i] = entries[i], weights[row, entries[i]]


@compiled()
def recalls(first, last, scores, weights, gain, real, cuts, result):
    """What the relevant items of users first … last add to recall at each cut, in the order of weighted scores.

    All trials of a user are made together: what they share is summed once, and only relevant items are ranked.

    Args:
        first: user.
        last: one after the last.
        scores: of each part for each item [U, C, parts].
        weights: of the parts in each trial [T, parts].
        gain: what each item adds to its user's recall [U, C].
        real: which items there are [U, C].
        cuts: numbers of items, rising.
        result: [T, U, cuts].
    """
    width = scores.shape[1]
    same, changing = np.empty(len(weights[0]), np.int64), np.empty(len(weights[0]), np.int64)  # parts by their weights
    num_same = num_changing = 0
    for part in range(len(weights[0])):
        if np.all(weights[:, part] == weights[0, part]):
            same[num_same] = part
            num_same += 1
        else:
            changing[num_changing] = part
            num_changing += 1
    shared, total = np.empty(width, np.float32), np.empty(width, np.float32)
    columns = np.empty((num_changing, width), np.float32)
    relevant, gains = np.empty(width, np.int64), np.empty(width, np.float32)
    for user in range(first, last):
        count = num_relevant = 0
        for i in range(width):
            if real[user, i]:
                value = np.float32(0)
                for k in range(num_same):
                    value += weights[0, same[k]] * scores[user, i, same[k]]
                shared[count] = value
                for k in range(num_changing):
                    columns[k, count] = scores[user, i, changing[k]]
                if gain[user, i] > 0:
                    relevant[num_relevant], gains[num_relevant] = count, gain[user, i]
                    num_relevant += 1
                count += 1
        for trial in range(len(weights)):
            for i in range(count):
                total[i] = shared[i]
            for k in range(num_changing):
                weight = weights[trial, changing[k]]
                for i in range(count):
                    total[i] += weight * columns[k, i]
            result[trial, user] = 0
            for r in range(num_relevant):
                value, above = total[relevant[r]], np.int32(0)
                for other in total[: relevant[r]]:  # equal scores have the order of the items
                    above += np.int32(other >= value)
                for other in total[relevant[r] + 1 : count]:
                    above += np.int32(other > value)
                for cut in range(len(cuts)):
                    if above < cuts[cut]:
                        result[trial, user, cut] += gains[r]


@compiled(fastmath=FASTMATH)
def fold_in_rows(rows, offsets, columns, weights, vectors, gram_diagonal, penalty, unobserved_weight, result):
    """`scorers.factors.fold_in` of the vectors [n, dim] of the entries of some rows; empty weights are all 1.

    Rows are not longer than a vector.
    """
    dim = vectors.shape[1]
    chosen, shrunk = np.empty((dim, dim), np.float32), np.empty((dim, dim), np.float32)
    system, solution = np.empty((dim, dim), np.float32), np.empty(dim, np.float32)
    diagonal, right = np.empty(dim, np.float32), np.ones(dim, np.float32)
    for row in rows:
        count = offsets[row + 1] - offsets[row]
        total = np.float32(count)
        if len(weights) > 0:
            total = np.float32(0)
            for s in range(count):
                right[s] = np.sqrt(weights[offsets[row] + s])
                total += weights[offsets[row] + s]
        for i in range(dim):
            diagonal[i] = np.float32(1) / (gram_diagonal[i] + penalty * (total + unobserved_weight))
        for s in range(count):
            vector, root = vectors[columns[offsets[row] + s]], right[s]
            for i in range(dim):
                chosen[s, i] = vector[i] * root
                shrunk[s, i] = vector[i] * root * diagonal[i]
        solve_dual(count, chosen, shrunk, right, system, solution)
        for i in range(dim):
            result[row, i] = 0
        for s in range(count):
            for i in range(dim):
                result[row, i] += shrunk[s, i] * solution[s]


@compiled()
def predictors(block, offsets, columns, values, diagonal, penalty, most, total, chosen):
    """The items that predict a block best, and the block, in rising order, into `chosen`; returns how many.

    They are ranked by Σ a²/(d + penalty) over the entries a of the block's rows, where d is the diagonal of the
    predictor. `total` are zeros for all items, before and after.
    """
    entries = 0
    for item in block:
        entries += offsets[item + 1] - offsets[item]
    items, count = np.empty(min(entries, len(total)), np.int64), 0
    for item in block:
        for entry in range(offsets[item], offsets[item + 1]):
            source = columns[entry]
            strength = values[entry] * values[entry] / (diagonal[source] + penalty)
            if total[source] == 0 and strength > 0:
                items[count] = source
                count += 1
            total[source] += strength
    items = np.sort(items[:count])  # so that the lower number comes first where strengths are equal
    strengths = np.empty(count, np.float32)
    for i in range(count):
        strengths[i] = total[items[i]]
        total[items[i]] = 0
    least = np.float32(-1)
    if count > most:
        order, sizes = np.arange(count), strengths.copy()
        select(order, sizes, count, most)
        least = np.min(sizes[:most])
    kept = 0
    for equal in range(2):  # first those above the least, then as many equal ones as there is room for
        for i in range(count):
            if kept < most and (strengths[i] == least if equal else strengths[i] > least):
                chosen[kept] = items[i]
                total[items[i]] = 1
                kept += 1
    for item in block:
        if total[item] == 0:
            chosen[kept] = item
            kept += 1
    for i in range(kept):
        total[chosen[i]] = 0
    chosen[:kept] = np.sort(chosen[:kept])
    return kept


@compiled()
def dense_rows(which, among, offsets, columns, values, place, result):
    """Some rows, of the columns `among` alone: zeros [rows, columns] before; `place` are zeros for all items."""
    for i in range(len(among)):
        place[among[i]] = i + 1
    for i in range(len(which)):
        for entry in range(offsets[which[i]], offsets[which[i] + 1]):
            at = place[columns[entry]]
            if at > 0:
                result[i, at - 1] = values[entry]
    for item in among:
        place[item] = 0


@compiled()
def dense_block(chosen, offsets, columns, values, rank, dense, place, system):
    """The block of chosen items of a symmetric matrix: zeros [S, S] before; `place` are zeros for all items.

    What two popular items share is read from `dense`, by their ranks; rank is negative for all other items.
    """
    for i in range(len(chosen)):
        place[chosen[i]] = i + 1
    for i in range(len(chosen)):
        own = rank[chosen[i]]
        if own >= 0:
            for j in range(len(chosen)):
                if rank[chosen[j]] >= 0:
                    system[i, j] = dense[own, rank[chosen[j]]]
        else:
            for entry in range(offsets[chosen[i]], offsets[chosen[i] + 1]):
                at = place[columns[entry]]
                if at > 0:
                    system[i, at - 1] = values[entry]
                    system[at - 1, i] = values[entry]
    for item in chosen:
        place[item] = 0


@compiled()
def compress(matrix, offsets, columns, values):
    """The entries of a dense matrix that are not 0, row by row, while there is room; returns how many there are."""
    count = 0
    for row in range(len(matrix)):
        offsets[row] = count
        for column in range(matrix.shape[1]):
            if matrix[row, column] != 0:
                if count < len(columns):
                    columns[count], values[count] = column, matrix[row, column]
                count += 1
    offsets[len(matrix)] = count
    return count


@compiled(fastmath=FASTMATH)
def conjugate_gradients(offsets, columns, values, diagonal, right, rounds, tolerance, solution):
    """Solve a positive definite system for all columns of a right side [S, b]; returns whether it converged.

    The system is scaled by its diagonal. Residuals are to fall to `tolerance` times those of 0 in at most so many
    rounds, at an even rate; where they do not, the rest is not computed. `solution` [S, b] are zeros before.
    """
    size, width = right.shape
    residual, direction, image = right.copy(), np.empty_like(right), np.empty_like(right)
    norm, first, along, step = np.zeros((4, width), np.float32)
    for row in range(size):
        scale = np.float32(1) / diagonal[row]
        for i in range(width):
            direction[row, i] = residual[row, i] * scale
            norm[i] += residual[row, i] * direction[row, i]
    first[:] = norm
    for i in range(width):
        if not 0 <= first[i] < np.inf or (first[i] == 0 and np.any(right[:, i] != 0)):  # beyond float32
            return False
    for done in range(1, rounds + 1):
        along[:] = 0
        for row in range(size):
            total, own = image[row], direction[row]
            total[:] = 0
            for entry in range(offsets[row], offsets[row + 1]):
                value, other = values[entry], direction[columns[entry]]
                for i in range(width):
                    total[i] += value * other[i]
            for i in range(width):
                along[i] += total[i] * own[i]
        for i in range(width):
            step[i] = norm[i] / along[i] if along[i] > 0 else np.float32(0)
        along[:] = 0  # from here on the new norm
        for row in range(size):
            scale, x, r, p, q = np.float32(1) / diagonal[row], solution[row], residual[row], direction[row], image[row]
            for i in range(width):
                x[i] += step[i] * p[i]
                r[i] -= step[i] * q[i]
                along[i] += r[i] * r[i] * scale
        worst = np.float32(0)
        for i in range(width):
            if first[i] > 0 and not along[i] / first[i] <= worst:  # also where it is not a number
                worst = along[i] / first[i]
            step[i] = along[i] / norm[i] if norm[i] > 0 else np.float32(0)
            norm[i] = along[i]
        if worst <= tolerance**2:
            return True
        if not worst <= 100 * tolerance ** (2 * done / rounds):
            return False
        for row in range(size):
            scale, r, p = np.float32(1) / diagonal[row], residual[row], direction[row]
            for i in range(width):
                p[i] = r[i] * scale + step[i] * p[i]
    return False


@compiled()
def largest_of_rows(weights, most, chosen):
    """The columns of the `most` largest absolute values of each row, in no order [rows, most]."""
    columns, sizes = np.empty(weights.shape[1], np.int64), np.empty(weights.shape[1], np.float32)
    for row in range(len(weights)):
        for i in range(weights.shape[1]):
            columns[i], sizes[i] = i, abs(weights[row, i])
        if most < len(sizes):
            select(columns, sizes, len(sizes), most)
        chosen[row] = columns[:most]


@compiled()
def near_items(
    first, last, starts, events, of_user, items, worth, window, backward, scale, most, sums, counts, columns, values
):
    """Sequential rules of the items first … last, strongest first, into [items, most].

    Args:
        first: item.
        last: one after the last.
        starts: where the events of each item start in `events` [M + 1].
        events: numbers of events, item by item.
        of_user: the user of each event.
        items: the item of each event.
        worth: the weight of each event as a partner; empty where all are 1.
        window: how many events apart two of a pair are at most.
        backward: weight of a pair in the opposite order; in order it is 1, and either is divided by the gap.
        scale: that the weight of each partner is multiplied by [M].
        most: partners that are kept.
        sums: zeros for all items, before and after.
        counts: the number of partners [M].
        columns: the partners.
        values: their weights.
    """
    room = 1
    for item in range(first, last):
        room = max(room, min(len(sums), 2 * window * (starts[item + 1] - starts[item])))
    partners, sizes = np.empty(room, np.int64), np.empty(room, np.float32)
    for item in range(first, last):
        found = 0
        for i in range(starts[item], starts[item + 1]):
            event = events[i]
            for other in range(max(0, event - window), min(len(items), event + window + 1)):
                if other == event or of_user[other] != of_user[event]:
                    continue
                weight = np.float32(1 / (other - event)) if other > event else np.float32(backward / (event - other))
                if len(worth) > 0:
                    weight *= worth[other]
                if weight == 0:
                    continue
                partner = items[other]
                if sums[partner] == 0:
                    partners[found] = partner
                    found += 1
                sums[partner] += weight
        for i in range(found):
            sizes[i] = sums[partners[i]] * scale[partners[i]]
            sums[partners[i]] = 0
        counts[item] = keep_largest(partners, sizes, found, most)
        columns[item, : counts[item]] = partners[: counts[item]]
        values[item, : counts[item]] = sizes[: counts[item]]
