"""apgd-malt beside AutoAttack's APGD members on bundled digits models: what each breaks, and for how much.

    python benchmarks/ranked_targets.py [--images 200] [--lanes 100]

With ten classes apgd-t and apgd-malt try the same nine targets; they differ in the order, the loss and the
nine gradients that the ranking costs. `first` counts the broken images that needed one attempt alone.
"""

from __future__ import annotations

import argparse

import torch

import robustzoo
from robustzoo.attacks.autoattack import run_protocol
from robustzoo.attacks.protocols import protocol
from robustzoo.data import load_dataset

ATTACKS = ("apgd-ce", "apgd-dlr", "apgd-t", "apgd-malt")


def main() -> None:
    """Print one row per model and attack."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--lanes", type=int, default=100)
    parser.add_argument("--model", nargs="*", help="default: all bundled models of a digits recipe")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    data = load_dataset("digits", split="test")
    names = arguments.model or ["vit_micro2.digits_linf.at_trh", "vit_micro2.digits_linf.trades_trh"]
    print("model                              attack     robust  first  forwards  backwards")
    for name in names:
        model = robustzoo.load(name)
        for attack in ATTACKS:
            results = run_protocol(
                model,
                data,
                range(arguments.images),
                protocol(attack, model.threat_model, 10),
                model.threat_model,
                10,
                seed=0,
                micro_batch_size=arguments.lanes,
            )
            broken = [r for r in results if r.broken_by is not None]
            # An attempt takes at most 101 forwards, the ranking 9, the clean image and the second look 2.
            first = sum(r.forwards <= 101 + 9 + 2 for r in broken)
            print(
                f"{name:<34} {attack:<10} {sum(r.robust for r in results):>6} {first:>6} "
                f"{sum(r.forwards for r in results):>9} {sum(r.backwards for r in results):>10}",
                flush=True,
            )


if __name__ == "__main__":
    main()
