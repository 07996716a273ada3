from __future__ import annotations

import pickle

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from robustzoo.data import MixedOrder, TrainingOrder

sizes = st.integers(1, 40)
fractions = st.floats(0.01, 0.99)
seeds = st.integers(0, 2**64 - 1)


def made(n, m, batch_size, fraction, seed) -> MixedOrder:
    assume(0 < round(fraction * batch_size) < batch_size)
    return MixedOrder(n, m, batch_size, fraction, seed)


@settings(max_examples=60)
@given(sizes, sizes, st.integers(2, 30), fractions, seeds)
def test_every_batch_has_the_share_and_every_image_its_turn(n, m, batch_size, fraction, seed):
    order = made(n, m, batch_size, fraction, seed)
    steps = 2 + max(2 * n, 2 * m)
    batches = [order.batch(step) for step in range(steps)]
    for epochs, ids in batches:
        assert epochs.shape == ids.shape == (batch_size,) and epochs.dtype == ids.dtype == torch.int64
        assert (ids >= n).sum() == round(fraction * batch_size) == order.generated_per_batch
    epochs, ids = (torch.cat(parts) for parts in zip(*batches, strict=True))
    assert ids.min() >= 0 and ids.max() < n + m == order.n
    for wanted, first, count in ((ids < n, 0, n), (ids >= n, n, m)):
        for epoch in (0, 1):  # both are complete after the steps above
            assert sorted(ids[wanted & (epochs == epoch)].tolist()) == list(range(first, first + count))
    pairs = list(zip(epochs.tolist(), ids.tolist(), strict=True))
    assert len(set(pairs)) == len(pairs)  # no noise key (epoch, id) comes twice


@settings(max_examples=60)
@given(sizes, sizes, st.integers(2, 30), fractions, seeds, st.lists(st.integers(0, 10**6), max_size=4))
def test_any_step_can_be_asked_first(n, m, batch_size, fraction, seed, steps):
    order = made(n, m, batch_size, fraction, seed)
    for step in steps:
        fresh = pickle.loads(pickle.dumps(MixedOrder(n, m, batch_size, fraction, seed)))
        assert all(map(torch.equal, order.batch(step), fresh.batch(step)))


def test_originals_follow_the_order_of_their_own():
    """The originals are drawn as they would be alone, in a batch of their part."""
    order, alone = MixedOrder(50, 1000, 40, 0.7, seed=3), TrainingOrder(50, 12, seed=3)
    for step in (0, 4, 17):
        epochs, ids = order.batch(step)
        kept = ids < 50
        pairs = sorted(zip(epochs[kept].tolist(), ids[kept].tolist(), strict=True))
        assert pairs == sorted(zip(*(t.tolist() for t in alone.batch(step)), strict=True))


def test_kinds_take_every_position_and_differ_from_each_other():
    order = MixedOrder(100, 100, 10, 0.5, seed=0)
    drawn = torch.stack([order.batch(step)[1] for step in range(400)])
    share = (drawn >= 100).float().mean(0)
    assert (share - 0.5).abs().max() < 5 * 0.5 / 400**0.5
    first = [order._original.batch(step)[1] for step in range(20)]
    second = [order._generated.batch(step)[1] for step in range(20)]
    assert (torch.cat(first) == torch.cat(second)).float().mean() < 0.1  # two permutations, not one


def test_mixed_orders_are_pinned():
    """Resumed and repeated trainings rely on these values staying what they are."""
    epochs, ids = MixedOrder(4, 6, 5, 0.7, seed=0).batch(3)
    assert (epochs.tolist(), ids.tolist()) == ([2, 2, 0, 2, 2], [4, 6, 0, 7, 8])


def test_the_paper_s_batch():
    order = MixedOrder(49_000, 1_000_000, 768, 0.7, seed=0)
    assert order.generated_per_batch == 538 and int((order.batch(9)[1] < 49_000).sum()) == 230


@pytest.mark.parametrize("batch_size, fraction", [(2, 0.1), (2, 0.9), (10, 0), (10, 1), (10, -0.5), (1, 0.5)])
def test_a_kind_without_a_place_is_refused(batch_size, fraction):
    with pytest.raises(
        ValueError, match=rf"fraction of {fraction} .* batch of {batch_size} leaves one kind out"
    ):
        MixedOrder(5, 5, batch_size, fraction, 0)


def test_bad_sizes():
    for n, m in ((0, 5), (5, 0)):
        with pytest.raises(ValueError, match="n must be at least 1"):
            MixedOrder(n, m, 4, 0.5, 0)
    with pytest.raises(ValueError, match="step must be"):
        MixedOrder(5, 5, 4, 0.5, 0).batch(-1)
