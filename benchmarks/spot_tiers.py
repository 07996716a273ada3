"""What a spot check's first tier breaks for how many passes, and what a whole spot check costs by it.

    python benchmarks/spot_tiers.py [--n 200] [--models NAME ...]

A tier is some of the protocol's own attempts: its first attack, and the first T targets of its targeted APGD,
in either order. Who is broken by what is known from two runs: of the whole protocol, and of apgd-t alone on
the images that it breaks, whose findings tell the first target that does. Passes are counted, not timed.
Draws are simulated at the gap (survivors that the protocol would break) that each tier leaves, scaled to the
images of the claim, with the tolerance of `verify`.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import numpy as np
import torch
from evaluation_subjects import subject

from robustzoo.cards.evidence import Evidence, read_evidence
from robustzoo.data import evaluation_subset
from robustzoo.evaluation.evaluate import evaluate
from robustzoo.evaluation.ledger import Ledger
from robustzoo.evaluation.prepare import ask, prepare
from robustzoo.evaluation.progress import Reporter
from robustzoo.evaluation.workers import attack_all
from robustzoo.registry import ThreatModel
from robustzoo.verification.spot import Bounds, decide

MODELS = [f"vit_micro2.digits_linf.{recipe}" for recipe in ("at_base", "at_trh", "trades_base", "trades_trh")]
BUDGETS = {"resnet2b": "linf:1/255"}
CLAIMS = (1_000, 5_000)
DRAWS = 20


@dataclass(frozen=True)
class Broken:
    """Passes (forwards and backwards) until the first attack broke the image, None where it did not; until
    apgd-t did, and at which target, from 0."""

    first: int | None
    targeted: int | None
    target: int


def measure(name: str, n: int) -> tuple[Evidence, int, dict[int, Broken]]:
    """The whole protocol's Evidence (the bundled one, or of n images), the passes of a robust image, and the
    broken images."""
    model, data = subject(name)
    if name in BUDGETS:
        budget = ThreatModel.parse(BUDGETS[name])
        indices = evaluation_subset(data, n).indices
        evidence = evaluate(model, data, budget, indices=indices, micro_batch_size=64, progress=False)
    else:
        budget = model.threat_model
        evidence = read_evidence(next((model.folder / "evidence").glob("aa-standard*.json")))
    by = {s["id"]: s["broken_by"] for s in evidence.doc["samples"] if s["broken_by"]}
    ledger, findings = Ledger(sorted(by), ["apgd-t"], 64), []
    with prepare(model, data, ask(model, budget, "apgd-t", indices=sorted(by))) as ready:
        attack_all(ready.sized(64), ledger, 1, Reporter(False), findings.extend)
    passes = {f.id: f.forwards + f.backwards for f in findings if f.success is not None}
    # An attempt that breaks nothing takes 201 passes, one that does so at iteration i 2 i + 2.
    broken = {
        i: Broken(
            2 * first["iteration"] + 2 if first["attack"] == "apgd-ce" else None,
            passes.get(i),
            -1 if i not in passes else (passes[i] - 2) // 201,
        )
        for i, first in by.items()
    }
    robust = evidence.doc["counts"]["robust_correct"]
    lost = sum(found.first or 201 + (found.targeted or 0) for found in broken.values())
    return evidence, (sum(evidence.doc["passes"].values()) - lost) // max(robust, 1), broken


def cost(found: Broken, first: bool, targets: int, before: bool) -> tuple[int, bool]:
    """(passes on a broken image, whether it survives) of a tier. before: the targets come first."""
    parts = []
    if first:
        parts.append((201, found.first))
    if targets:
        hit = found.targeted if 0 <= found.target < targets else None
        parts.insert(0 if before else len(parts), (201 * targets, hit))
    spent = 0
    for whole, hit in parts:
        if hit is not None:
            return spent + hit, False
        spent += whole
    return spent, True


def drawn(size: int, gap: int, tolerance: int) -> float:
    """Mean share of the survivors in full runs."""
    total = 0
    for draw in range(DRAWS):
        broken = np.random.default_rng([draw, gap]).permutation(size) < gap
        bounds = Bounds(size - gap - tolerance)
        total += decide(range(size), bounds, lambda ids, b=broken: b[ids].tolist(), 64, entropy=draw).drawn
    return total / DRAWS / size


def main() -> None:
    """Print a row per model and tier."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--n", type=int, default=200)
    parser.add_argument("--models", nargs="+", default=[*MODELS, "resnet2b"])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(
        "| model | tier | breaks | passes an image | broken per 1,000 passes | "
        + " | ".join(f"spot of full, {claim:,} images" for claim in CLAIMS)
        + " |"
    )
    print("|" + "---|" * (5 + len(CLAIMS)))
    for name in arguments.models:
        evidence, full, broken = measure(name, arguments.n)
        n, correct, robust = (evidence.doc["counts"][k] for k in ("n", "clean_correct", "robust_correct"))
        for first, targets, before in (
            (True, 0, False),
            (True, 1, False),
            (True, 2, False),
            (True, 3, False),
            (True, 9, False),
            (False, 1, False),
            (False, 3, False),
            (True, 1, True),
            (True, 3, True),
        ):
            each = [cost(found, first, targets, before) for found in broken.values()]
            gap = sum(survives for _, survives in each)
            spent = sum(passes for passes, _ in each) + robust * 201 * (first + targets)
            parts = (["apgd-ce"] if first else []), ([f"{targets} of apgd-t"] if targets else [])
            tier = ", ".join(parts[1] + parts[0] if before else parts[0] + parts[1])
            whole = robust * full + sum(f.first or 201 + (f.targeted or 9 * 201) for f in broken.values())
            shares = []
            for claim in CLAIMS:
                scale = claim / n
                size = round((robust + gap) * scale)
                share = drawn(size, round(gap * scale), max(claim // 100, 3))
                shares.append(f"{(spent + share * (robust + gap) * full) / whole:.3f}")
            print(
                f"| {name} | {tier} | {len(broken) - gap} of {len(broken)} | {spent / correct:.0f} | "
                f"{1000 * (len(broken) - gap) / spent:.2f} | " + " | ".join(shares) + " |",
                flush=True,
            )


if __name__ == "__main__":
    main()
