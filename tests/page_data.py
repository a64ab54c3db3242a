"""A small model, its users and a catalogue of hostile titles, for tests of the page."""

from functools import cache

import torch

import beamtree as bt
from beamtree.data import BeforeAfter, Events, Ids
from beamtree.data.catalogue import Catalogue
from beamtree.data.csr import strongest
from beamtree.diagnose.explore import record, variants
from beamtree.scorers import DeepScorer, MemoryScorer, RepeatScorer, SumScorer
from beamtree.scorers.memory import recency_weights

NUM_ITEMS, NUM_USERS = 180, 30
HOSTILE = (
    "</script><script>window.hit = 1</script>",
    "<img src=x onerror=window.hit=1>",
    "\"'><svg onload=window.hit=1>",
    "{{script}} {{data}}",
    "bell \x07 escape \x1b[31m null \x00 end",
    "turned \u202e around",
    "lone \ud800 half",
    "&lt;b&gt; &amp;",
)


def make_model(num_items=NUM_ITEMS, seed=1):
    """A sum of three parts with random weights; nothing is trained."""
    generator = torch.Generator().manual_seed(seed)
    tree = bt.random_tree(num_items, arity=2, seed=seed)
    pairs = torch.randint(num_items, (2, 8 * num_items), generator=generator)
    pairs = torch.unique(pairs, dim=1)
    partners = strongest(pairs[0], pairs[1], torch.rand(pairs.shape[1], generator=generator), num_items, 8)
    parts = {
        "memory": MemoryScorer.from_partners([partners], [recency_weights(0.5)]),
        "repeats": RepeatScorer(),
        "deep": DeepScorer(tree.num_nodes, scale=1.0, seed=seed),
    }
    scorer = SumScorer(parts, tree.height, "deep").set_weights(memory=2.0, repeats=0.5, deep=0.4)
    ids = Ids([f"i{number}" for number in range(num_items)])
    model = bt.TreeModel(tree, scorer, first_level=2, ids=ids).eval()
    model.popularity = torch.randint(100, (num_items,), generator=generator)
    return model


def sample_users(num_items=NUM_ITEMS, seed=2):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(8, 30, (NUM_USERS,), generator=generator)
    items = torch.randint(num_items, (int(lengths.sum()),), generator=generator, dtype=torch.int32)
    return BeforeAfter(Events(torch.nn.functional.pad(lengths.cumsum(0), (1, 0)), items, "test"))


def make_catalogue(model):
    """Hostile titles, an item without one, and categories of two steps."""
    numbers = range(model.tree.num_items)
    titles = [f"{HOSTILE[n % len(HOSTILE)]} no. {n}" if n % 3 else f"Title {n}" for n in numbers]
    titles[7] = None
    categories = [None if n % 10 == 0 else f"Shop/{'red' if n % 2 else 'blue'} <b>" for n in numbers]
    return Catalogue(model.ids, titles, categories)


def user_names():
    return [f"user {number} <i>" for number in range(NUM_USERS)]


@cache
def recorded():
    """A model with hostile titles, and what a page shows of it."""
    model = make_model()
    models = variants("run </title>", model)
    return model, models, record(models, sample_users(), user_names(), make_catalogue(model), count=5, beam_sizes=SIZES)


SIZES = (5, 10, 20, 40)
