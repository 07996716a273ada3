"""A recipe small enough for tests."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TRADES_TRH, AT_TRH = "vit_micro2.digits_linf.trades_trh", "vit_micro2.digits_linf.at_trh"


def small(total_steps: int = 4, warmup_steps: int = 2) -> list[str]:
    """Flags of a run of a second: clipping and the L2 term are active, the schedule has both its parts."""
    steps = ["--set", f"total_steps={total_steps}", "--set", f"warmup_steps={warmup_steps}"]
    attack = ["--set", "attack_steps=2", "--set", "attack_warmup_steps=2", "--set", "gradient_clipping=0.5"]
    return ["--batch-size", "8", *steps, *attack, "--validate-every", "100", "--log-every", "1"]


# Adam divides gradients by their size, so rounding becomes visible where a gradient is zero but for rounding.
SGD = ["--set", "optimizer=sgd", "--set", "base_lr=0.1", "--set", "trh_gamma=0.01"]
NO_ATTACK = ["--set", "threat_model=linf:1/1000000000"]
