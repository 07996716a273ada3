"""How many images each attack alone leaves robust: the reference AutoAttack against ours, same weights.

    python benchmarks/oracle_agreement.py --shared ../shared [--case NAME ...] [--attack NAME ...]

Reads oracle/autoattack/<case>/ of the shared folder (weights, images, the verdicts of the reference at some
seeds) and prints one row per attack. "agree" counts the images with the verdict of the stored reference run.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from robustzoo.attacks.autoattack import run_protocol
from robustzoo.attacks.protocols import protocol
from robustzoo.registry.threat_model import ThreatModel


class Normalised(nn.Module):
    """A bare timm network behind its normalisation."""

    def __init__(self, network: nn.Module, mean: float, std: float) -> None:
        super().__init__()
        self.network, self.mean, self.std = network, mean, std

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.network((x - self.mean) / self.std)


def load_case(folder: Path):
    """Model, list of (image, label), threat model and the reference's verdicts of one case."""
    verdicts = json.loads((folder / "verdicts.json").read_text())
    network = VisionTransformer(**verdicts["model"]["kwargs"])
    network.load_state_dict(load_file(folder / "model.safetensors"))
    images = np.load(folder / "images.npz")
    data = [(torch.from_numpy(x), int(y)) for x, y in zip(images["image"], images["label"], strict=True)]
    threat_model = ThreatModel.parse(f"{verdicts['norm']}:{verdicts['eps']}")
    return Normalised(network, **verdicts["model"]["normalise"]).eval(), data, threat_model, verdicts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--shared", type=Path, required=True, help="the folder that holds oracle/")
    parser.add_argument("--case", nargs="*", help="cases (default: all)")
    parser.add_argument("--attack", nargs="*", help="attacks (default: all that the reference ran)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--micro-batch-size", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print("case            attack     reference (seeds)          ours  agree  forwards  backwards  seconds")
    for folder in sorted((arguments.shared / "oracle" / "autoattack").iterdir()):
        if arguments.case and folder.name not in arguments.case:
            continue
        model, data, threat_model, verdicts = load_case(folder)
        classes = verdicts["model"]["kwargs"]["num_classes"]
        broken = np.zeros(len(data), dtype=bool)
        for attack in verdicts["attacks"]:
            if arguments.attack and attack not in arguments.attack:
                continue
            started = time.perf_counter()
            results = run_protocol(
                model,
                data,
                range(len(data)),
                protocol(attack, threat_model, classes),
                threat_model,
                classes,
                seed=arguments.seed,
                micro_batch_size=arguments.micro_batch_size,
            )
            seconds = time.perf_counter() - started
            robust = np.array([r.robust for r in results])
            broken |= ~robust
            agree = int((robust == np.array(verdicts["attacks"][attack]["robust"], dtype=bool)).sum())
            seeds = ",".join(map(str, verdicts["seed_counts"][attack]))
            passes = [sum(r.forwards for r in results), sum(r.backwards for r in results)]
            print(
                f"{folder.name:<15} {attack:<10} {seeds:<26} {int(robust.sum()):>4}  {agree:>5}  "
                f"{passes[0]:>8}  {passes[1]:>9}  {seconds:>7.1f}",
                flush=True,
            )
        print(
            f"{folder.name:<15} {'worst case':<10} {verdicts['worst_case_robust_count']:<26} "
            f"{int((~broken).sum()):>4}  of {len(data)}",
            flush=True,
        )


if __name__ == "__main__":
    main()
