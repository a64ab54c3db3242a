"""Every fast twin beside its plain definition, and the twins of a search against theirs.

`FUNCTIONS` lists the functions of `beamtree.kernels`: the plain definition of each, and the tests that compare them.

A part of a score has up to four twins beside its PyTorch code: the compiled search, the exported program, training over
ranks, and Triton's kernels. `PARTS`, `TWINS` and `CHANGES` are walked as one table, after items were forgotten, hidden,
added and moved. The definition is written out below, for one user at a time; an item without a leaf is in no history.
"""

import copy
import importlib
import inspect
import os
from functools import cache
from pathlib import Path

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before a kernel is imported

import beamtree as bt
from beamtree import PAD, TreeModel, beam, kernels
from beamtree.data import Ids
from beamtree.data.csr import strongest
from beamtree.data.views import HISTORY, POOLING_WINDOWS
from beamtree.distributed.group import Ranks
from beamtree.distributed.partition import Shard
from beamtree.distributed.sharding import shard_model
from beamtree.kernels.search_cpu import search_parts
from beamtree.live.edits import with_hidden, with_items, without_items
from beamtree.live.placement import like_items
from beamtree.scorers import (
    ContextScorer,
    DeepScorer,
    FactorScorer,
    FixedScorer,
    LinearScorer,
    MemoryScorer,
    NodeTable,
    PopularityScorer,
    RepeatScorer,
    SequenceScorer,
    SumScorer,
    TrendScorer,
)
from beamtree.scorers.factors import Factors
from beamtree.scorers.memory import SubtreeMaxScorer, recency_weights
from beamtree.storage.exported import SearchModule, export_program

ITEMS, USERS, TOP = 29, 7, 4  # items on 32 slots, and nodes of the last level that all ranks have
FORGOTTEN, HIDDEN, NEW = [3, 4, 5, 17], [8, 9, 20], 2


# Functions of `beamtree.kernels`: what each is a twin of, in `beamtree` or torch, and a test that compares them

FUNCTIONS = {
    "search_cpu.search": ("beam.walk_to_items", "test_it_finds_what_the_plain_search_does"),
    "sequence_cpu.last_states": ("scorers.sequence.SequenceEncoder.last", "test_users_are_those_of_the_encoder"),
    "search_cpu.fold_in": ("scorers.factors.fold_in", "test_fold_in_is_as_defined"),
    "cuda_graphs.CudaGraphCache": ("beam.walk_to_items", "test_a_recorded_search_finds_what_a_plain_one_does"),
    "search_cpu.scan": ("beam.brute_force", "test_a_scan_finds_what_brute_force_finds"),
    "scan_gpu.add_tables": ("search.scan.add_tables", "test_products_are_added_to_all_leaves"),
    "cuda_graphs.beside": ("search.scan.named_scores", "test_a_recorded_scan_finds_what_a_plain_one_does"),
    "select.select": ("beam._select", "test_the_best_are_kept_and_expanded"),
    "dots.dots": ("scorers.DotProductScorer.scores", "test_products_are_those_with_the_rows_of_the_nodes"),
    "maxima.maxima": ("scorers.subtree_max.SubtreeMax.at", "test_maxima_are_those_of_the_leaves_below"),
    "best_child_gpu.pass_up": ("targets.best_child", "test_labels_go_up_as_the_definition_says"),
    "sparse_adam_gpu.adam": ("torch.optim.SparseAdam", "test_touched_rows_move_as_adam_would_move_them"),
    "deep_gpu.score": ("kernels.deep_cpu.score_level", "test_scores_are_those_of_the_layers"),
    "deep_gpu.score_backward": ("torch.autograd.grad", "test_gradients_are_those_of_the_layers"),
    "deep_gpu.score_levels": ("kernels.deep_cpu.score_level", "test_a_methods_loss_and_gradients_do_not_depend"),
    "deep_cpu.score_level": ("scorers.DeepScorer", "test_a_twin_finds_and_scores_what_the_definition_says"),
    "tree_splits.divide": ("builders.cluster.rank_in", "test_groups_are_split_as_defined"),
    "tree_splits.place_along": ("builders.cluster._along_principal", "test_groups_are_split_as_defined"),
    "sparse.distinct_spans": ("scorers.factors.newest_of_each", "test_lists_become_rows_without_repeats"),
    "sparse.distinct_crops": ("closed_form.transitions.pairs_of_cuts", "test_a_cut_counts_as_often_as_it_was_drawn"),
    "sparse.sum_products": ("torch.matmul", "test_products_are_summed_over_rows"),
    "sparse.multiply": ("torch.matmul", "test_a_sparse_matrix_times_a_dense_one"),
    "sparse.transposed": ("torch.t", "test_a_sparse_matrix_times_a_dense_one"),
    "sparse.strongest": ("data.csr.strongest_in_rounds", "test_entries_are_cut_alike_in_one_round_and_in_several"),
    "sparse.strongest_of_dense": ("torch.topk", "test_the_strongest_of_a_matrix"),
    "sparse.recalls": ("metrics.recall", "test_recalls_of_weighted_scores"),
    "sparse.fold_in_rows": ("scorers.factors.fold_in", "test_short_and_long_rows_are_folded_in"),
    "sparse.predictors": ("torch.topk", "test_what_predicts_a_block_of_items"),
    "sparse.dense": ("torch.Tensor.to_dense", "test_a_block_of_a_symmetric_matrix"),
    "sparse.dense_block": ("torch.Tensor.to_dense", "test_a_block_of_a_symmetric_matrix"),
    "sparse.solve_sparse": ("closed_form.ridge.solve_positive", "test_a_sparse_system_is_solved"),
    "sparse.largest_of_columns": ("torch.topk", "test_the_largest_of_each_column"),
    "sparse.near_items": ("closed_form.transitions.near_pairs", "test_rules_are_pairs_of_near_events"),
    "classify.weigh": ("classify.text.TextFeatures", "test_features_are_tf_idf_of_words_pairs_and_beginnings"),
    "classify.nearest_means": ("classify.label_tree.k_means", "test_k_means_puts_alike_rows_together"),
    "classify.nearest_rows": ("torch.topk", "test_nearest_documents_against_the_definition"),
    "classify.train_children": ("classify.linear.train_linear", "test_a_node_is_trained_on_documents_below"),
    "classify.search": ("classify.linear.log_probabilities", "test_search_is_the_plain_search"),
}
HELPERS = {
    "sparse.starts_of",
    "search_cpu.search_parts",
    "search_cpu.prepare_parts",
    "deep_cpu.make_products",
    "sequence_cpu.fits",
}


def find(name):
    """What a dotted name stands for, in torch or `beamtree`."""
    found = torch if name.startswith("torch.") else bt
    for word in name.removeprefix("torch.").split("."):
        if not hasattr(found, word):
            importlib.import_module(f"{found.__name__}.{word}")
        found = getattr(found, word)
    return found


def test_every_kernel_stands_beside_its_definition_and_a_test():
    pytest.importorskip("triton")
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    for fast, (plain, test) in FUNCTIONS.items():
        assert find(f"kernels.{fast}") is not find(plain), fast
        assert f"def {test}" in tests, fast
    public = set()
    for path in Path(kernels.__file__).parent.glob("[a-z]*.py"):
        if path.stem.startswith("compiled_") or path.stem == "threads":  # called by functions of other files
            continue
        module = importlib.import_module(f"beamtree.kernels.{path.stem}")
        own = {name: each for name, each in vars(module).items() if getattr(each, "__module__", "") == module.__name__}
        public |= {f"{path.stem}.{name}" for name, each in own.items() if inspect.isfunction(each) and name[0] != "_"}
    assert public == FUNCTIONS.keys() - {"cuda_graphs.CudaGraphCache"} | HELPERS


# The definition: the scores of all nodes for one user


def history_of(tree, x):
    """The position and the leaf of each event whose item has a leaf."""
    leaves = tree.leaf_of_item(x).tolist()
    return [(t, leaf) for t, leaf in enumerate(leaves) if leaf != PAD]


def dots(scorer, user):
    return scorer.table.weight.double() @ user.double()


def factors(scorer, tree, x):
    newest = {}
    for t, leaf in history_of(tree, x[:HISTORY]):
        newest.setdefault(leaf, t)
    rows, weights = scorer.table.weight.double()[list(newest)], scorer.recency.double()[list(newest.values())]
    diagonal = scorer.spread.double() + scorer.penalty * (weights.sum() + scorer.unobserved_weight)
    system = rows.T @ (rows * weights.unsqueeze(1)) + diagonal.diag()
    return dots(scorer, scorer.scale * torch.linalg.solve(system, rows.T @ weights))


def sequence(scorer, tree, x):
    leaves = [leaf for _, leaf in history_of(tree, x[:HISTORY])][::-1]
    rows = scorer.table.weight.float()[leaves].unsqueeze(0)
    return dots(scorer, scorer.encoder(rows)[0, -1])


def context(scorer, tree, x):
    values = zip(x[HISTORY:].tolist(), scorer.weights.tolist(), strict=True)
    return dots(scorer, sum((w * scorer.vectors[v] for v, w in values if v != PAD), torch.zeros(6)))


def popularity(scorer, tree, x):
    return scorer.scale * scorer.table.weight[:, 0].double()


def trend(scorer, tree, x):
    """Each half-life on its own: counts at the leaves, and above them the largest; a free slot keeps what it had."""
    scores = torch.zeros(tree.num_nodes, dtype=torch.float64)
    for column, (weight, half_life) in enumerate(zip(scorer.weights, scorer.half_lives, strict=True)):
        fading = 2 ** ((scorer.origin - scorer.newest) / half_life)
        best = scorer.table.weight[:, column].double().square() * fading
        for item, leaf in enumerate(tree.leaf_of_item(torch.arange(tree.num_items)).tolist()):
            if leaf != PAD:
                best[leaf] = float(scorer.counts[item, column]) * fading
        for node in range(tree.level(tree.height).start - 1, -1, -1):
            first = node * tree.arity + 1
            best[node] = best[first : first + tree.arity].max()
        scores += weight * best.sqrt()
    return scores


def linear(scorer, tree, x):
    return dots(scorer, torch.cat([x, torch.ones(1)]))


def deep(scorer, tree, x):
    vectors = [scorer.table.weight[0]]
    for node in range(1, tree.num_nodes):
        above = vectors[(node - 1) // tree.arity] if scorer.share else 0
        vectors.append(scorer.table.weight[node] + above)
    vectors = torch.stack(vectors)
    window = [number for number, size in enumerate(POOLING_WINDOWS) for _ in range(size)]
    scores = []
    for level in range(tree.height + 1):
        pooled = torch.zeros(len(POOLING_WINDOWS), vectors.shape[1])
        for number in range(len(POOLING_WINDOWS)):
            leaves = torch.tensor([leaf for t, leaf in history_of(tree, x[:HISTORY]) if window[t] == number])
            if len(leaves):
                pooled[number] = vectors[tree.ancestor(leaves, level) if scorer.lift else leaves].mean(0)
        span = tree.level(level)
        hidden = scorer.of_user(pooled.flatten()) + scorer.of_node(vectors[span.start : span.stop])
        for slope, layer in zip(scorer.slopes, scorer.layers, strict=True):
            hidden = layer(torch.where(hidden > 0, hidden, slope * hidden))
        scores.append(hidden.squeeze(1))
    return torch.cat(scores).double()


def items_named(scorer, x):
    """What the events of a history say about items: (item, score) pairs."""
    for t, item in enumerate(x[:HISTORY].tolist()):
        if isinstance(scorer, RepeatScorer) and item != PAD:
            yield item, float(scorer.recency[t])
        for each in range(getattr(scorer, "lists", 0) if item != PAD else 0):
            row = each * scorer.num_items + item
            entries = range(int(scorer.offsets[row]), int(scorer.offsets[row + 1]))
            for entry in entries:
                yield int(scorer.partners[entry]), float(scorer.weights[entry]) * float(scorer.recency[each, t])


def named(parts, tree, x):
    """The sum of what some parts say about items; a node above the leaves has the highest below it, and at least 0."""
    scores = torch.zeros(tree.num_nodes, dtype=torch.float64)
    for weight, part in parts:
        for item, score in items_named(part, x):
            leaf = int(tree.leaf_of_item(torch.tensor(item)))
            if leaf != PAD:
                scores[leaf] += weight * score
    for node in range(tree.level(tree.height).start - 1, -1, -1):
        first = node * tree.arity + 1
        scores[node] = scores[first : first + tree.arity].max().clamp(min=0)
    return scores


DEFINITIONS = {
    FactorScorer: factors,
    PopularityScorer: popularity,
    TrendScorer: trend,
    SequenceScorer: sequence,
    ContextScorer: context,
    LinearScorer: linear,
    DeepScorer: deep,
}


@torch.no_grad()
def definition(model, x):
    """g(x, n) of all nodes for all users [B, num_nodes]."""
    scorer, tree, rows = model.scorer, model.tree, []
    parts = [(scorer.weight_of(name), scorer.part(name)) for name in scorer.names] if is_sum(model) else [(1.0, scorer)]
    sparse = [(weight, part) for weight, part in parts if isinstance(part, SubtreeMaxScorer)]
    for row in x:
        total = named(sparse, tree, row)
        for weight, part in parts:
            if type(part) in DEFINITIONS:
                total = total + weight * DEFINITIONS[type(part)](part, tree, row)
        rows.append(total)
    return torch.stack(rows)


def is_sum(model):
    return isinstance(model.scorer, SumScorer)


# The table: parts of a score, what happens to items, and twins


def make_factors(tree):
    vectors = Factors(torch.randn(ITEMS, 5), torch.rand(5), 0.1, 2.0)
    return FactorScorer.from_factors(tree, vectors, power=0.3).scaled(1.7)


def make_memory(tree):
    """Two lists: what is chosen together, and similar content as `Recommender` adds it."""
    key = torch.randperm(ITEMS**2)[:300]
    lists = strongest(key // ITEMS, key % ITEMS, torch.rand(300), ITEMS, 8)
    return MemoryScorer.from_partners([lists, lists], [recency_weights(0.5), recency_weights(2.0, newest=3)])


def make_sequence(tree):
    scorer = SequenceScorer(tree.num_nodes, 32, seed=2)
    scorer.table.half()
    return scorer


def make_context(tree):
    table, values = NodeTable.from_rows(torch.randn(tree.num_nodes, 6)), {"country": ["DE", "FR"], "hour": ["1"]}
    return ContextScorer.from_table(table, values, torch.randn(3, 6), [0.5, 2.0])


def make_trend(tree):
    counts = torch.rand(ITEMS, 2) * 9
    return TrendScorer.from_counts(tree, counts, [6e5, 3e6], [0.7, 0.4], 10**9, newest=10**9 + 10**5)


def make_deep(tree, **how):
    return DeepScorer(tree.num_nodes, 6, scale=1.0, seed=2, **how)


MAKE = {
    "factors": make_factors,
    "memory": make_memory,
    "popularity": lambda tree: PopularityScorer.from_counts(tree, torch.randint(1, 90, (ITEMS,))).scaled(3.0),
    "trend": make_trend,
    "repeats": lambda tree: RepeatScorer(0.7),
    "sequence": make_sequence,
    "context": make_context,
    "deep": make_deep,
    "deep, no shared rows": lambda tree: make_deep(tree, share=False),
    "deep, not lifted": lambda tree: make_deep(tree, lift=False),
}
ALL_PARTS = ("factors", "memory", "repeats", "popularity", "trend", "sequence", "context", "deep")
PARTS = {**{name: (name,) for name in MAKE}, "all but context": [n for n in ALL_PARTS if n != "context"]}
PARTS |= {"all parts": ALL_PARTS, "linear": ()}


def make_model(part):
    torch.manual_seed(0)
    tree = bt.random_tree(ITEMS, seed=1)
    if part == "linear":
        scorer = LinearScorer(tree.num_nodes, 5)
    else:
        scorer = SumScorer({name: MAKE[name](tree) for name in PARTS[part]}, tree.height)
        scorer.set_weights(**{name: 0.3 + 0.1 * place for place, name in enumerate(scorer.names)})
    return TreeModel(tree, scorer, first_level=2, ids=Ids([f"i{number}" for number in range(ITEMS)])).eval()


def forget(model):
    return without_items(model, FORGOTTEN)


def hide(model):
    return with_hidden(model, HIDDEN)


def add(model, count=NEW):
    like = like_items(torch.tensor([1, 2]))
    return with_items(model, {f"new {number}": like for number in range(count)})


def move(model):
    """Onto other leaves of a tree of another shape."""
    tree = model.tree
    kept = tree.items()[tree.items() != PAD].flip(0)
    return model.on_tree(bt.Tree(kept, 3, num_items=tree.num_items, hidden=tree.hidden()))


CHANGES = {
    "forgotten": forget,
    "hidden": hide,
    "added": add,
    "a tree one level deeper": lambda model: add(model, 5),
    "moved": move,
    "all of these": lambda model: hide(add(move(forget(model)), 9)),
    "an added item forgotten": lambda model: without_items(add(model), [ITEMS]),
}


def users_of(model):
    """Histories of all items that the model ever had; one of forgotten items alone, and an empty one."""
    generator = torch.Generator().manual_seed(5)
    if isinstance(model.scorer, LinearScorer):
        return torch.randn(USERS, 5, generator=generator)
    x = torch.full((USERS, HISTORY), PAD)
    some = torch.randint(model.tree.num_items, (USERS, 24), generator=generator)
    x[:, :24] = some.masked_fill(torch.rand(some.shape, generator=generator) < 0.2, PAD)
    x[0] = PAD
    x[0, : len(FORGOTTEN)] = torch.tensor(FORGOTTEN)
    x[1] = PAD
    x[2, :4] = torch.tensor([FORGOTTEN[0], HIDDEN[0], model.tree.num_items - 1, 0])
    if model.scorer.context_values:
        values = torch.tensor([[0, 2], [1, 2], [PAD, 2], [0, PAD], [1, PAD], [PAD, PAD], [1, 2]])
        x = torch.cat([x, values], dim=1)
    return x


def plainly(model, x, k, m):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(beam, "search_parts", lambda *arguments: None)
        return bt.retrieve(model, x, beam_size=k, m=m)


def compiled(model, x, k, m):
    assert search_parts(model.scorer, model.tree, x) is not None
    return bt.retrieve(model, x, beam_size=k, m=m)


def with_triton(model, x, k, m):
    """In Triton's interpreter on a CPU, where other code paths of a GPU are taken too."""
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        pytest.skip("Triton's interpreter is for machines without a GPU")
    model = copy.deepcopy(model)
    for each in model.modules():
        if isinstance(each, FactorScorer):
            each.table.float()  # halves are folded in by the compiled code of a CPU
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "fits", lambda tensor: tensor is not x and tensor.is_floating_point())
        return plainly(model, x, k, m)


def exported(model, x, k, m, make=SearchModule):
    with torch.no_grad():
        search = make(model, k, m)
        items, scores = search(*x.split([HISTORY, 2], dim=1)) if model.scorer.context_values else search(x)
    return items, scores.log()


def exported_program(model, x, k, m):
    return exported(model, x, k, m, lambda *how: export_program(how[0], beam_size=how[1], m=how[2]).module())


def as_trained_over_ranks(model, x, k, m):
    """The tables of training over ranks, of which this process is the only one."""
    model = copy.deepcopy(model)
    return plainly(shard_model(model, Shard.of(model.tree, Ranks(), TOP)), x, k, m)


TWINS = {
    "PyTorch": plainly,
    "compiled": compiled,
    "exported": exported,
    "exported program": exported_program,
    "as trained over ranks": as_trained_over_ranks,
    "Triton": with_triton,
}
MISSING = [("compiled", "linear")]
SLOW = {
    "exported program": ("all parts",),
    "Triton": ("factors", "memory", "deep", "all parts"),
}  # tested on these parts
QUICK = {"forgotten", "all of these"}


def table():
    for twin in TWINS:
        for part in SLOW.get(twin, PARTS):
            for change in CHANGES:
                if (twin, part) not in MISSING and (twin not in SLOW or change == "all of these"):
                    marks = [pytest.mark.extended] if twin in SLOW or change not in QUICK else []
                    yield pytest.param(twin, part, change, marks=marks, id=f"{twin}-{part}-{change}")


@cache
def case(part, change):
    """A model, its users, and what is defined for them; no test changes them."""
    model = CHANGES[change](make_model(part))
    x = users_of(model)
    return model, x, definition(model, x)


@pytest.mark.parametrize(("twin", "part", "change"), list(table()))
def test_a_twin_finds_and_scores_what_the_definition_says(twin, part, change):
    model, x, logits = case(part, change)
    reference = TreeModel(model.tree, FixedScorer(logits), first_level=model.first_level)
    search = TWINS[twin]
    digits = {"rtol": 2e-3, "atol": 2e-3}
    for k, m in ((12, 8), (100, 40)):
        items, scores = search(model, x, k, m)
        expected, log_p = bt.retrieve(reference, FixedScorer.every(len(x)), beam_size=k, m=m)
        assert torch.equal(items == PAD, expected == PAD)
        torch.testing.assert_close(scores, log_p.float(), **digits)
        # Where two items score alike, either may come first: each has the score that is defined for it.
        leaves = model.tree.leaf_of_item(items)
        own = torch.nn.functional.logsigmoid(logits.gather(1, leaves.clamp(min=0))).masked_fill(
            items == PAD, -torch.inf
        )
        torch.testing.assert_close(scores, own.float(), **digits)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("part", PARTS)
def test_a_scan_finds_and_scores_what_the_definition_says(part, change):
    """Compiled, and in PyTorch."""
    model, x, logits = case(part, change)
    reference = TreeModel(model.tree, FixedScorer(logits), first_level=model.first_level)
    expected, log_p = bt.brute_force(reference, FixedScorer.every(len(x)), m=12)
    for compiled in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            if not compiled:
                patch.setattr(beam, "search_parts", lambda *arguments: None)
            items, scores = bt.retrieve(model, x, m=12, search="scan")
        assert torch.equal(items == PAD, expected == PAD)
        torch.testing.assert_close(scores, log_p.float(), rtol=2e-3, atol=2e-3)
        leaves = model.tree.leaf_of_item(items)
        own = torch.nn.functional.logsigmoid(logits.gather(1, leaves.clamp(min=0)))
        torch.testing.assert_close(scores, own.masked_fill(items == PAD, -torch.inf).float(), rtol=2e-3, atol=2e-3)


def test_an_item_that_was_forgotten_is_in_no_history():
    """But for memory: what a user chose still names its partners."""
    for part in PARTS.keys() - {"linear", "memory", "all parts", "all but context"}:
        model = forget(make_model(part))
        x = users_of(model)
        without = x.masked_fill(torch.isin(x, torch.tensor(FORGOTTEN)), PAD)
        assert not torch.equal(x, without)
        assert torch.equal(definition(model, x), definition(model, without)), part


def test_a_twin_that_is_missing_is_not_used():
    for twin, part in MISSING:
        assert twin == "compiled"
        model = make_model(part)
        assert search_parts(model.scorer, model.tree, users_of(model)) is None
