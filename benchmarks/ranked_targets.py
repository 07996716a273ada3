"""apgd-malt beside AutoAttack's APGD members on bundled digits models: what each breaks, and for how much.

    python benchmarks/ranked_targets.py [--images 200] [--lanes 100]

With ten classes apgd-t and apgd-malt try the same nine targets; they differ in the order, the loss and the
nine gradients that the ranking costs. `first` counts the broken images that needed one attempt alone, which
their passes tell: Evidence keeps the sum of those, the findings it is made from have them image by image.
"""

from __future__ import annotations

import argparse

import torch

import robustzoo
from robustzoo.data import load_dataset
from robustzoo.evaluation.ledger import Finding, Ledger
from robustzoo.evaluation.prepare import ask, prepare
from robustzoo.evaluation.progress import Reporter
from robustzoo.evaluation.workers import attack_all

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
            ledger = Ledger(range(arguments.images), [attack], arguments.lanes)
            findings: list[Finding] = []
            with prepare(model, data, ask(model, None, attack)) as ready:
                attack_all(ready.sized(arguments.lanes), ledger, 1, Reporter(False), findings.extend)
            # An attempt takes at most 101 forwards, the ranking 9, the second look 1.
            first = sum(found.success is not None and found.forwards <= 101 + 9 + 1 for found in findings)
            passes = ledger.passes
            print(
                f"{name:<34} {attack:<10} {ledger.robust:>6} {first:>6} {passes['forward']:>9} "
                f"{passes['backward']:>10}",
                flush=True,
            )


if __name__ == "__main__":
    main()
