"""The paper's initial checkpoints at true size: random weights, the real timm and Hub client."""

from __future__ import annotations

import pytest
import timm
import torch
from checkpoints import COMMIT, put_in_cache
from huggingface_hub import constants

from robustzoo.models import build_network
from robustzoo.models.initial import load_initial, resample_kernel, resize_position_embedding

LARGE, STEM = "vit_large_patch16_224.augreg_in21k", "vit_base_r50_s16_224.orig_in21k"
FIRST = {"vit_l16": "patch_embed.proj.weight", "hybrid_l16": "patch_embed.backbone.stem.conv.weight"}


def put(cache, tag):
    """Random weights of the tag's network, written to the cache at COMMIT."""
    network = timm.create_model(tag, pretrained=False)
    state = network.state_dict()
    return put_in_cache(cache, tag, state), state


@pytest.mark.slow
def test_the_checkpoints_of_vit_l16_and_hybrid_l16_on_32_pixels(tmp_path, monkeypatch):
    """About 1.7 GB on disk and 6 GB of memory."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    files = []
    try:
        file, large = put(tmp_path, LARGE)
        files.append(file)
        file, stem = put(tmp_path, STEM)
        files.append(file)
        assert large["head.weight"].shape == (21843, 1024)
        stem = {name: tensor for name, tensor in stem.items() if name.startswith("patch_embed.backbone.")}
        body = {name: t for name, t in large.items() if not name.startswith(("head.", "patch_embed."))}
        patches = {name: tensor for name, tensor in large.items() if name.startswith("patch_embed.")}
        for key, init, source in (
            ("vit_l16", f"timm:{LARGE}@{COMMIT}", body | patches),
            ("hybrid_l16", f"timm:{STEM}+{LARGE}@{COMMIT}+{COMMIT}", body | stem),
        ):
            network = build_network(key, 32, 3, 10)
            said = load_initial(network, init, kernel_downsampling="cubic")
            assert "(cubic)" in said and said.endswith("with a new class head for 10 classes")
            check(network, source, FIRST[key])
            del network
    finally:
        for file in files:
            file.unlink()


def check(network, source, first):
    loaded = network.state_dict()
    grid = network.patch_embed.grid_size
    adapted = {
        first: resample_kernel(source[first], loaded[first].shape[-1], "cubic"),
        "pos_embed": resize_position_embedding(source["pos_embed"], grid),
    }
    wanted = source | adapted
    assert all(torch.equal(loaded[name], tensor) for name, tensor in wanted.items())
    new = {name.rpartition(".")[0] for name in loaded if name not in wanted}
    assert new == ({"head"} if first == FIRST["vit_l16"] else {"head", "patch_embed.proj"})
    with torch.no_grad():
        logits = network.eval()(torch.randn(2, 3, 32, 32))
    assert logits.shape == (2, 10) and logits.isfinite().all()
