"""Every loss with TrH on every ZeRO stage, one and two ranks: the weights of plain PyTorch.

SGD, a batch of 8: Adam divides a gradient by its size, so that one which is rounding alone (the bias of the
keys, which softmax cancels) becomes a step of the full rate. The tiny network really is sharded: no weight
is too small for ZeRO 3, and a gradient bucket is a quarter of it.
"""

from __future__ import annotations

import pytest
import torch

from tests.training.plain_pytorch import largest_difference, plain_pytorch
from tests.training.ranks import run_on_ranks
from tests.training.small import SGD, small

DIGITS = "vit_micro2.digits_linf"
LOSSES = ("at", "trades", "alp", "mart")
STAGES = {f"zero{stage}": ["--zero", str(stage)] for stage in range(4)}
MORE = {  # of AT alone: what they change has nothing to do with the loss
    "accumulated": ["--zero", "1", "--micro-batch", "2"],
    "accumulated3": ["--zero", "3", "--micro-batch", "2"],
    "offloaded": ["--zero", "2", "--offload", "optimizer"],
    "offloaded3": ["--zero", "3", "--offload", "optimizer"],
    "recomputed": ["--zero", "2", "--activation-checkpointing"],
    "recomputed3": ["--zero", "3", "--activation-checkpointing"],
}


def layouts(loss: str) -> dict[str, list[str]]:
    """Name -> flags."""
    return STAGES | (MORE if loss == "at" else {})


def arguments_of(loss: str, steps: int) -> list[str]:
    """A uniform start for TRADES: at its own, 0.001 from the image, the gradient is all but zero."""
    start = ["--set", "attack_start=uniform"] if loss == "trades" else []
    return [f"{DIGITS}.{loss}_trh", *small(total_steps=steps), *start, *SGD]


@pytest.fixture(scope="module", params=[1, 2], ids=["one rank", "two ranks"])
def trained(request, tmp_path_factory):
    """(ranks, folder of 20 steps of every loss on every layout), made in one launch."""
    folder = tmp_path_factory.mktemp(f"ranks{request.param}")
    lists = [
        [*arguments_of(loss, 20), *flags, "--out", str(folder / loss / layout)]
        for loss in LOSSES
        for layout, flags in layouts(loss).items()
    ]
    # ZeRO 3 last: DeepSpeed leaves its own linear layer in the process, which rounds differently.
    lists.sort(key=lambda arguments: arguments[-1].endswith("3"))
    run_on_ranks(request.param, lists, folder)
    return request.param, folder


@pytest.mark.slow
@pytest.mark.parametrize("loss", LOSSES)
def test_twenty_steps_equal_plain_pytorch(trained, weights, loss):
    ranks, folder = trained
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    by_hand = {parts: plain_pytorch(arguments_of(loss, 20), parts=parts) for parts in (ranks, 4)}
    torch.set_num_threads(threads)
    for layout, flags in layouts(loss).items():
        parts = 4 if "--micro-batch" in flags else ranks
        difference = largest_difference(weights(folder / loss / layout / "model"), by_hand[parts])
        assert difference < 1e-5, layout
