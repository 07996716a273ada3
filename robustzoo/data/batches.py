"""Training batches, read ahead by threads and determined by the step alone."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import torch
from torch import Tensor

from robustzoo.data.image_dataset import ImageDataset
from robustzoo.data.order import MixedOrder, TrainingOrder
from robustzoo.data.transforms import check_augmentation


class TrainingBatch(NamedTuple):
    """step: from 0. epochs, ids, y: int64 (B,). x: float32 (B, C, H, W) in [0, 1], cropped only."""

    step: int
    epochs: Tensor
    ids: Tensor
    x: Tensor
    y: Tensor


def training_batches(
    dataset: ImageDataset,
    order: TrainingOrder | MixedOrder,
    start_step: int,
    stop_step: int,
    *,
    augmentation: str,
    rank: int = 0,
    world_size: int = 1,
    micro_batch: int | None = None,
    workers: int = 2,
) -> Iterator[TrainingBatch]:
    """This rank's part of the batches of steps start_step <= step < stop_step.

    A step's global batch is cut into world_size equal consecutive parts, and a rank's part into micro-batches
    of micro_batch images (default: the whole part), which come one after the other. Stateless: starting at
    another step gives exactly the batches of an uninterrupted run.

    augmentation: of the recipe. The crops that it asks for are cut here, keyed by order.seed; `augment` does
    the rest on the batch.
    workers: threads that decode ahead, 0 for none. Memory: at most workers + 1 micro-batches in float32.
    Raises ValueError, at the call, where sizes do not divide or the order is for another number of images;
    DataError, when its batch is due, on an image that cannot be read.
    """
    check_augmentation(augmentation)
    if order.n != len(dataset):
        raise ValueError(f"the order is for {order.n} images, but the data set has {len(dataset)}")
    if world_size < 1 or not 0 <= rank < world_size:
        raise ValueError(f"rank must be in [0, world_size), got rank {rank} of {world_size}")
    per_rank, rest = divmod(order.batch_size, world_size)
    if rest or per_rank == 0:
        raise ValueError(
            f"a batch of {order.batch_size} does not divide among {world_size} ranks; choose a multiple"
        )
    micro_batch = per_rank if micro_batch is None else micro_batch
    if micro_batch < 1 or per_rank % micro_batch:
        raise ValueError(
            f"a micro-batch of {micro_batch} does not divide the {per_rank} images of a rank; use a divisor"
        )
    if start_step < 0 or workers < 0:
        raise ValueError(f"start_step and workers must be at least 0, got {start_step} and {workers}")

    def chosen() -> Iterator[tuple[int, Tensor, Tensor]]:
        for step in range(start_step, stop_step):
            epochs, ids = order.batch(step)
            for first in range(rank * per_rank, (rank + 1) * per_rank, micro_batch):
                part = slice(first, first + micro_batch)
                yield step, epochs[part], ids[part]

    def read(step: int, epochs: Tensor, ids: Tensor) -> TrainingBatch:
        pairs = zip(ids.tolist(), epochs.tolist(), strict=True)
        images, labels = zip(
            *(dataset.training_item(i, order.seed, epoch, augmentation) for i, epoch in pairs), strict=True
        )
        return TrainingBatch(step, epochs, ids, torch.stack(images), torch.tensor(labels))

    if workers == 0:
        return (read(*choice) for choice in chosen())
    return _read_ahead(chosen(), read, workers)


def _read_ahead(choices: Iterator, read, workers: int) -> Iterator[TrainingBatch]:
    pool = ThreadPoolExecutor(workers, thread_name_prefix="robustzoo-data")
    waiting: deque = deque()
    try:
        for choice in choices:
            waiting.append(pool.submit(read, *choice))
            if len(waiting) > workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
