"""Checkpoints of another geometry: through timm and its Hub cache, from files, adapted or refused."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest
import timm
import torch
from checkpoints import COMMIT, jax_arrays, put_in_cache, randomise
from huggingface_hub import constants
from safetensors.torch import save_file

from robustzoo.errors import RobustzooError
from robustzoo.models.initial import METHODS, load_initial, resample_kernel, resize_position_embedding

TINY = {"embed_dim": 192, "depth": 12, "num_heads": 3}
SMALL = {"embed_dim": 32, "depth": 2, "num_heads": 2}
TAG = "vit_tiny_patch16_224.augreg_in21k"
STEM_TAG = "vit_base_r50_s16_224.orig_in21k"
KINDS = ("npz", "safetensors")
FIRST, STEM = "patch_embed.proj.weight", "patch_embed.backbone.stem.conv.weight"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The Hub client's cache, empty; the client may not ask anyone."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(time, "sleep", lambda seconds: None)  # between the client's tries
    return tmp_path / "cache"


def overlapping(**changes):
    return timm.create_model("robustzoo_vit_base_k4s2", **SMALL | {"num_classes": 10} | changes)


def hybrid(size=32, **changes):
    name = {32: "robustzoo_vit_large_r50_s4", 224: "robustzoo_vit_large_r50_s16"}[size]
    return timm.create_model(name, **SMALL | {"num_classes": 10} | changes)


def of_the_paper(name="vit_base_patch16_224", **changes):
    """A random 224x224 network with an ImageNet-21k like head of another number of classes."""
    return randomise(timm.create_model(name, **SMALL | {"num_classes": 21} | changes), seed=3)


def copy(network):
    return {name: tensor.clone() for name, tensor in network.state_dict().items()}


def same(a, b, but=()):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a if name not in but)


def check_adapted(network, source, method, first=FIRST):
    """`network` holds `source`, resampled where it must be, under a new head."""
    loaded = network.state_dict()
    head = {name: tensor for name, tensor in loaded.items() if name.startswith("head.")}
    assert same(loaded, {**source, **head}, but=(first, "pos_embed"))
    size, grid = loaded[first].shape[-1], network.patch_embed.grid_size
    assert torch.equal(loaded[first], resample_kernel(source[first], size, method))
    assert torch.equal(loaded["pos_embed"], resize_position_embedding(source["pos_embed"], grid))
    assert loaded["head.bias"].abs().max() == 0 and loaded["head.weight"].shape[0] == 10
    assert 0.01 < loaded["head.weight"].std() < 0.03


# --- timm and the Hub client, from a cache made by hand ---


def test_a_timm_tag_from_a_cache_made_by_hand(cache):
    source = randomise(timm.create_model("vit_tiny_patch16_224", num_classes=21843), seed=4)
    put_in_cache(cache, TAG, source.state_dict())
    network = overlapping(**TINY)
    said = load_initial(network, f"timm:{TAG}@{COMMIT}", kernel_downsampling="cubic")
    assert said == (
        f"timm:{TAG}@{COMMIT}, first kernel 16x16 to 4x4 (cubic), "
        "position embedding of 197 tokens resized to 226, with a new class head for 10 classes"
    )
    check_adapted(network, source.state_dict(), "cubic")
    assert network(torch.zeros(1, 3, 32, 32)).isfinite().all()


def test_another_revision_than_the_cached_one_is_not_taken(cache):
    network = overlapping(**TINY)
    before = copy(network)
    put_in_cache(cache, TAG, {"x": torch.zeros(1)})
    with pytest.raises(RobustzooError, match=f"(?s)could not be had.*hf download timm/{TAG} --revision 0000"):
        load_initial(network, f"timm:{TAG}@{'0' * 40}", kernel_downsampling="cubic")
    with pytest.raises(RobustzooError, match=r"(?s)could not be had.*Missing key"):
        load_initial(network, f"timm:{TAG}@{COMMIT}", kernel_downsampling="cubic")
    assert same(before, network.state_dict())


def test_a_hybrid_of_two_timm_tags_from_a_cache_made_by_hand(cache):
    stem = randomise(timm.create_model("vit_base_r50_s16_224", num_classes=0), seed=5).state_dict()
    put_in_cache(cache, STEM_TAG, stem)
    transformer = randomise(timm.create_model("vit_tiny_patch16_224", num_classes=21843), seed=4).state_dict()
    put_in_cache(cache, TAG, transformer, "0" * 40)
    network = hybrid(**TINY)
    init = f"timm:{STEM_TAG}+{TAG}@{COMMIT}+{'0' * 40}"
    said = load_initial(network, init, kernel_downsampling="bilinear")
    assert said == (
        f"{init}, first kernel 7x7 to 3x3 (bilinear), position embedding of 197 tokens resized to 65, "
        "with a new projection after the stem, with a new class head for 10 classes"
    )
    loaded = network.state_dict()
    new = {f"patch_embed.proj.{leaf}": loaded[f"patch_embed.proj.{leaf}"] for leaf in ("weight", "bias")}
    source = {name: t for name, t in transformer.items() if not name.startswith("patch_embed")} | new
    source |= {name: t for name, t in stem.items() if name.startswith("patch_embed.backbone.")}
    check_adapted(network, source, "bilinear", STEM)
    assert new["patch_embed.proj.weight"].shape == (192, 1024, 1, 1)
    assert new["patch_embed.proj.bias"].abs().max() == 0
    assert new["patch_embed.proj.weight"].std() == pytest.approx(0.02, rel=0.02)


@pytest.mark.parametrize(
    ("make", "init", "words"),
    [
        (overlapping, "timm:a+b@unpinned+unpinned", "has no convolutional stem: expected timm:TAG@REVISION"),
        (hybrid, "timm:a+b@unpinned", "neither random, timm:TAG@REVISION nor a Path"),
        (hybrid, "timm:a@unpinned+unpinned", "neither random"),
        (hybrid, "timm:a+b+c@x+y+z", "neither random"),
        (hybrid, "timm:a+@unpinned+unpinned", "neither random"),
        (hybrid, "a+b@unpinned+unpinned", "neither random"),
    ],
)
def test_malformed_pairs(make, init, words):
    with pytest.raises(RobustzooError, match=words):
        load_initial(make(), init)


@pytest.mark.parametrize("init", ["timm:plain@unpinned", "timm:plain+plain@unpinned+unpinned"])
def test_a_hybrid_does_not_start_without_a_stem(monkeypatch, init):
    source, network = of_the_paper(), hybrid()
    before = copy(network)
    monkeypatch.setattr(timm, "create_model", lambda tag, **arguments: source)
    with pytest.raises(RobustzooError, match="has no convolutional stem"):
        load_initial(network, init, kernel_downsampling="cubic")
    assert same(before, network.state_dict())


# --- files ---


@pytest.fixture
def write(tmp_path):
    """write(network, kind): its weights as a file of that kind."""

    def written(network, kind, **changes):
        path = tmp_path / f"initial.{kind}"
        if kind == "npz":
            np.savez(path, **jax_arrays(network) | changes)
        else:
            save_file(network.state_dict() | changes, path)
        return path

    return written


@pytest.mark.parametrize(("method", "kind"), zip(METHODS, itertools.cycle(KINDS), strict=False))
def test_a_transformer_of_224_pixels_on_32(write, kind, method):
    source, network = of_the_paper(), overlapping()
    said = load_initial(network, write(source, kind), kernel_downsampling=method)
    assert f"first kernel 16x16 to 4x4 ({method})" in said
    check_adapted(network, source.state_dict(), method)


@pytest.mark.parametrize(
    ("method", "kind"), zip(["cubic", "bilinear", "nearest"], itertools.cycle(KINDS), strict=False)
)
def test_a_hybrid_of_224_pixels_on_32(write, kind, method):
    source, network = of_the_paper("robustzoo_vit_large_r50_s16"), hybrid()
    said = load_initial(network, write(source, kind), kernel_downsampling=method)
    assert f"first kernel 7x7 to 3x3 ({method})" in said and "projection" not in said
    check_adapted(network, source.state_dict(), method, STEM)


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_of_the_same_geometry_needs_no_method(write, kind):
    source, network = of_the_paper("robustzoo_vit_large_r50_s16"), hybrid(224, num_classes=21)
    path = write(source, kind)
    assert load_initial(network, path) == f"{path}, class head included"
    assert same(network.state_dict(), source.state_dict())


def test_a_checkpoint_of_384_pixels_on_224(write):
    source = of_the_paper(img_size=384)
    network = timm.create_model("vit_base_patch16_224", **SMALL, num_classes=10)
    said = load_initial(network, write(source, "npz"))
    assert "position embedding of 577 tokens resized to 197" in said and "kernel" not in said


def test_the_checkpoint_with_block_sum_is_the_original_on_the_enlarged_image(write):
    """The whole chain: tokens of the loaded network are those of the original on repeated pixels."""
    source, network = of_the_paper().eval(), overlapping().eval()
    load_initial(network, write(source, "npz"), kernel_downsampling="block_sum")
    image = torch.rand(1, 3, 32, 32)
    large = image.repeat_interleave(4, 2).repeat_interleave(4, 3)
    wanted = torch.nn.functional.conv2d(
        large, source.patch_embed.proj.weight, source.patch_embed.proj.bias, 8
    )
    assert torch.allclose(network.patch_embed(image), wanted.flatten(2).transpose(1, 2), atol=1e-5)


MISFITS = [
    (overlapping, {}, None, "kernels of side 16 and the network's have side 4.*cubic, bilinear, nearest"),
    (overlapping, {}, "bicubic", "'bicubic'; expected one of cubic"),
    (overlapping, {"depth": 3}, "cubic", "blocks.2.attn.proj.bias is unknown"),
    (overlapping, {"depth": 1}, "cubic", "blocks.1.attn.proj.bias is missing"),
    (overlapping, {"embed_dim": 64}, "cubic", r"attn.proj.bias has shape \(64,\), not \(32,\)"),
    (
        overlapping,
        {"in_chans": 1},
        "cubic",
        r"proj.weight has shape \(32, 1, 4, 4\), not \(32, 3, 4, 4\)",
    ),
    (overlapping, {"patch_size": 2, "img_size": 32}, "cubic", r"\(32, 3, 2, 2\), not \(32, 3, 4, 4\)"),
    (overlapping, {"name": "robustzoo_vit_large_r50_s16"}, "cubic", "patch_embed.backbone.* is unknown"),
    (hybrid, {}, "cubic", r"initial\.\w+ has no convolutional stem .* hybrid needs"),
    (hybrid, {"name": "robustzoo_vit_large_r50_s16"}, None, "kernels of side 7 .* have side 3"),
    (hybrid, {"name": "robustzoo_vit_large_r50_s16"}, "block_sum", "side 7 into side 3.*use another"),
]


@pytest.mark.parametrize(
    ("make", "source", "method", "words", "kind"),
    [(*misfit, kind) for misfit, kind in zip(MISFITS, itertools.cycle(KINDS), strict=False)],
)
def test_what_does_not_fit_is_refused_and_changes_nothing(write, make, source, method, words, kind):
    network = make()
    before = copy(network)
    with pytest.raises(RobustzooError, match=words):
        load_initial(network, write(of_the_paper(**source), kind), kernel_downsampling=method)
    assert same(before, network.state_dict())


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "model.", "network.", "module._orig_mod.model."])
def test_a_prefix_of_wrappers_is_found_and_said(tmp_path, prefix):
    source, network = of_the_paper(), overlapping()
    path = tmp_path / "wrapped.safetensors"
    save_file({prefix + name: tensor for name, tensor in source.state_dict().items()}, path)
    said = load_initial(network, path, kernel_downsampling="cubic")
    assert said.startswith(f"{path}, names without their prefix {prefix!r}, first kernel")
    check_adapted(network, source.state_dict(), "cubic")


def test_a_prefix_of_some_names_alone_is_no_wrapper(tmp_path):
    state = of_the_paper().state_dict()
    save_file(
        {f"module.{name}": t for name, t in state.items()} | {"norm.weight": torch.ones(32)},
        tmp_path / "w",
    )
    with pytest.raises(RobustzooError, match="does not fit the network"):
        load_initial(overlapping(), tmp_path / "w", kernel_downsampling="cubic")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"weights": np.zeros((3, 3), np.float32)}, "does not have: weights; expected names such as"),
        ({"cls": np.full((1, 1, 32), np.nan, np.float32)}, "cls_token has values that are not finite"),
        ({"head/bias": np.full(21, np.inf, np.float32)}, "head.bias has values that are not finite"),
        ({"Transformer/encoder_norm/scale": np.ones(1, np.float32)}, r"norm.weight has shape \(1,\), not"),
    ],
)
def test_wrong_arrays_are_refused_and_change_nothing(write, changes, words):
    network = overlapping()
    before = copy(network)
    with pytest.raises(RobustzooError, match=words):
        load_initial(network, write(of_the_paper(), "npz", **changes), kernel_downsampling="cubic")
    assert same(before, network.state_dict())


def test_an_unreadable_npz(tmp_path):
    (tmp_path / "a.npz").write_bytes(b"PK\x03\x04 and no more")
    with pytest.raises(RobustzooError, match=r"--init .*a\.npz is not a readable \.npz"):
        load_initial(overlapping(), tmp_path / "a.npz")


def test_a_pointer_of_git_lfs_and_float8_are_named(tmp_path):
    network = timm.create_model("vit_tiny_patch16_224", **SMALL)
    pointer = tmp_path / "pointer.safetensors"
    pointer.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    with pytest.raises(RobustzooError, match=r"--init .*pointer of Git LFS"):
        load_initial(network, pointer)
    weights = {name: tensor.to(torch.float8_e4m3fn) for name, tensor in network.state_dict().items()}
    save_file(weights, tmp_path / "small.safetensors")
    with pytest.raises(RobustzooError, match="float8_e4m3fn, not floating-point numbers of 16 bits"):
        load_initial(network, tmp_path / "small.safetensors")
