"""The search for the labels of documents on a CPU, compiled by Numba.

What each function computes is defined in `beamtree.classify`; the tests hold them against the plain definitions there.
"""

import numpy as np

from beamtree.kernels.classify import EXAMPLE_POWER
from beamtree.kernels.compiled_shared import FASTMATH, best, compiled, half, prefetch, select, sort

BINS = 256  # of similarities
MIN_LOG_PROB = np.float32(-7.9)  # below, labels are left out: one without a feature of its own has about -8
NEGLIGIBLE = np.float32(1e-3)  # probabilities of the encoder that are left out


@compiled()
def _add_product(row, product, similarity, touched, number):
    """Add to the similarity of a row, which is NaN if it was not touched before; returns how many rows are touched."""
    before = similarity[row]
    is_new = before != before
    touched[number] = row
    similarity[row] = (np.float32(0) if is_new else before) + product
    return number + is_new  # no branch, which could not be foreseen


@compiled(fastmath=FASTMATH)
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
            number = _add_product(rows[entry], value * half(row_values[entry]), similarity, touched, number)
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
def _nearest(touched, similarity, found, most, products):
    """Move the `most` rows with the highest similarities to the front of `touched`, with those about as similar.

    Returns how many these are. Similarities, 0 or more, go into `products`; in `similarity` all are set to NaN.
    """
    highest = np.float32(0)
    for index in range(found):
        product = max(similarity[touched[index]], np.float32(0))
        similarity[touched[index]] = np.nan
        products[index] = product
        highest = max(highest, product)
    if found <= most:
        return found
    counts, scale = np.zeros(BINS, np.int64), np.float32(BINS - 1) / max(highest, np.float32(1e-30))
    for index in range(found):
        counts[np.int64(products[index] * scale)] += 1
    lowest, total = BINS, 0
    while lowest > 0 and total < most:
        lowest -= 1
        total += counts[lowest]
    kept = 0
    for index in range(found):
        touched[kept], products[kept] = touched[index], products[index]
        kept += int(np.int64(products[index] * scale) >= lowest)
    return kept


@compiled(fastmath=FASTMATH)
def nearest_rows(first, last, offsets, columns, values, index, similarity, touched, products, nearest, cosines):
    """The rows of an inverted index with the highest products for each of the rows first … last, best first."""
    starts, others, other_values = index
    most = nearest.shape[1]
    for row in range(first, last):
        found = 0
        for place in range(offsets[row], offsets[row + 1]):
            value = values[place]
            for entry in range(starts[columns[place]], starts[columns[place] + 1]):
                found = _add_product(others[entry], value * other_values[entry], similarity, touched, found)
        found = _nearest(touched, similarity, found, most, products)
        select(touched, products, found, most)
        count = min(found, most)
        sort(touched, products, count)
        nearest[row, :count], cosines[row, :count] = touched[:count], products[:count]


@compiled(fastmath=FASTMATH)
def _add_memory(columns, values, memory, votes, labels, number, scratch, weight, power, most, budget):
    """Add the shares of the labels of the nearest documents to `votes`; returns how many labels are listed."""
    offsets, rows, row_values, label_offsets, label_numbers = memory
    similarity, touched, products = scratch
    found = _similar(columns, values, offsets, rows, row_values, budget, similarity, touched)
    found = _nearest(touched, similarity, found, most, products)
    select(touched, products, found, most)
    nearest, total = min(found, most), np.float32(0)
    for index in range(nearest):
        products[index] = products[index] * products[index] if power == 2 else products[index] ** power
        total += products[index]
        prefetch(label_offsets, touched[index], touched[index] + 2)
    for index in range(nearest):
        prefetch(label_numbers, label_offsets[touched[index]], label_offsets[touched[index] + 1])
    for index in range(nearest):
        share = weight * products[index] / total
        if share > 0:
            row = touched[index]
            for entry in range(label_offsets[row], label_offsets[row + 1]):
                number = _add(label_numbers[entry], share, votes, labels, number)
    return number


@compiled(fastmath=FASTMATH)
def _add_names(columns, values, names, votes, labels, number, scratch, weight, budget):
    """Add the squared cosines of the names of labels to `votes`; returns how many labels are listed."""
    offsets, rows, row_values = names
    similarity, touched, _ = scratch
    found = _similar(columns, values, offsets, rows, row_values, budget, similarity, touched)
    for index in range(found):
        label = touched[index]
        share = weight * similarity[label] ** 2
        similarity[label] = np.nan
        if share > 0:
            number = _add(label, share, votes, labels, number)
    return number


@compiled(fastmath=FASTMATH)
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


@compiled()
def _add_examples(columns, values, examples, votes, labels, number, scratch, weight):
    """Add the fourth power of the highest cosine to a document of each label; returns how many labels are listed."""
    offsets, rows, row_values, label_of, first_of = examples
    similarity, touched, products = scratch
    found = _similar(columns, values, offsets, rows, row_values, np.int64(2**62), similarity, touched)
    for index in range(found):
        products[index] = max(similarity[touched[index]], np.float32(0))
        similarity[touched[index]] = np.nan
    for index in range(found):  # the highest of a label is kept at its first document
        first = first_of[touched[index]]
        if not similarity[first] >= products[index]:
            similarity[first] = products[index]
    for index in range(found):
        first = first_of[touched[index]]
        highest = similarity[first]
        similarity[first] = np.nan
        if highest > 0:  # NaN from the second document of a label on
            number = _add(label_of[first], weight * highest**EXAMPLE_POWER, votes, labels, number)
    return number


@compiled(fastmath=FASTMATH)
def _children(node, columns, values, forest, linear, sums):
    """⟨w, x⟩ + b of the children of a node, by the features that both have."""
    starts, nodes, entry_starts, children, weights, biases = linear
    first, last = forest[2][node], forest[3][node]
    for child in range(first, last):
        sums[child - first] = biases[child]
    for index in range(len(columns)):
        low, count = starts[columns[index]], starts[columns[index] + 1] - starts[columns[index]]
        while count > 1:  # the last of the nodes with this feature that is not above `node`
            middle = count >> 1
            low += middle if nodes[low + middle] <= node else 0
            count -= middle
        if count == 1 and nodes[low] == node:
            value = values[index]
            for entry in range(entry_starts[low], entry_starts[low + 1]):
                sums[children[entry]] += value * half(weights[entry])


@compiled()
def _beam(tree, columns, values, forest, linear, lifted, voted, filters, beam, most, least, of_groups, room):
    """The leaves below the beam of a tree that may be found, and the logs of their probabilities, `least` or more.

    They are the first of the first two arrays of `room`; returns how many there are. The log of a label's probability
    is its own, and `of_groups` times that of the groups above it. Without votes (`voted`) `lifted` is zero.
    """
    roots, heights, starts, ends, _, label_of_node, _ = forest
    allowed, allowed_below = filters
    next_nodes, next_paths, nodes, paths, scores, sums, order, highest = room
    nodes[0], paths[0], width, count = roots[tree], 0, 1, 0
    for level in range(1, heights[tree] + 1):
        count = 0
        for place in range(width):
            first, size = starts[nodes[place]], ends[nodes[place]] - starts[nodes[place]]
            _children(nodes[place], columns, values, forest, linear, sums)
            above = paths[place] * of_groups if level == heights[tree] else paths[place]
            for child in range(size):
                miss = max(np.float32(1) - sums[child], np.float32(0))
                path = above - miss * miss * miss
                next_nodes[count], next_paths[count] = first + child, path
                if level == heights[tree]:
                    count += path >= least and allowed[label_of_node[first + child]]
                else:
                    scores[count] = np.exp(path) + lifted[first + child] if voted else path
                    count += allowed_below[first + child] > 0
        if level == heights[tree]:
            break
        width, labels_below = best(scores, count, beam, order, highest), 0
        for place in range(width):
            labels_below += allowed_below[next_nodes[order[place]]]
        if labels_below < most and width < count:  # few labels are allowed
            best(scores, count, count, order, highest)  # which starts with the same
            while width < count and labels_below < most:
                labels_below += allowed_below[next_nodes[order[width]]]
                width += 1
        for place in range(width):
            nodes[place], paths[place] = next_nodes[order[place]], next_paths[order[place]]
    return count


@compiled()
def _lift(tree, labels, votes, forest, allowed, lifted, raised):
    """Give the nodes above the leaves of labels the highest vote of an allowed label below; list them in `raised`."""
    parent, group_of_label = forest[4], forest[6]
    count = 0
    for index in range(len(labels)):
        label, vote = labels[index], votes[index]
        node = np.int64(group_of_label[tree, label]) if allowed[label] else -1
        while node >= 0 and lifted[node] < vote:
            raised[count] = node
            count += lifted[node] == 0
            lifted[node] = vote
            node = parent[node]
    return count


@compiled()
def search(first, last, rows, parts, scratch, beam, most, found, scores):
    """The best labels of the documents first … last of some rows; see `beamtree.classify.model`.

    Args:
        first: document.
        last: one after the last.
        rows: where the features of each document start, these features, rising, and their values.
        parts: see `classify.SearchInput`.
        scratch: zeros and room for numbers by label; NaN and room by row of an index; zeros and room by node, and
            more room.
        beam: k.
        most: m.
        found: labels [n, m], -1 where there are no more.
        scores: of these.
    """
    offsets, columns, values = rows
    forest, linear, memory, names, encoder, examples, weights, filters = parts
    memory_weight, name_weight, power, neighbours, budget, encoder_weight, of_groups, examples_weight = weights
    roots, label_of_node, allowed = forest[0], forest[5], filters[0]
    totals, labels, of_rows, lifted, raised, room = scratch
    nodes, paths, _, _, candidate_scores, _, order, highest = room
    count, enough = 0, np.exp(MIN_LOG_PROB)
    for document in range(first, last):
        own = slice(offsets[document], offsets[document + 1])
        x, v = columns[own], values[own]
        number = 0
        if memory_weight > 0:
            number = _add_memory(
                x, v, memory, totals, labels, number, of_rows, memory_weight, power, neighbours, budget
            )
        if name_weight > 0:
            number = _add_names(x, v, names, totals, labels, number, of_rows, name_weight, budget)
        if encoder_weight > 0:
            number = _add_encoder(x, v, encoder, totals, labels, number, encoder_weight)
        if len(examples[4]) > 0:
            number = _add_examples(x, v, examples, totals, labels, number, of_rows, examples_weight)
        votes, num_votes = totals[labels[:number]], number
        for least in (MIN_LOG_PROB, -np.float32(np.inf)):
            for tree in range(len(roots)):
                num_raised = _lift(tree, labels[:num_votes], votes, forest, allowed, lifted, raised)
                found_leaves = _beam(
                    tree, x, v, forest, linear, lifted, num_votes > 0, filters, beam, most, least, of_groups, room
                )
                for place in range(num_raised):
                    lifted[raised[place]] = 0
                for place in range(found_leaves):
                    p = max(np.exp(paths[place]), np.float32(1e-30)) / len(roots)
                    number = _add(label_of_node[nodes[place]], p, totals, labels, number)
            count = 0
            for index in range(number):
                label = labels[index]
                nodes[count], candidate_scores[count] = label, totals[label]
                count += allowed[label]
            count = best(candidate_scores, count, most, order, highest)
            if least < MIN_LOG_PROB or (count == most and highest[most - 1] >= enough):
                break
            totals[labels[num_votes:number]] = 0  # what was left out may be among the best: once more, with all
            totals[labels[:num_votes]] = votes
            number = num_votes
        found[document], scores[document] = -1, 0
        for place in range(count):
            found[document, place], scores[document, place] = nodes[order[place]], highest[place]
        totals[labels[:number]] = 0
