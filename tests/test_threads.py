"""Threads of a CPU: as many as there are, and one for each piece of small work."""

import os

import pytest
import torch

from beamtree.closed_form.als import implicit_als
from beamtree.data import Events
from beamtree.kernels.threads import available_cpus, one_thread, parallel_map, use_threads


@pytest.fixture(autouse=True)
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_pieces_come_back_in_order_each_with_one_thread():
    assert parallel_map(lambda piece: (piece, torch.get_num_threads()), range(20)) == [(n, 1) for n in range(20)]
    assert torch.get_num_threads() == 2


def test_an_error_in_a_piece_is_raised_and_the_threads_are_restored():
    with pytest.raises(ZeroDivisionError):
        parallel_map(lambda piece: 1 // piece, [1, 0])
    assert torch.get_num_threads() == 2


def test_one_thread_is_for_a_block_alone():
    with one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"cpu.max": "150000 100000\n"}, 2),
        ({"cpu.max": "50000 100000\n"}, 1),
        ({"cpu.max": "max 100000\n"}, 8),
        ({"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 8),
        ({}, 8),
    ],
)
def test_a_container_has_the_cpus_of_its_quota(tmp_path, monkeypatch, files, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert available_cpus(tmp_path) == expected


def test_the_number_given_wins_and_a_variable_of_the_user_is_left_alone(monkeypatch):
    monkeypatch.setattr("beamtree.kernels.threads.available_cpus", lambda: 1)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    use_threads()
    assert torch.get_num_threads() == 2
    monkeypatch.delenv("OMP_NUM_THREADS")
    use_threads()
    assert torch.get_num_threads() == 1
    use_threads(2)
    assert torch.get_num_threads() == 2


def test_factors_do_not_depend_on_how_lists_are_cut_into_pieces(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    events = Events(torch.arange(0, 1201, 12), torch.randint(40, (1200,), generator=generator), "some")
    whole = implicit_als(events, 40, dim=8)
    monkeypatch.setitem(implicit_als.__globals__, "CELLS_PER_THREAD", 30)
    torch.testing.assert_close(implicit_als(events, 40, dim=8).items, whole.items, rtol=1e-4, atol=1e-5)
