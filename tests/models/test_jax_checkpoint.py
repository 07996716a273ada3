"""Files of the original JAX release: every array to its place, as timm reads them, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
import timm
import torch
from checkpoints import jax_arrays, randomise

from robustzoo.errors import RobustzooError
from robustzoo.models.jax_checkpoint import read_jax_checkpoint

SMALL = {"embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 10}


@pytest.fixture(scope="module", params=["vit_base_patch16_224", "robustzoo_vit_large_r50_s16"])
def network(request):
    return randomise(timm.create_model(request.param, **SMALL), seed=1)


@pytest.fixture
def plain():
    """A small transformer without stem and its arrays."""
    network = randomise(timm.create_model("vit_base_patch16_224", **SMALL), seed=1)
    return network, jax_arrays(network)


@pytest.mark.parametrize("prefix", ["", "opt/target/"])
def test_every_tensor_is_read(network, tmp_path, prefix):
    path = tmp_path / "release.npz"
    np.savez(path, **{prefix + name: array for name, array in jax_arrays(network).items()})
    found, wanted = read_jax_checkpoint(path), network.state_dict()
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_timm_reads_the_same(network, tmp_path):
    path = tmp_path / "release.npz"
    np.savez(path, **jax_arrays(network))
    other = timm.create_model(network.pretrained_cfg["architecture"], **SMALL)
    other.load_pretrained(str(path))
    found = read_jax_checkpoint(path)
    assert all(torch.equal(found[name], tensor) for name, tensor in other.state_dict().items())


def test_a_representation_layer_goes_and_takes_the_head_along(plain, tmp_path):
    network, arrays = plain
    np.savez(
        tmp_path / "a.npz", **arrays, **{"pre_logits/kernel": np.eye(32), "pre_logits/bias": np.zeros(32)}
    )
    found = read_jax_checkpoint(tmp_path / "a.npz")
    assert set(network.state_dict()) - set(found) == {"head.weight", "head.bias"}


def test_double_and_half_precision_become_float32(plain, tmp_path):
    _, arrays = plain
    arrays["cls"] = arrays["cls"].astype(np.float64)
    arrays["embedding/bias"] = arrays["embedding/bias"].astype(np.float16)
    np.savez_compressed(tmp_path / "a.npz", **arrays)
    assert all(tensor.dtype == torch.float32 for tensor in read_jax_checkpoint(tmp_path / "a.npz").values())


ATTENTION = "Transformer/encoderblock_1/MultiHeadDotProductAttention_1"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"image": np.zeros((2, 32, 32, 3), np.float32)}, "does not have: image; expected names such as"),
        ({"Transformer/encoderblock_0/LayerNorm_9/scale": np.ones(32)}, "does not have: .*LayerNorm_9/scale"),
        (
            {"Transformer/encoderblock_0/LayerNorm_0/offset": np.ones(32)},
            "does not have: .*LayerNorm_0/offset",
        ),
        ({"block0/unit1/conv1/kernel": np.zeros((1, 1, 2, 2))}, "does not have: block0/unit1/conv1/kernel"),
        ({f"{ATTENTION}/gate/kernel": np.ones((32, 2, 16))}, "does not have: .*gate/kernel"),
        ({f"{ATTENTION}/key/kernel": np.ones((32, 2, 8))}, "needs query, key and value of one shape"),
        (
            {f"{ATTENTION}/value/bias": None},
            r"blocks.1.attn.qkv.bias needs query, .* found query \(32,\), key",
        ),
        ({"cls": np.zeros((1, 1, 32), np.int64)}, "cls holds int64"),
        ({"embedding/kernel": np.zeros(3)}, r"embedding/kernel has shape \(3,\)"),
        ({"embedding/bias": np.array(0.0)}, r"embedding/bias has shape \(\)"),
        ({"embedding/bias": np.array(["a"], dtype=object)}, "not a readable .npz of number arrays"),
    ],
)
def test_other_files_are_refused(plain, tmp_path, changes, words):
    _, arrays = plain
    arrays |= changes
    np.savez(tmp_path / "a.npz", **{name: array for name, array in arrays.items() if array is not None})
    with pytest.raises(RobustzooError, match=words):
        read_jax_checkpoint(tmp_path / "a.npz")


def test_damaged_files_are_refused(plain, tmp_path):
    _, arrays = plain
    path = tmp_path / "a.npz"
    np.savez_compressed(path, **arrays)
    whole = path.read_bytes()
    middle = len(whole) // 2
    for damaged in (b"", b"text", whole[:middle], whole[:middle] + b"\xff" * 64 + whole[middle + 64 :]):
        path.write_bytes(damaged)
        with pytest.raises(RobustzooError, match=r"not a readable \.npz"):
            read_jax_checkpoint(path)
    np.save(tmp_path / "b.npy", arrays["cls"])
    with pytest.raises(RobustzooError, match=r"not a readable \.npz"):
        read_jax_checkpoint(tmp_path / "b.npy")
