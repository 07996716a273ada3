"""Keyed noise: known answers, independence of the batch, distribution."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from robustzoo import keyed_noise

# Random123's kat_vectors for philox4x32-10: counter, key, output.
KNOWN_ANSWERS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]
STORED_INTEGERS = [[1483931207, 1811857085], [618976730, 611878303]]
DRAWS = {
    "uniform": lambda seed, ids, purpose, shape, **kw: keyed_noise.uniform(seed, ids, purpose, shape, **kw),
    "normal": lambda seed, ids, purpose, shape, **kw: keyed_noise.normal(seed, ids, purpose, shape, **kw),
    "integers": lambda seed, ids, purpose, shape, **kw: keyed_noise.integers(
        seed, ids, purpose, 1000, shape, **kw
    ),
}


@pytest.mark.parametrize("counter, key, expected", KNOWN_ANSWERS)
def test_philox_gives_the_published_answers(counter, key, expected):
    words = torch.tensor(counter).view(4, 1).expand(4, 3)
    assert keyed_noise.philox(words, key).T.tolist() == [list(expected)] * 3


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
@settings(max_examples=20)
@given(data=st.data())
def test_a_draw_depends_only_on_its_key(draw, data):
    ids = torch.tensor(data.draw(st.lists(st.integers(0, 2**32 - 1), min_size=2, max_size=9, unique=True)))
    index = torch.tensor(data.draw(st.lists(st.integers(0, 2**32 - 1), min_size=len(ids), max_size=len(ids))))
    seed = data.draw(st.integers(0, 2**64 - 1))
    whole = draw(seed, ids, "p", (3, 2), index=index)
    order = torch.randperm(len(ids))
    assert torch.equal(draw(seed, ids[order], "p", (3, 2), index=index[order]), whole[order])
    assert torch.equal(draw(seed, ids[:1], "p", (3, 2), index=index[:1]), whole[:1])


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_every_part_of_the_key_matters(draw):
    ids = torch.arange(4)
    base = draw(1, ids, "p", (8,))
    others = [
        draw(2, ids, "p", (8,)),
        draw(1 + 2**32, ids, "p", (8,)),
        draw(1, ids + 4, "p", (8,)),
        draw(1, ids, "q", (8,)),
        draw(1, ids, "p", (8,), index=1),
    ]
    assert all(not torch.equal(base, other) for other in others)
    assert len({tuple(row) for row in base.tolist()}) == 4


def test_distributions():
    ids = torch.arange(50)
    u = keyed_noise.uniform(0, ids, "u", (1000,))
    assert u.dtype == torch.float32 and float(u.min()) >= 0 and float(u.max()) < 1
    assert stats.kstest(u.flatten().numpy(), "uniform").pvalue > 1e-3
    z = keyed_noise.normal(0, ids, "z", (999,))
    assert z.shape == (50, 999) and z.dtype == torch.float32
    assert stats.kstest(z.flatten().numpy(), "norm").pvalue > 1e-3
    k = keyed_noise.integers(0, ids, "k", 7, (1000,))
    assert stats.chisquare(torch.bincount(k.flatten(), minlength=7).numpy()).pvalue > 1e-3


def test_integers_with_a_bound_per_sample():
    high = torch.tensor([1, 2, 2**31])
    k = keyed_noise.integers(3, torch.arange(3), "k", high, (500,))
    assert (k >= 0).all() and (k < high.unsqueeze(1)).all()
    assert k[0].unique().tolist() == [0] and k[1].unique().tolist() == [0, 1]


def test_purpose_id_is_stable():
    assert keyed_noise.purpose_id("apgd-ce") == keyed_noise.purpose_id("apgd-ce") < 2**32
    assert keyed_noise.purpose_id("apgd-ce") != keyed_noise.purpose_id("apgd-t")


def test_stored_draws():
    """Evidence names a seed: these numbers may never change between versions."""
    ids = torch.tensor([0, 7])
    assert keyed_noise.integers(0, ids, "stored", 2**31, (2,)).tolist() == STORED_INTEGERS


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((-1, torch.arange(2), "p", (1,)), "seed"),
        ((0, torch.tensor([-1]), "p", (1,)), "ids"),
        ((0, torch.tensor([2**32]), "p", (1,)), "ids"),
        ((0, torch.zeros(1, 1, dtype=torch.int64), "p", (1,)), "shape"),
    ],
)
def test_values_out_of_range_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        keyed_noise.uniform(*arguments)


def test_integers_refuses_an_empty_range():
    with pytest.raises(ValueError, match="high"):
        keyed_noise.integers(0, torch.arange(2), "p", 0, (1,))


def test_empty_batch():
    assert keyed_noise.uniform(0, torch.arange(0), "p", (2, 3)).shape == (0, 2, 3)
