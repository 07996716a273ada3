"""How many images each attack alone leaves robust: the reference AutoAttack against ours, same weights.

    python benchmarks/oracle_agreement.py --shared ../shared [--case NAME ...] [--attack NAME ...]
    python benchmarks/oracle_agreement.py --threat-model l1:1 [--model NAME] [--images 100]

The first reads oracle/autoattack/<case>/ of the shared folder (weights, images, the verdicts of the reference
at some seeds); the second runs pyautoattack beside ours on a digits model (extra `crosscheck`), for any norm.
Both print one row per attack. "agree" counts the images with the verdict of the (first) reference run.
"seconds" of ours are those of evaluate(), with its guards and witnesses.
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

import robustzoo
from robustzoo.cards import Evidence
from robustzoo.data import load_dataset
from robustzoo.registry.threat_model import ThreatModel

STANDARD = ("apgd-ce", "apgd-t", "fab-t", "square")


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


def correct_digits(model: nn.Module, count: int) -> list[tuple[torch.Tensor, int]]:
    """The first `count` test digits that the model classifies correctly."""
    data, found = load_dataset("digits", split="test"), []
    for i in range(len(data)):
        x, y = data[i]
        with torch.no_grad():
            if len(found) < count and int(model(x[None]).argmax()) == y:
                found.append((x, y))
    return found


def reference_flags(
    model: nn.Module, data: list, threat_model: ThreatModel, attack: str, seed: int
) -> list[bool]:
    """Which images an attack of the reference's standard version, run alone, leaves robust."""
    from pyautoattack import AutoAttack

    x, y = torch.stack([image for image, _ in data]), torch.tensor([label for _, label in data])
    reference = AutoAttack(model, norm=threat_model.norm.title(), eps=threat_model.eps, seed=seed)
    reference.attacks_to_run = [attack]
    x_adv, _ = reference.run_standard_evaluation(x, y, batch_size=len(data))
    with torch.no_grad():
        return (model(x_adv.clamp(0, 1)).argmax(1) == y).tolist()


def our_evidence(
    model: nn.Module, data: list, threat_model: ThreatModel, attack: str, seed: int, micro_batch_size: int
) -> Evidence:
    """What `evaluate` finds of the images with one attack of ours alone."""
    images = torch.stack([image for image, _ in data]), torch.tensor([label for _, label in data])
    return robustzoo.evaluate(
        model, images, threat_model, attack, seed=seed, micro_batch_size=micro_batch_size, progress=False
    )


def our_flags(
    model: nn.Module, data: list, threat_model: ThreatModel, attack: str, seed: int, micro_batch_size: int
) -> list[bool]:
    """Which images that attack leaves robust."""
    evidence = our_evidence(model, data, threat_model, attack, seed, micro_batch_size)
    return [verdict.robust for verdict in evidence.verdicts]


def on_the_spot(arguments: argparse.Namespace) -> None:
    """Run both sides at several seeds and print the table."""
    model, threat_model = robustzoo.load(arguments.model), ThreatModel.parse(arguments.threat_model)
    data = correct_digits(model, arguments.images)
    everywhere = np.ones((2, len(data)), dtype=bool)
    print(f"{arguments.model}, {threat_model}, {len(data)} images, seeds {arguments.seeds}")
    for attack in arguments.attack or STANDARD:
        started = time.perf_counter()
        theirs = [reference_flags(model, data, threat_model, attack, seed) for seed in arguments.seeds]
        between = time.perf_counter()
        ours = [
            our_flags(model, data, threat_model, attack, seed, arguments.micro_batch_size)
            for seed in arguments.seeds
        ]
        seconds = between - started, time.perf_counter() - between
        everywhere &= np.array([theirs[0], ours[0]])
        agree = sum(a == b for a, b in zip(theirs[0], ours[0], strict=True))
        print(
            f"{attack:<10} reference {[sum(flags) for flags in theirs]} "
            f"ours {[sum(flags) for flags in ours]} agree {agree} seconds {seconds[0]:.1f} {seconds[1]:.1f}",
            flush=True,
        )
    print(f"worst case reference {everywhere[0].sum()} ours {everywhere[1].sum()}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--shared", type=Path, help="the folder that holds oracle/")
    parser.add_argument("--model", default="vit_micro2.digits_linf.at_trh", help="for a run on the spot")
    parser.add_argument("--threat-model", default="l1:1", help="for a run on the spot")
    parser.add_argument("--images", type=int, default=100, help="for a run on the spot")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2], help="for a run on the spot")
    parser.add_argument("--case", nargs="*", help="cases (default: all)")
    parser.add_argument("--attack", nargs="*", help="attacks (default: all that the reference ran)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--micro-batch-size", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.shared is None:
        on_the_spot(arguments)
        return
    print("case            attack     reference (seeds)          ours  agree  forwards  backwards  seconds")
    for folder in sorted((arguments.shared / "oracle" / "autoattack").iterdir()):
        if arguments.case and folder.name not in arguments.case:
            continue
        model, data, threat_model, verdicts = load_case(folder)
        broken = np.zeros(len(data), dtype=bool)
        for attack in verdicts["attacks"]:
            if arguments.attack and attack not in arguments.attack:
                continue
            evidence = our_evidence(
                model, data, threat_model, attack, arguments.seed, arguments.micro_batch_size
            )
            passes, seconds = evidence.doc["passes"], evidence.doc["run"]["wall_seconds"]
            robust = np.array([verdict.robust for verdict in evidence.verdicts])
            broken |= ~robust
            agree = int((robust == np.array(verdicts["attacks"][attack]["robust"], dtype=bool)).sum())
            seeds = ",".join(map(str, verdicts["seed_counts"][attack]))
            print(
                f"{folder.name:<15} {attack:<10} {seeds:<26} {int(robust.sum()):>4}  {agree:>5}  "
                f"{passes['forward']:>8}  {passes['backward']:>9}  {seconds:>7.1f}",
                flush=True,
            )
        print(
            f"{folder.name:<15} {'worst case':<10} {verdicts['worst_case_robust_count']:<26} "
            f"{int((~broken).sum()):>4}  of {len(data)}",
            flush=True,
        )


if __name__ == "__main__":
    main()
