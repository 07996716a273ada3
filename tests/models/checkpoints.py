"""Checkpoints as others publish them: the arrays of the JAX release, and a Hub cache of a timm tag."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn

COMMIT = "89abcdef0123456789abcdef0123456789abcdef"


def jax_arrays(network: nn.Module) -> dict[str, np.ndarray]:
    """The weights of a timm transformer or R50 hybrid as the original release names and shapes them."""
    state = {name: tensor.detach().numpy() for name, tensor in network.state_dict().items()}
    heads = network.blocks[0].attn.num_heads

    def linear(name):  # (out, in) -> (in, out)
        return {"kernel": state[f"{name}.weight"].T, "bias": state[f"{name}.bias"]}

    def conv(name):  # (out, in, h, w) -> (h, w, in, out)
        return state[f"{name}.weight"].transpose(2, 3, 1, 0)

    def norm(name, shape=(-1,)):
        return {
            "scale": state[f"{name}.weight"].reshape(shape),
            "bias": state[f"{name}.bias"].reshape(shape),
        }

    made = {"cls": state["cls_token"], "Transformer/posembed_input/pos_embedding": state["pos_embed"]}

    def put(module, leaves):
        made.update({f"{module}/{leaf}": array for leaf, array in leaves.items()})

    put("embedding", {"kernel": conv("patch_embed.proj"), "bias": state["patch_embed.proj.bias"]})
    put("head", linear("head"))
    put("Transformer/encoder_norm", norm("norm"))
    for i in range(len(network.blocks)):
        ours, theirs = f"blocks.{i}", f"Transformer/encoderblock_{i}"
        put(f"{theirs}/LayerNorm_0", norm(f"{ours}.norm1"))
        put(f"{theirs}/LayerNorm_2", norm(f"{ours}.norm2"))
        put(f"{theirs}/MlpBlock_3/Dense_0", linear(f"{ours}.mlp.fc1"))
        put(f"{theirs}/MlpBlock_3/Dense_1", linear(f"{ours}.mlp.fc2"))
        attention = f"{theirs}/MultiHeadDotProductAttention_1"
        weights = state[f"{ours}.attn.qkv.weight"].reshape(3, heads, -1, network.embed_dim)
        biases = state[f"{ours}.attn.qkv.bias"].reshape(3, heads, -1)
        for part, weight, bias in zip(("query", "key", "value"), weights, biases, strict=True):
            put(f"{attention}/{part}", {"kernel": weight.transpose(2, 0, 1), "bias": bias})
        out = linear(f"{ours}.attn.proj")
        put(
            f"{attention}/out",
            {"kernel": out["kernel"].reshape(heads, -1, network.embed_dim), "bias": out["bias"]},
        )
    if hasattr(network.patch_embed, "backbone"):
        four = (1, 1, 1, -1)  # the release keeps a group norm's parameters with all four axes
        stem = "patch_embed.backbone"
        made["conv_root/kernel"] = conv(f"{stem}.stem.conv")
        put("gn_root", norm(f"{stem}.stem.norm", four))
        for i, stage in enumerate(network.patch_embed.backbone.stages):
            for j, block in enumerate(stage.blocks):
                ours, theirs = f"{stem}.stages.{i}.blocks.{j}", f"block{i + 1}/unit{j + 1}"
                for r in (1, 2, 3):
                    made[f"{theirs}/conv{r}/kernel"] = conv(f"{ours}.conv{r}")
                    put(f"{theirs}/gn{r}", norm(f"{ours}.norm{r}", four))
                if block.downsample is not None:
                    made[f"{theirs}/conv_proj/kernel"] = conv(f"{ours}.downsample.conv")
                    put(f"{theirs}/gn_proj", norm(f"{ours}.downsample.norm", four))
    return made


def put_in_cache(cache: Path, tag: str, state: dict[str, torch.Tensor], commit: str = COMMIT) -> Path:
    """The cache tree of timm/TAG at `commit`, with no branch in it; returns the weights' file."""
    snapshot = cache / f"models--timm--{tag}" / "snapshots" / commit
    snapshot.mkdir(parents=True)
    save_file(state, snapshot / "model.safetensors", metadata={"format": "pt"})
    return snapshot / "model.safetensors"


def randomise(network: nn.Module, seed: int) -> nn.Module:
    """Fill every parameter, biases and norms too, so that no two tensors could be exchanged unseen."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(std=0.1, generator=generator)
    return network
