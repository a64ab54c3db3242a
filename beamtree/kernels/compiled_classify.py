"""The search for the labels of documents on a CPU, compiled by Numba.

What each function computes is defined in `beamtree.classify`; the tests hold them against the plain definitions there.
"""

import numpy as np

from beamtree.kernels.compiled_search import REORDERED, _half, _rank, _select, _sort, compiled

BINS = 256  # of similarities
SMALL = np.float32(-9)  # the log of probabilities that are left out where there are enough labels
NEGLIGIBLE = np.float32(1e-3)  # probabilities of the encoder that are left out


@compiled()
def _best(scores, count, most):
    """The indices of the `most` highest of scores[:count], best first, of equal ones the lower index."""
    most, indices, falling = min(most, count), np.arange(count), scores[:count].copy()
    _select(indices, falling, count, most)
    _sort(indices, falling, most)
    return indices[:most]


@compiled()
def _add_product(row, product, similarity, touched, number):
    """Add to the similarity of a row, which is NaN if it was not touched before; returns how many rows are touched."""
    before = similarity[row]
    is_new = before != before
    touched[number] = row
    similarity[row] = (np.float32(0) if is_new else before) + product
    return number + is_new  # no branch, which could not be foreseen


@compiled(fastmath=REORDERED)
def _similar(columns, values, offsets, rows, row_values, budget, similarity, touched):
    """Products of a document with the rows of an inverted index: into `similarity`; returns how many were touched.

    `similarity` is NaN where a row was not touched: sums of signed products may be 0.
    Features with the fewest rows come first, and those that would exceed `budget` rows in all are left out.
    """
    sizes = np.empty(len(columns), np.int64)
    for index in range(len(columns)):
        sizes[index] = offsets[columns[index] + 1] - offsets[columns[index]]
    number, read = 0, 0
    for place in np.argsort(sizes, kind="mergesort"):
        start, end, value = offsets[columns[place]], offsets[columns[place] + 1], values[place]
        if read > 0 and read + end - start > budget:
            break
        read += end - start
        for entry in range(start, end):
            number = _add_product(rows[entry], value * _half(row_values[entry]), similarity, touched, number)
    return number


@compiled()
def _add(label, score, totals, labels, number):
    """Add to the score of a label, and list it if it had none; returns how many labels are listed."""
    if totals[label] == 0:
        labels[number] = label
        number += 1
    totals[label] += score
    return number


@compiled()
def _nearest(touched, similarity, found, most):
    """Move the `most` rows with the highest similarities to the front of `touched`, with those about as similar.

    Returns how many these are; the similarities of the others are set to NaN.
    """
    if found <= most:
        return found
    highest = np.float32(0)
    for index in range(found):
        highest = max(highest, similarity[touched[index]])
    counts, scale = np.zeros(BINS, np.int64), np.float32(BINS - 1) / max(highest, np.float32(1e-30))
    for index in range(found):
        counts[np.int64(max(similarity[touched[index]], np.float32(0)) * scale)] += 1
    lowest, total = BINS, 0
    while lowest > 0 and total < most:
        lowest -= 1
        total += counts[lowest]
    kept = 0
    for index in range(found):
        row = touched[index]
        if np.int64(max(similarity[row], np.float32(0)) * scale) >= lowest:
            touched[kept] = row
            kept += 1
        else:
            similarity[row] = np.nan
    return kept


@compiled(fastmath=REORDERED)
def nearest_rows(first, last, offsets, columns, values, index, similarity, touched, nearest, cosines):
    """The rows of an inverted index with the highest products for each of the rows first … last, best first."""
    starts, others, other_values = index
    most = nearest.shape[1]
    for row in range(first, last):
        found = 0
        for place in range(offsets[row], offsets[row + 1]):
            value = values[place]
            for entry in range(starts[columns[place]], starts[columns[place] + 1]):
                found = _add_product(others[entry], value * other_values[entry], similarity, touched, found)
        found = _nearest(touched, similarity, found, most)
        scores = np.empty(found, np.float32)
        for place in range(found):
            scores[place] = max(similarity[touched[place]], np.float32(0))
            similarity[touched[place]] = np.nan
        _select(touched, scores, found, most)
        count = min(found, most)
        _sort(touched, scores, count)
        nearest[row, :count], cosines[row, :count] = touched[:count], scores[:count]


@compiled(fastmath=REORDERED)
def _add_memory(columns, values, memory, votes, labels, number, similarity, touched, weight, power, most, budget):
    """Add the shares of the labels of the nearest documents to `votes`; returns how many labels are listed."""
    offsets, rows, row_values, label_offsets, label_numbers = memory
    found = _similar(columns, values, offsets, rows, row_values, budget, similarity, touched)
    found = _nearest(touched, similarity, found, most)
    scores, total = np.empty(found, np.float32), np.float32(0)
    for index in range(found):
        scores[index] = max(similarity[touched[index]], np.float32(0))
        similarity[touched[index]] = np.nan
    _select(touched, scores, found, most)
    nearest = min(found, most)
    for score in scores[:nearest]:
        total += score**power
    for index in range(nearest):
        share = weight * scores[index] ** power / total
        if share > 0:
            row = touched[index]
            for entry in range(label_offsets[row], label_offsets[row + 1]):
                number = _add(label_numbers[entry], share, votes, labels, number)
    return number


@compiled(fastmath=REORDERED)
def _add_names(columns, values, names, votes, labels, number, similarity, touched, weight, budget):
    """Add the squared cosines of the names of labels to `votes`; returns how many labels are listed."""
    offsets, rows, row_values = names
    found = _similar(columns, values, offsets, rows, row_values, budget, similarity, touched)
    for index in range(found):
        label = touched[index]
        share = weight * similarity[label] ** 2
        similarity[label] = np.nan
        if share > 0:
            number = _add(label, share, votes, labels, number)
    return number


@compiled(fastmath=REORDERED)
def _add_encoder(columns, values, encoder, votes, labels, number, weight):
    """Add the softmax of ⟨u(x), v⟩ + b over labels to `votes`; returns how many labels are listed."""
    vectors, label_vectors, biases = encoder
    u = np.zeros(vectors.shape[1], np.float32)
    for index in range(len(columns)):
        own, value = vectors[columns[index]], values[index]
        for place in range(len(u)):
            u[place] += value * own[place]
    odds, highest, total = np.empty(len(biases), np.float32), -np.float32(np.inf), np.float32(0)
    for label in range(len(biases)):
        product = biases[label]
        for place in range(len(u)):
            product += u[place] * label_vectors[label, place]
        odds[label] = product
        highest = max(highest, product)
    for label in range(len(odds)):
        odds[label] = np.exp(odds[label] - highest)
        total += odds[label]
    for label in range(len(odds)):
        share = odds[label] / total
        if share > NEGLIGIBLE:
            number = _add(label, weight * share, votes, labels, number)
    return number


@compiled(fastmath=REORDERED)
def _children(node, columns, values, forest, linear, sums):
    """⟨w, x⟩ + b of the children of a node, by the features that both have."""
    starts, features, entry_starts, children, weights, biases = linear
    first, last = forest[2][node], forest[3][node]
    for child in range(first, last):
        sums[child - first] = biases[child]
    low = starts[node]
    for index in range(len(columns)):  # both rise
        low += _rank(features[low : starts[node + 1]], columns[index])
        if low == starts[node + 1]:
            break
        if features[low] == columns[index]:
            value = values[index]
            for entry in range(entry_starts[low], entry_starts[low + 1]):
                sums[children[entry]] += value * _half(weights[entry])


@compiled()
def _beam(tree, columns, values, forest, linear, lifted, allowed, allowed_below, beam, most, least, of_groups):
    """The leaves below the beam of a tree that may be found, and the logs of their probabilities, `least` or more.

    The log of a label's probability is its own, and `of_groups` times that of the groups above it.
    """
    roots, heights, starts, ends, _, label_of_node, _ = forest
    nodes, paths = roots[tree : tree + 1], np.zeros(1, np.float32)
    for level in range(1, heights[tree] + 1):
        room = 0
        for node in nodes:
            room += ends[node] - starts[node]
        next_nodes, next_paths = np.empty(room, np.int64), np.empty(room, np.float32)
        scores, sums = np.empty(room, np.float32), np.empty(room, np.float32)
        count = 0
        for place in range(len(nodes)):
            _children(nodes[place], columns, values, forest, linear, sums)
            above = paths[place] * of_groups if level == heights[tree] else paths[place]
            for child in range(starts[nodes[place]], ends[nodes[place]]):
                miss = max(np.float32(1) - sums[child - starts[nodes[place]]], np.float32(0))
                path = above - miss * miss * miss
                if level == heights[tree]:
                    if path >= least and allowed[label_of_node[child]]:
                        next_nodes[count], next_paths[count] = child, path
                        count += 1
                elif allowed_below[child] > 0:
                    next_nodes[count], next_paths[count] = child, path
                    scores[count] = np.exp(path) + lifted[child]
                    count += 1
        if level == heights[tree]:
            return next_nodes[:count], next_paths[:count]
        order = _best(scores, count, max(beam, min(count, 4 * beam)))
        kept, labels_below = 0, 0
        while kept < len(order) and (kept < beam or labels_below < most):
            labels_below += allowed_below[next_nodes[order[kept]]]
            kept += 1
        if labels_below < most and len(order) < count:  # few labels are allowed
            order = _best(scores, count, count)
            while kept < count and labels_below < most:
                labels_below += allowed_below[next_nodes[order[kept]]]
                kept += 1
        nodes, paths = next_nodes[order[:kept]], next_paths[order[:kept]]
    return nodes, paths


@compiled()
def _lift(tree, labels, votes, forest, allowed, lifted):
    """Give the leaves of labels, and the nodes above, the highest vote of an allowed label below."""
    parent, leaf_of_label = forest[4], forest[6]
    for index in range(len(labels)):
        node = leaf_of_label[tree, labels[index]] if allowed[labels[index]] else -1
        while node >= 0 and lifted[node] < votes[index]:
            lifted[node] = votes[index]
            node = parent[node]


@compiled()
def _clear(tree, labels, forest, lifted):
    """Make `lifted` zero again."""
    parent, leaf_of_label = forest[4], forest[6]
    for label in labels:
        node = leaf_of_label[tree, label]
        while node >= 0 and lifted[node] > 0:
            lifted[node] = 0
            node = parent[node]


@compiled()
def search(
    first, last, offsets, columns, values, forest, linear, memory, names, encoder, weights, allowed, allowed_below,
    scratch, beam, most, found, scores,
):  # fmt: skip
    """The best labels of the documents first … last; see `beamtree.classify.model`.

    Args:
        first: document.
        last: one after the last.
        offsets: where the features of each document start.
        columns: features, rising.
        values: their values.
        forest: of each tree its root and height; of each node its first child, one after the last, its parent and its
            label; the leaf of each label in each tree.
        linear: per node the features that its children have weights for, and these weights.
        memory: an inverted index of the training documents, and their labels.
        names: an inverted index of the names of labels.
        encoder: vectors of features and of labels, and biases.
        weights: of memory and names, power of similarities, neighbours, rows that are read, weight of the encoder, and
            how much groups count in the probability of a label.
        allowed: whether each label may be found.
        allowed_below: number of such labels below each node.
        scratch: zeros by label, room for as many numbers and one more, NaN by row of an index, the same room, and zeros
            by node.
        beam: k.
        most: m.
        found: labels [n, m], -1 where there are no more.
        scores: of these.
    """
    memory_weight, name_weight, power, neighbours, budget, encoder_weight, of_groups = weights
    roots, label_of_node = forest[0], forest[5]
    totals, labels, similarity, touched, lifted = scratch
    for document in range(first, last):
        own = slice(offsets[document], offsets[document + 1])
        x, v = columns[own], values[own]
        number = 0
        if memory_weight > 0:
            number = _add_memory(
                x, v, memory, totals, labels, number, similarity, touched, memory_weight, power, neighbours, budget
            )
        if name_weight > 0:
            number = _add_names(x, v, names, totals, labels, number, similarity, touched, name_weight, budget)
        if encoder_weight > 0:
            number = _add_encoder(x, v, encoder, totals, labels, number, encoder_weight)
        votes, num_votes = totals[labels[:number]], number
        for least in (SMALL, -np.float32(np.inf)):
            for tree in range(len(roots)):
                _lift(tree, labels[:num_votes], votes, forest, allowed, lifted)
                leaves, paths = _beam(
                    tree, x, v, forest, linear, lifted, allowed, allowed_below, beam, most, least, of_groups
                )
                _clear(tree, labels[:num_votes], forest, lifted)
                for place in range(len(leaves)):
                    p = max(np.exp(paths[place]), np.float32(1e-30)) / len(roots)
                    number = _add(label_of_node[leaves[place]], p, totals, labels, number)
            count = 0
            for label in labels[:number]:
                count += allowed[label]
            if count >= most or least < SMALL:
                break
            totals[labels[num_votes:number]] = 0  # too few: once more, with all
            totals[labels[:num_votes]] = votes
            number = num_votes
        count, candidates = 0, np.empty(number, np.int64)
        for label in labels[:number]:
            if allowed[label]:
                candidates[count] = label
                count += 1
        order = _best(totals[candidates[:count]], count, most)
        found[document], scores[document] = -1, 0
        for place in range(len(order)):
            label = candidates[order[place]]
            found[document, place], scores[document, place] = label, totals[label]
        totals[labels[:number]] = 0
