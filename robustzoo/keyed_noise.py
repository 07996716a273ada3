"""Random numbers that depend only on what they are for: (seed, sample, purpose, index), never on the batch.

Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3") in int64 tensor operations:
a counter goes in, four 32-bit words come out, and there is no state. The same key gives the same numbers on
every device, in every batch composition and after every restart.
"""

from __future__ import annotations

import functools
import hashlib
import math

import torch
from torch import Tensor

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


@functools.cache
def purpose_id(purpose: str) -> int:
    """A stable 32-bit number for a purpose such as "apgd-ce" (the first four bytes of its BLAKE2b hash)."""
    return int.from_bytes(hashlib.blake2b(purpose.encode(), digest_size=4).digest(), "little")


def philox(counter: Tensor, key: tuple[int, int]) -> Tensor:
    """Philox4x32-10. counter: int64 (4, ...) of 32-bit words; key: two 32-bit words. Returns int64 (4, ...).

    A product of two 32-bit words wraps in int64, but its 64 bits are right, so both halves can be masked out.
    """
    multipliers = torch.tensor(_MULTIPLIERS, device=counter.device).view(2, *[1] * (counter.ndim - 1))
    even, odd = counter[0::2], counter[1::2]
    for i in range(_ROUNDS):
        words = [(k + i * step) & _MASK for k, step in zip(key, _KEY_STEPS, strict=True)]
        round_key = torch.tensor(words, device=counter.device).view_as(multipliers)
        product = even * multipliers
        high, low = (product >> 32).bitwise_and_(_MASK), product.bitwise_and_(_MASK)
        even, odd = high.flip(0).bitwise_xor_(odd).bitwise_xor_(round_key), low.flip(0)
    return torch.stack((even[0], odd[0], even[1], odd[1]))


def uniform(
    seed: int, ids: Tensor, purpose: str, shape: tuple[int, ...], *, index: int | Tensor = 0, device=None
) -> Tensor:
    """Uniform float32 (B, *shape) in [0, 1), multiples of 2^-24.

    seed: 0 <= seed < 2^64. ids: integer (B,) sample ids, index: int or integer (B,), both in [0, 2^32).
    device: where to compute (default: where ids are). Raises ValueError on values outside these ranges.
    """
    words = _words(seed, ids, purpose, math.prod(shape), index, device)
    return ((words >> 8).to(torch.float32) * 2.0**-24).view(-1, *shape)


def normal(
    seed: int, ids: Tensor, purpose: str, shape: tuple[int, ...], *, index: int | Tensor = 0, device=None
) -> Tensor:
    """Standard normal float32 (B, *shape) by Box-Muller; arguments as in `uniform`.

    Computed in float64 and rounded once, so that last-bit differences of log and cos between devices vanish.
    """
    n = math.prod(shape)
    pairs = (n + 1) // 2
    words = _words(seed, ids, purpose, 2 * pairs, index, device).double()
    radius = ((words[:, :pairs] + 0.5) * 2.0**-32).log_().mul_(-2).sqrt_()
    angle = words[:, pairs:] * (2.0**-31 * math.pi)
    return torch.cat((radius * angle.cos(), radius * angle.sin()), 1)[:, :n].float().view(-1, *shape)


def integers(
    seed: int,
    ids: Tensor,
    purpose: str,
    high: int | Tensor,
    shape: tuple[int, ...],
    *,
    index: int | Tensor = 0,
    device=None,
) -> Tensor:
    """Uniform int64 (B, *shape) in [0, high); high: int or integer (B,), 1 <= high <= 2^31.

    The other arguments are those of `uniform`. The multiply-and-shift map changes a value's probability by at
    most a factor 1 + high / 2^32.
    """
    words = _words(seed, ids, purpose, math.prod(shape), index, device)
    if isinstance(high, Tensor):
        high = high.to(words.device, torch.int64).view(-1, 1)
        low_bad, high_bad = bool((high < 1).any()), bool((high > 2**31).any())
    else:
        low_bad, high_bad = high < 1, high > 2**31
    if low_bad or high_bad:
        raise ValueError(f"high must be between 1 and 2^31, got {high}")
    return ((words * high) >> 32).view(-1, *shape)


def _words(seed: int, ids: Tensor, purpose: str, n: int, index: int | Tensor, device) -> Tensor:
    """n 32-bit words per sample, int64 (B, n). Counter: (block, index, sample id, purpose); key: the seed."""
    if not 0 <= seed < 2**64:
        raise ValueError(f"seed must be in [0, 2^64), got {seed}")
    ids = torch.as_tensor(ids).to(device if device is not None else ids.device, torch.int64)
    if ids.ndim != 1:
        raise ValueError(f"ids must have shape (B,), got {tuple(ids.shape)}")
    index = torch.as_tensor(index).to(ids.device, torch.int64).expand(ids.shape)
    _check_32_bits("ids", ids)
    _check_32_bits("index", index)
    blocks = -(-n // 4)
    counter = torch.empty(4, ids.shape[0], blocks, dtype=torch.int64, device=ids.device)
    counter[0] = torch.arange(blocks, device=ids.device)
    counter[1] = index.unsqueeze(1)
    counter[2] = ids.unsqueeze(1)
    counter[3] = purpose_id(purpose)
    words = philox(counter, (seed & _MASK, seed >> 32))
    return words.permute(1, 2, 0).reshape(ids.shape[0], 4 * blocks)[:, :n]


def _check_32_bits(name: str, values: Tensor) -> None:
    if values.numel() and (int(values.min()) < 0 or int(values.max()) > _MASK):
        raise ValueError(f"{name} must be in [0, 2^32), got {int(values.min())} to {int(values.max())}")
