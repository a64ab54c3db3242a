"""The rule by which a part is added to a sum: its gain must be above chance, and losses at a cut count twice."""

import statistics

import pytest
import torch

from beamtree.parts.acceptance import LOSS_WEIGHT, Gain


def gain_by_definition(before, after):
    """(mean, worth, error) of lists of users with their recall at each cut."""
    cuts = range(len(before[0]))
    usual = [statistics.fmean(row[cut] for row in before) for cut in cuts]
    rises = [[(a[cut] - b[cut]) / usual[cut] for cut in cuts] for b, a in zip(before, after, strict=True)]
    at_cuts = [statistics.fmean(row[cut] for row in rises) for cut in cuts]
    of_users = [statistics.fmean(row) for row in rises]
    return (
        statistics.fmean(at_cuts),
        statistics.fmean(rise if rise > 0 else 2 * rise for rise in at_cuts),
        statistics.stdev(of_users) / len(of_users) ** 0.5,
    )


def test_a_gain_is_that_of_the_definition():
    generator = torch.Generator().manual_seed(4)
    before, after = (torch.rand(9, 3, generator=generator, dtype=torch.float64) for _ in range(2))
    assert LOSS_WEIGHT == 2
    assert Gain.of(before, after) == pytest.approx(gain_by_definition(before.tolist(), after.tolist()))


def test_a_loss_at_one_cut_counts_twice():
    before = torch.full((4, 2), 0.5)
    gain = Gain.of(before, before + torch.tensor([0.1, -0.05]))
    assert gain.mean == pytest.approx(0.05)
    assert gain.worth == pytest.approx(0.0, abs=1e-7)
    assert not gain.is_certain()


@pytest.mark.parametrize(
    ("gain", "errors", "least", "expected"),
    [
        (Gain(0.02, 0.02, 0.019), 1.0, 0.0, True),
        (Gain(0.02, 0.02, 0.021), 1.0, 0.0, False),
        (Gain(0.02, 0.02, 0.009), 2.5, 0.0, False),
        (Gain(0.02, 0.02, 0.001), 2.5, 0.03, False),
        (Gain(-0.02, -0.04, 0.0), 1.0, 0.0, False),
    ],
)
def test_a_gain_must_be_above_its_error_and_the_least_that_pays(gain, errors, least, expected):
    assert gain.is_certain(errors, least) is expected


def test_a_single_user_decides_nothing():
    assert not Gain.of(torch.tensor([[0.1, 0.2]]), torch.tensor([[0.15, 0.3]])).is_certain()
