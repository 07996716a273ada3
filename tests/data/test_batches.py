from __future__ import annotations

import threading
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from robustzoo.data import DataError, TensorSource, TrainingOrder, load_dataset
from robustzoo.data import training_batches as batches_of

training_batches = partial(batches_of, augmentation="none")


def numbered(n: int) -> TensorSource:
    return TensorSource(torch.arange(n).div(n).view(n, 1, 1, 1), torch.arange(n) % 3, num_classes=3)


def joined(batches):
    return [torch.cat(parts) for parts in zip(*(batch[1:] for batch in batches), strict=True)]


@settings(max_examples=40)
@given(
    n=st.integers(1, 30),
    ranks=st.integers(1, 3),
    micro=st.integers(1, 3),
    per_micro=st.integers(1, 4),
    start=st.integers(0, 50),
    workers=st.integers(0, 3),
)
def test_ranks_and_micro_batches_put_together_are_the_global_batch(
    n, ranks, micro, per_micro, start, workers
):
    dataset, order = numbered(n), TrainingOrder(n, ranks * micro * per_micro, seed=5)
    parts = [
        list(
            training_batches(
                dataset,
                order,
                start,
                start + 2,
                rank=rank,
                world_size=ranks,
                micro_batch=per_micro,
                workers=workers,
            )
        )
        for rank in range(ranks)
    ]
    for step in (start, start + 1):
        epochs, ids, x, y = joined(batch for part in parts for batch in part if batch.step == step)
        expected_epochs, expected_ids = order.batch(step)
        assert torch.equal(epochs, expected_epochs) and torch.equal(ids, expected_ids)
        assert torch.equal(x.flatten(), ids / n) and torch.equal(y, ids % 3) and y.dtype == torch.int64
    assert [batch.step for batch in parts[0]] == [start] * micro + [start + 1] * micro


def test_resuming_gives_the_batches_of_an_uninterrupted_run():
    dataset = load_dataset("digits", split="train")
    order = TrainingOrder(len(dataset), 100, seed=1)
    whole = list(training_batches(dataset, order, 0, 30))
    resumed = list(training_batches(dataset, TrainingOrder(len(dataset), 100, seed=1), 17, 30))
    for one, other in zip(whole[17:], resumed, strict=True):
        assert one.step == other.step and all(map(torch.equal, one[1:], other[1:]))


def test_training_items_get_the_seed_of_the_order_and_their_epoch():
    class Noting(TensorSource):
        def training_item(self, i, seed, epoch, augmentation):
            x, y = self[i]
            return x * 0 + seed / 10 + epoch / 100, y

    dataset = Noting(torch.zeros(4, 1, 1, 1), torch.zeros(4, dtype=torch.int64))
    batches = list(training_batches(dataset, TrainingOrder(4, 2, seed=3), 0, 4))
    assert torch.allclose(joined(batches)[2].flatten(), torch.tensor([0.3] * 4 + [0.31] * 4))


def test_broken_items_surface_in_their_turn_and_threads_end():
    class Broken(TensorSource):
        def _image(self, i):
            if i == bad:
                raise DataError("no readable image")
            return super()._image(i)

    dataset = Broken(torch.zeros(10, 1, 1, 1), torch.zeros(10, dtype=torch.int64))
    order = TrainingOrder(10, 1, seed=0)
    bad = order.batch(4)[1].item()
    batches = training_batches(dataset, order, 0, 10)
    assert [next(batches).step for _ in range(4)] == [0, 1, 2, 3]
    with pytest.raises(DataError, match="no readable image"):
        next(batches)
    early = training_batches(dataset, order, 0, 10)
    next(early)
    early.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("robustzoo-data")]


@pytest.mark.parametrize(
    "batch, options, message",
    [
        (10, {"world_size": 3}, "does not divide among 3 ranks"),
        (2, {"world_size": 3}, "does not divide among 3 ranks"),
        (12, {"world_size": 2, "micro_batch": 4}, "4 does not divide the 6 images"),
        (12, {"world_size": 2, "rank": 2}, "rank must be"),
        (12, {"micro_batch": 0}, "micro-batch of 0"),
        (12, {"workers": -1}, "must be at least 0"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_at_the_call(batch, options, message):
    with pytest.raises(ValueError, match=message):
        training_batches(numbered(20), TrainingOrder(20, batch, 0), 0, 1, **options)


def test_the_order_must_be_for_this_data_set():
    with pytest.raises(ValueError, match="for 19 images, but the data set has 20"):
        training_batches(numbered(20), TrainingOrder(19, 1, 0), 0, 1)


def test_threads_decode_the_real_images_alike(shared):
    root = shared / "data" / "cifar10jpg"
    threaded, plain = (load_dataset("cifar10jpg", root, "train") for _ in range(2))
    order = TrainingOrder(len(plain), 96, seed=0)
    for one, other in zip(
        training_batches(threaded, order, 0, 3, micro_batch=32, workers=4),
        training_batches(plain, order, 0, 3, micro_batch=32, workers=0),
        strict=True,
    ):
        assert all(map(torch.equal, one[1:], other[1:]))
    assert 0 < threaded._decoded.sum() <= 288


def test_the_augmentation_s_crops_are_cut_while_reading():
    x = torch.rand(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    dataset, order = TensorSource(x, torch.zeros(4, dtype=torch.int64)), TrainingOrder(4, 4, seed=3)
    for augmentation, changed in (("none", False), ("fb", False), ("crop", True)):
        for batch in batches_of(dataset, order, 0, 2, augmentation=augmentation):
            assert torch.equal(batch.x, x[batch.ids]) != changed
    first, second = (
        batch.x[batch.ids.argsort()] for batch in batches_of(dataset, order, 0, 2, augmentation="crop")
    )
    assert not torch.equal(first, second)
    with pytest.raises(ValueError, match="one of none, fb, crop, shift, got 'mixup'"):
        batches_of(dataset, order, 0, 1, augmentation="mixup")
