"""What attacking costs beyond the network: wall time of each member over passes times the raw speed.

    python benchmarks/attack_overhead.py [--model NAME] [--threat-model linf:1/10] [--images 200] [--lanes 64]

Two ratios. `batches` divides by the batches that the network saw: our own code. `samples` divides by the
passes that the samples needed (as Evidence counts them): our own code, the lanes that ran empty at the end
of a member, when fewer samples were left than lanes, and the forwards that turn points into witnesses.

The clean pass, the attack and its witnesses are timed, as evaluate() runs them; its guards are not.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import nn

import robustzoo
from robustzoo.attacks.frozen import frozen
from robustzoo.data import load_dataset
from robustzoo.evaluation.attack_run import attack_all
from robustzoo.evaluation.ledger import Ledger
from robustzoo.evaluation.progress import Reporter
from robustzoo.evaluation.work import Work
from robustzoo.registry.threat_model import ThreatModel


def raw_seconds(model: nn.Module, x: torch.Tensor, repeats: int = 20) -> tuple[float, float]:
    """Median seconds of one batch forward without and with the gradient of its pixels."""
    times: tuple[list[float], list[float]] = ([], [])
    with frozen(model):
        for _ in range(repeats):
            started = time.perf_counter()
            with torch.inference_mode():
                model(x)
            times[0].append(time.perf_counter() - started)
            started = time.perf_counter()
            points = x.clone().requires_grad_()
            torch.autograd.grad(model(points).sum(), points)
            times[1].append(time.perf_counter() - started)
    return sorted(times[0])[repeats // 2], sorted(times[1])[repeats // 2]


def main() -> None:
    """Run every member of aa-standard alone on all images and print its ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="vit_micro2.digits_linf.at_trh")
    parser.add_argument("--threat-model", default="linf:1/10")
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--lanes", type=int, default=64)
    parser.add_argument("--attack", nargs="*", default=["apgd-ce", "apgd-t", "fab-t", "square"])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model, data = robustzoo.load(arguments.model), load_dataset("digits", split="test")
    threat_model = ThreatModel.parse(arguments.threat_model)
    print(
        f"{arguments.model}, {threat_model}, {arguments.images} images, {arguments.lanes} lanes, one thread"
    )
    print("attack    robust  forwards  backwards  seconds  batches  samples")
    for attack in arguments.attack:
        raw = raw_seconds(model, torch.stack([data[i][0] for i in range(arguments.lanes)]))
        batches = [0, 0]

        def count(
            module: nn.Module, inputs: tuple, output: torch.Tensor, batches: list[int] = batches
        ) -> None:
            batches[int(torch.is_grad_enabled())] += 1

        handle = model.register_forward_hook(count)
        work = Work(data, attack, threat_model, 10, 0, arguments.lanes, "cpu")
        ledger = Ledger(range(arguments.images), [attack], arguments.lanes)
        with frozen(model):
            started = time.perf_counter()
            attack_all(model, work, ledger, 1, Reporter(False))
            seconds = time.perf_counter() - started
        handle.remove()
        forwards, backwards = ledger.passes["forward"], ledger.passes["backward"]
        network = batches[0] * raw[0] + batches[1] * raw[1]
        needed = ((forwards - backwards) * raw[0] + backwards * raw[1]) / arguments.lanes
        print(
            f"{attack:<8} {ledger.robust:>7} {forwards:>9} {backwards:>10} {seconds:>8.1f} "
            f"{seconds / network:>8.2f} {seconds / needed:>8.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
