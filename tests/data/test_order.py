from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from robustzoo.data import TrainingOrder
from robustzoo.data.order import permutation

sizes = st.integers(1, 40)
seeds = st.integers(0, 2**64 - 1)


@given(sizes, sizes, seeds)
def test_each_epoch_is_a_permutation(n, batch_size, seed):
    order = TrainingOrder(n, batch_size, seed)
    steps = -(-3 * n // batch_size)
    epochs, ids = (torch.cat(parts) for parts in zip(*map(order.batch, range(steps)), strict=True))
    assert epochs.dtype == ids.dtype == torch.int64 and len(ids) == steps * batch_size
    assert torch.equal(epochs, torch.arange(len(ids)) // n)
    for epoch in range(3):
        assert sorted(ids[epoch * n : (epoch + 1) * n].tolist()) == list(range(n))


@given(sizes, sizes, seeds, st.lists(st.integers(0, 10**6), min_size=1, max_size=4))
def test_any_step_can_be_asked_first(n, batch_size, seed, steps):
    order = TrainingOrder(n, batch_size, seed)
    for step in steps:
        assert all(map(torch.equal, order.batch(step), TrainingOrder(n, batch_size, seed).batch(step)))


def test_epochs_and_seeds_have_different_orders():
    one, other = TrainingOrder(1000, 1000, 0), TrainingOrder(1000, 1000, 1)
    drawn = [one.batch(0)[1], one.batch(1)[1], other.batch(0)[1]]
    for i in range(3):
        agree = (drawn[i] == drawn[i - 1]).float().mean()
        assert agree < 0.02


def test_memory_is_that_of_two_epochs():
    order = TrainingOrder(5, 5, 0)
    for step in range(10):
        order.batch(step)
    assert sorted(order._permutations) == [8, 9]
    assert torch.equal(pickle.loads(pickle.dumps(order)).batch(3)[1], order.batch(3)[1])


def test_orders_are_pinned():
    """Resumed and repeated trainings rely on these values staying what they are."""
    assert permutation(10, 0).tolist() == [5, 8, 6, 1, 9, 3, 0, 4, 2, 7]
    assert permutation(10, 2**63, 7).tolist() == [4, 9, 2, 5, 6, 1, 8, 0, 3, 7]


def test_permutations_are_uniform():
    first = np.bincount([permutation(5, seed)[0] for seed in range(5000)])
    assert np.abs(first - 1000).max() < 5 * np.sqrt(1000 * 0.8)


@pytest.mark.parametrize(
    "arguments, message",
    [((0, 1, 0), "n must be"), ((1, 0, 0), "batch_size must be"), ((1, 1, -1), "seed must be")],
)
def test_bad_sizes(arguments, message):
    with pytest.raises(ValueError, match=message):
        TrainingOrder(*arguments)
    with pytest.raises(ValueError, match="step must be"):
        TrainingOrder(1, 1, 0).batch(-1)
