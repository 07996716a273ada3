"""The order in which training sees the images, as a function of the step and of nothing else."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

# What else the permutations of one seed are for, beside the order of the (original) images.
_GENERATED, _POSITIONS = 1, 2


def permutation(n: int, *key: int) -> np.ndarray:
    """A random order of range(n), int64 (n,), that depends on n and the key (non-negative integers) only.

    Sorts n raw 64-bit words of PCG64. NumPy promises that a bit generator's raw stream and SeedSequence never
    change (NEP 19); it promises no such thing of `Generator.permutation`.
    """
    words = np.random.PCG64(np.random.SeedSequence((*key, n))).random_raw(n)
    return np.argsort(words, kind="stable")


def _key(stream: int) -> tuple[int, ...]:
    return (stream,) if stream else ()


class TrainingOrder:
    """Which images make up the batch of a step: a fresh permutation of all n per epoch, without state.

    Step s takes the positions s * batch_size ... (s + 1) * batch_size - 1 of the endless sequence "epoch 0,
    epoch 1, ...", so a batch may cross the end of an epoch, no image is dropped, and a run that resumes
    at a step needs nothing but the step. Memory: the permutations of two epochs, 8 bytes an image.
    """

    def __init__(self, n: int, batch_size: int, seed: int, stream: int = 0):
        """stream: >= 0; orders of one seed and different streams are independent."""
        for name, value in (("n", n), ("batch_size", batch_size)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if not 0 <= seed < 2**64:
            raise ValueError(f"seed must be in [0, 2^64), got {seed}")
        self.n = n
        self.batch_size = batch_size
        self.seed = seed
        self._stream = stream
        self._permutations: dict[int, np.ndarray] = {}

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """(epochs, ids) of the global batch of a step, counted from 0; both int64 (batch_size,), ids < n."""
        if step < 0:
            raise ValueError(f"step must be at least 0, got {step}")
        positions = np.arange(step * self.batch_size, (step + 1) * self.batch_size, dtype=np.int64)
        epochs, within = np.divmod(positions, self.n)
        ids = np.empty_like(epochs)
        for epoch in np.unique(epochs):
            chosen = epochs == epoch
            ids[chosen] = self._permutation(int(epoch))[within[chosen]]
        return torch.from_numpy(epochs), torch.from_numpy(ids)

    def _permutation(self, epoch: int) -> np.ndarray:
        if epoch not in self._permutations:
            if len(self._permutations) == 2:
                del self._permutations[min(self._permutations)]
            self._permutations[epoch] = permutation(self.n, self.seed, epoch, *_key(self._stream))
        return self._permutations[epoch]


class MixedOrder:
    """Batches of original and generated images in fixed proportion, as a function of the step alone.

    Each batch has `generated_per_batch` = round(fraction * batch_size) generated images, at random positions
    keyed by (seed, step); the two kinds go through permutations and epochs of their own. Ids of generated
    images follow those of the originals (id = n_original + number), so that no two images share a noise key.
    Micro-batches and ranks are cut from the mixed batch, so their own shares vary.

    Raises ValueError unless both kinds have a place in every batch, and on what TrainingOrder refuses.
    """

    def __init__(self, n_original: int, n_generated: int, batch_size: int, fraction: float, seed: int):
        generated = round(fraction * batch_size) if 0 < fraction < 1 else 0
        if not 0 < generated < batch_size:
            raise ValueError(
                f"a fraction of {fraction} generated images in a batch of {batch_size} leaves one kind out; "
                "choose a fraction between 0 and 1 and a larger batch"
            )
        self.n = n_original + n_generated
        self.n_original = n_original
        self.batch_size = batch_size
        self.generated_per_batch = generated
        self.seed = seed
        self._original = TrainingOrder(n_original, batch_size - generated, seed)
        self._generated = TrainingOrder(n_generated, generated, seed, stream=_GENERATED)

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """(epochs, ids) of a step's global batch, int64 (batch_size,); each id with the epoch of its kind."""
        epochs, ids = self._original.batch(step)
        more_epochs, more_ids = self._generated.batch(step)
        place = torch.from_numpy(permutation(self.batch_size, self.seed, step, *_key(_POSITIONS)))
        return torch.cat((epochs, more_epochs))[place], torch.cat((ids, more_ids + self.n_original))[place]
