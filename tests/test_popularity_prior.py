"""The expected popularity of a new item, from the histories of its first users."""

import pytest
import torch
from torch.nn.functional import pad

from beamtree.data import Events
from beamtree.live.placement import PopularityPrior


def make_events(sorted_tastes: bool) -> Events:
    """Half of the users choose among 20 items, the other half among 300; or all of them among all."""
    generator, users = torch.Generator().manual_seed(0), 400
    common = torch.randint(0, 20, (users // 2, 30), generator=generator)
    rare = torch.randint(20, 320, (users // 2, 30), generator=generator)
    items = torch.cat([common, rare])
    if not sorted_tastes:
        items = items.flatten()[torch.randperm(items.numel(), generator=generator)].view(users, 30)
    return Events(pad(torch.full((users,), 30).cumsum(0), (1, 0)), items.flatten().int(), "train", None)


def prior_of(events: Events) -> PopularityPrior:
    return PopularityPrior(events, 330, torch.Generator().manual_seed(1))


@pytest.mark.parametrize("histories", [1, 10, 25])
def test_where_tastes_differ_first_users_tell_how_popular_an_item_will_be(histories):
    prior = prior_of(make_events(sorted_tastes=True))
    generator = torch.Generator().manual_seed(2)
    few = prior.relative_popularity(torch.randint(0, 20, (histories, 20), generator=generator))
    many = prior.relative_popularity(torch.randint(20, 320, (histories, 20), generator=generator))
    assert 10 < few / many < 20  # 300 events each against 20


def test_where_all_choose_alike_they_tell_little_and_items_are_as_popular_as_others_on_average():
    prior = prior_of(make_events(sorted_tastes=False))
    generator = torch.Generator().manual_seed(2)
    times = [prior.relative_popularity(torch.randint(low, 320, (10, 20), generator=generator)) for low in (0, 0, 0)]
    assert all(0.5 < each < 2 for each in times)


def test_histories_that_hold_nothing_known_say_nothing():
    prior = prior_of(make_events(sorted_tastes=True))
    assert prior.relative_popularity(torch.full((3, 5), -1)) == 1.0
    assert prior.relative_popularity(torch.full((3, 5), 400)) == 1.0  # items that were added since


def test_items_are_looked_at_by_what_their_users_had_before():
    events = Events(torch.tensor([0, 3, 6]), torch.tensor([0, 0, 1, 0, 2, 1]).int(), "train", None)
    prior = PopularityPrior(events, 3, torch.Generator().manual_seed(0))
    logs = torch.tensor([4.0, 3.0, 2.0]).log()  # one more than events
    assert torch.allclose(prior.log_popularity, logs)
    expected = sorted([float(logs[0]), float(logs[[0, 2]].mean())])  # before item 1: 0 0, and 0 2
    assert sorted(prior._levels[1, :2].tolist()) == pytest.approx(expected)
    assert prior._levels[1, 2:].isnan().all()
