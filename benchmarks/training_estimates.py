"""What training the paper's ViTs on ImageNet takes on 1, 8 and 64 GPUs: estimates from pass counts.

    python benchmarks/training_estimates.py [--tflops 989] [--utilisation 0.35]

Nothing is measured here. Time is the recipe's images times its passes (`Recipe.cost`, B = F, T = 3 F) times
the operations of a forward pass, over what the GPUs do in a second: their dense bf16 peak (989 TFLOP/s is the
H100 SXM's, by its data sheet) times a share of it that is a guess. Communication is not counted.

Memory per GPU:
- weights and optimizer, float32, ZeRO stage s on W GPUs, P weights and k optimizer states a weight (SGD with
  momentum 1, Adam 2): 4 P + 4 P + (4 + 4 k) P / W for s = 1 (weights; gradients; DeepSpeed's own copy of the
  weights and the states), with the gradients over W too for s = 2, and all of it over W for s = 3.
- activations of the training pass in half precision: 34 bytes a token, channel and block (Korthikanti et al.
  2022, without the attention matrix, which fused attention does not keep), or with activation checkpointing 4
  (the float32 stream between blocks) and one block's 34. The attack keeps less.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from robustzoo.registry import Recipe, recipe
from robustzoo.registry.catalog import ARCHITECTURES

MODELS = (
    "vit_b16.imagenet_linf.at_trh",
    "vit_l16.imagenet_linf.at_trh",
    "vit_l16.imagenet_linf.trades_trh",
)
GPUS = (1, 8, 64)
DEPTHS = {"vit_b16": 12, "vit_l16": 24}
PATCH, MLP_RATIO = 16, 4
TFLOPS, UTILISATION = 989.0, 0.35
BYTES_KEPT, BYTES_STREAM = 34, 4  # of a token, channel and block


def tokens(plan: Recipe) -> int:
    """Patches and the class token."""
    return (plan.image_size // PATCH) ** 2 + 1


def forward_flops(plan: Recipe) -> float:
    """Floating-point operations of one image's forward pass; a multiplication and an addition are two.

    Per block and token 2 (4 + 2 MLP_RATIO) d^2 for products with weights and 4 N d for those of attention,
    and 2 (3 PATCH^2) d per patch for its embedding; the head is left out.
    """
    n, d = tokens(plan), ARCHITECTURES[plan.architecture].networks[plan.image_size].width
    block = n * (2 * (4 + 2 * MLP_RATIO) * d * d + 4 * n * d)
    return DEPTHS[plan.architecture] * block + (n - 1) * 2 * plan.channels * PATCH * PATCH * d


def hours(plan: Recipe, gpus: int, tflops: float = TFLOPS, utilisation: float = UTILISATION) -> float:
    """Hours of the whole training."""
    cost = plan.cost()
    operations = cost["images_seen"] * cost["forward_equivalents"] * forward_flops(plan)
    return operations / (gpus * tflops * 1e12 * utilisation) / 3600


def state_gigabytes(plan: Recipe, gpus: int, zero_stage: int) -> float:
    """Weights, gradients and optimizer of one GPU, in 10^9 bytes."""
    weights = ARCHITECTURES[plan.architecture].parameter_count(
        plan.image_size, plan.num_classes, plan.patch_stride
    )
    states = 1 if plan.optimizer == "sgd" else 2
    whole = {1: 8, 2: 4, 3: 0}[zero_stage]
    return weights * (whole + (12 + 4 * states - whole) / gpus) / 1e9


def activation_gigabytes(plan: Recipe, images: int, *, checkpointing: bool = False) -> float:
    """What the training pass of so many images keeps for its backward pass, in 10^9 bytes."""
    d, depth = ARCHITECTURES[plan.architecture].networks[plan.image_size].width, DEPTHS[plan.architecture]
    rows = images * (2 if plan.cost()["training"] > 1 else 1)  # clean and adversarial in one call
    kept = BYTES_KEPT + BYTES_STREAM * depth if checkpointing else BYTES_KEPT * depth
    return rows * tokens(plan) * d * kept / 1e9


def table(tflops: float = TFLOPS, utilisation: float = UTILISATION) -> str:
    """Markdown, one row a recipe and number of GPUs."""
    states = "weights and optimizer, ZeRO 1 / 2 / 3, GB"
    lines = [
        f"| recipe | GPUs | images a GPU | hours | {states} | activations, GB | recomputed, GB |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in MODELS:
        plan = recipe(name)
        for gpus in GPUS:
            share = plan.batch_size // gpus
            states = " / ".join(f"{state_gigabytes(plan, gpus, stage):.1f}" for stage in (1, 2, 3))
            lines.append(
                f"| {name} | {gpus} | {share} | {hours(plan, gpus, tflops, utilisation):,.2g} | {states} | "
                f"{activation_gigabytes(plan, share):.1f} | "
                f"{activation_gigabytes(plan, share, checkpointing=True):.1f} |"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tflops", type=float, default=TFLOPS, help="dense peak of a GPU in half precision")
    parser.add_argument("--utilisation", type=float, default=UTILISATION, help="share of it, in (0, 1]")
    given = parser.parse_args()
    print(table(given.tflops, given.utilisation))


if __name__ == "__main__":
    main()
