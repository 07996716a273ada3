"""Step times of training, against the passes that each method cannot do without, and against a loop by hand.

    python benchmarks/training.py --out docs/benchmarks [--rounds 5] [--batch 16] [--precision float32]

AT and TRADES with five defences each on ViT-Ti/4 and random 32x32 images: what is timed does not depend on
the pixels. In every round each method takes one step, and F + B (forward and backward to the input, weights
frozen) and T (training forward and backward, no optimizer) are timed once more at the same batch. What is
reported are medians over the rounds: of times, and of the ratios within a round, so that a slow moment of the
machine counts for all alike. The limit of a method is its cost in passes: see `Recipe.cost`.

The loop by hand is what is usually written: PGD as torchattacks has it, weights left trainable, an optimizer
of torch; for TRADES as its authors released it, with the clean forward pass in every attack step and three
forward passes in the loss. Peak memory is that of a process of its own per method: on a CPU the growth of its
resident set over a step, on a GPU what torch allocated. Writes training.json and training.md into --out.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import multiprocessing
import platform
import resource
import shlex
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch import Tensor
from torch.nn import functional

from robustzoo import atomic_files
from robustzoo.attacks.frozen import frozen
from robustzoo.evaluation.machine import fingerprint
from robustzoo.models.pixel_model import pixel_model
from robustzoo.objectives.objective import Objective
from robustzoo.registry import recipe
from robustzoo.training import processes, zero
from robustzoo.training.launch import PRECISIONS, Launch
from robustzoo.training.passes import COMPUTE_DTYPES, Passes
from robustzoo.training.step import Step

BASE = "vit_ti4.cifar10jpg_linf"
LOSSES, DEFENCES = ("at", "trades"), ("base", "swa", "awp", "s2o", "trh")
BY_HAND = "by hand"
TRADES_BETA = 6.0
PASSES, REPEATS = ("F", "F + B", "T"), 5  # a pass is much shorter than a step: timed over as many in a row
MMAP_THRESHOLD = -3  # of mallopt(3)
Stepper = Callable[[], None]


def images(batch: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Random pixels (B, 3, 32, 32) in [0, 1] and labels (B,)."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(batch, 3, 32, 32, generator=generator)
    return x.to(device), torch.randint(0, 10, (batch,), generator=generator).to(device)


def ours(method: str, batch: int, precision: str, group: processes.Processes) -> Stepper:
    """One step of our own training, ZeRO 1, as train.py takes it."""
    plan = recipe(f"{BASE}.{method}", {"batch_size": batch})
    objective, launch = Objective(plan), Launch.fit(plan, 1, None, 1, precision=precision)
    torch.manual_seed(0)
    model = pixel_model(plan)
    model.validate_pixels = False
    engine = zero.build_engine(objective, launch, model)
    average = zero.weight_average(engine, model, plan)
    take_step = Step(objective, engine, Passes(engine, launch), group, average, seed=0)
    x, y = images(batch, group.device)
    ids = torch.arange(batch, device=group.device)
    step = plan.total_steps // 2  # beyond all warm-ups
    engine.train()
    return lambda: take_step(step, plan.base_lr, [(torch.zeros_like(ids), ids, x, y)])


def by_hand(loss: str, batch: int, group: processes.Processes) -> Stepper:
    """The same training as it is usually written."""
    plan = recipe(f"{BASE}.{loss}_base")
    eps, steps = plan.threat_model.eps, plan.attack_steps
    size = plan.attack_step_ratio * eps / steps
    torch.manual_seed(0)
    model = pixel_model(plan).to(group.device)
    model.validate_pixels = False
    optimizer = torch.optim.Adam(model.parameters(), lr=plan.base_lr)
    x, y = images(batch, group.device)

    def ascend(start: Tensor, cost: Callable[[Tensor], Tensor]) -> Tensor:
        model.eval()
        x_adv = start.clamp(0, 1).detach()
        for _ in range(steps):
            x_adv.requires_grad_(True)
            gradient = torch.autograd.grad(cost(x_adv), x_adv)[0]
            x_adv = x_adv.detach() + size * gradient.sign()
            x_adv = (x + (x_adv - x).clamp(-eps, eps)).clamp(0, 1).detach()
        model.train()
        return x_adv

    def divergence(x_adv: Tensor, reduction: str) -> Tensor:
        log_adv, clean = functional.log_softmax(model(x_adv), dim=1), functional.softmax(model(x), dim=1)
        return functional.kl_div(log_adv, clean, reduction=reduction)

    def at() -> Tensor:
        start = x + torch.empty_like(x).uniform_(-eps, eps)
        x_adv = ascend(start, lambda x_adv: functional.cross_entropy(model(x_adv), y))
        return functional.cross_entropy(model(x_adv), y)

    def trades() -> Tensor:
        x_adv = ascend(x + 0.001 * torch.randn_like(x), lambda x_adv: divergence(x_adv, "sum"))
        return functional.cross_entropy(model(x), y) + TRADES_BETA * divergence(x_adv, "batchmean")

    def step() -> None:
        loss_value = (at if loss == "at" else trades)()
        optimizer.zero_grad()
        loss_value.backward()
        optimizer.step()

    return step


class Bare:
    """F, F + B and T of a bare network, in seconds, at one batch."""

    def __init__(self, batch: int, precision: str, device: torch.device) -> None:
        self.model = pixel_model(recipe(f"{BASE}.at_base")).to(device)
        self.model.validate_pixels = False
        self.model.compute_dtype = COMPUTE_DTYPES[precision]
        self.x, self.y = images(batch, device)

    def forward(self) -> None:
        with frozen(self.model), torch.no_grad():
            self.model(self.x)

    def forward_backward(self) -> None:
        with frozen(self.model):
            x = self.x.clone().requires_grad_(True)
            torch.autograd.grad(functional.cross_entropy(self.model(x), self.y, reduction="sum"), x)

    def training(self) -> None:
        self.model.train()
        functional.cross_entropy(self.model(self.x), self.y).backward()
        self.model.zero_grad()


def repeated(what: Stepper) -> None:
    """REPEATS of a pass."""
    for _ in range(REPEATS):
        what()


def seconds(step: Stepper, device: torch.device) -> float:
    """Seconds of one call."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def peak_memory(make: Callable[[], Stepper], device: torch.device) -> int:
    """Bytes at the highest, over building the training and two steps of it; call in a fresh process."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = 0
    else:
        gc.collect()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    step = make()
    step()
    step()
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before


def _memory_in_child(method: str, batch: int, precision: str, answer) -> None:
    _return_memory_at_once()
    group = processes.start()
    loss = method.split()[0]
    make = (
        (lambda: by_hand(loss, batch, group))
        if method.endswith(BY_HAND)
        else (lambda: ours(method, batch, precision, group))
    )
    answer.put(peak_memory(make, group.device))


def _return_memory_at_once() -> None:
    """Have glibc map every larger tensor by itself, so that the resident set is what is alive."""
    if sys.platform == "linux":
        set_option = getattr(ctypes.CDLL(None), "mallopt", None)  # absent from other C libraries
        if set_option is not None:
            set_option(MMAP_THRESHOLD, 2**16)


def memory_of(method: str, batch: int, precision: str) -> int:
    """`peak_memory` in a process of its own."""
    context = multiprocessing.get_context("spawn" if torch.cuda.is_available() else "fork")
    answer = context.SimpleQueue()
    child = context.Process(target=_memory_in_child, args=(method, batch, precision, answer))
    child.start()
    child.join()
    if child.exitcode:
        sys.exit(f"measuring the memory of {method} ended with status {child.exitcode}")
    return answer.get()


def measure(batch: int, rounds: int, precision: str) -> dict:
    """All methods: seconds per round, memory, and the passes of each round."""
    methods = [f"{loss}_{defence}" for loss in LOSSES for defence in DEFENCES]
    everything = [*methods, *(f"{loss} {BY_HAND}" for loss in LOSSES)]
    memory = {name: memory_of(name, batch, precision) for name in everything}  # before this process computes
    group = processes.start()
    steppers = {name: ours(name, batch, precision, group) for name in methods}
    steppers |= {f"{loss} {BY_HAND}": by_hand(loss, batch, group) for loss in LOSSES}
    bare = Bare(batch, precision, group.device)
    for name, what in (("F", bare.forward), ("F + B", bare.forward_backward), ("T", bare.training)):
        steppers[name] = partial(repeated, what)
    times: dict[str, list[float]] = {name: [] for name in steppers}
    for number in range(-1, rounds):  # the first round warms up
        names = list(steppers)
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            took = seconds(steppers[name], group.device)
            if number >= 0:
                times[name].append(took / (REPEATS if name in PASSES else 1))
        print(f"round {number + 1}/{rounds}", file=sys.stderr, flush=True)
    return {"seconds": times, "memory": memory, "machine": fingerprint(group.device, batch)}


def limits(method: str, times: dict[str, list[float]]) -> list[float]:
    """The method's passes in seconds, per round."""
    cost = recipe(f"{BASE}.{method}").cost()
    rounds = zip(times["F"], times["F + B"], times["T"], strict=True)
    extra = cost["forward"] - cost["input_backward"]
    return [extra * f + cost["input_backward"] * fb + cost["training"] * t for f, fb, t in rounds]


def ratio(above: list[float], below: list[float]) -> float:
    """Median of the ratios within a round."""
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


def table(measured: dict, batch: int) -> list[dict]:
    """One row a method."""
    times, memory, rows = measured["seconds"], measured["memory"], []
    for loss in LOSSES:
        base = f"{loss}_base"
        for name in [f"{loss}_{defence}" for defence in DEFENCES] + [f"{loss} {BY_HAND}"]:
            hand = name.endswith(BY_HAND)
            passes = recipe(f"{BASE}.{base if hand else name}").cost()["passes_per_step"]
            rows.append(
                {
                    "method": name,
                    "images_per_second": batch / statistics.median(times[name]),
                    "over_its_limit": None if hand else ratio(times[name], limits(name, times)),
                    "time_over_base": ratio(times[name], times[base]),
                    "peak_memory_mb": memory[name] / 1e6,
                    "memory_over_base": memory[name] / memory[base],
                    "passes": None if hand else passes,
                }
            )
    return rows


def markdown(rows: list[dict], measured: dict, command: str) -> str:
    """The report."""
    times, machine = measured["seconds"], measured["machine"]
    medians = {name: 1000 * statistics.median(times[name]) for name in PASSES}
    passes = ", ".join(f"{name} {milliseconds:.0f} ms" for name, milliseconds in medians.items())
    lines = [
        f"`{command}`",
        "",
        f"ViT-Ti/4 at 32x32, batch {machine['micro_batch_size']}, {len(times['F'])} rounds; "
        + ", ".join(f"{key} {value}" for key, value in (machine | measured["versions"]).items())
        + f". Median {passes}.",
        "",
        "| method | images/s | step / its limit | step / base | peak memory, MB | memory / base | passes |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        limit = "" if row["over_its_limit"] is None else f"{row['over_its_limit']:.3f}"
        lines.append(
            f"| {row['method']} | {row['images_per_second']:.2f} | {limit} | {row['time_over_base']:.3f} | "
            f"{row['peak_memory_mb']:.0f} | {row['memory_over_base']:.3f} | {row['passes'] or ''} |"
        )
    for loss in LOSSES:
        faster = ratio(times[f"{loss} {BY_HAND}"], times[f"{loss}_base"])
        lines += ["", f"{loss.upper()}: {faster:.2f} times the images per second of the loop by hand."]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--batch", type=int, default=16, metavar="B")
    parser.add_argument("--rounds", type=int, default=5, metavar="N")
    parser.add_argument("--precision", choices=PRECISIONS, default="float32")
    given = parser.parse_args()
    measured = measure(given.batch, given.rounds, given.precision)
    measured["versions"] = {package: version(package) for package in ("torch", "deepspeed", "timm")}
    measured["versions"]["python"] = platform.python_version()
    command = shlex.join(["python", *sys.argv])
    rows = table(measured, given.batch)
    report = markdown(rows, measured, command)
    document = {"command": command, "precision": given.precision, "rows": rows} | measured
    atomic_files.write_text(given.out / "training.json", json.dumps(document, indent=1) + "\n")
    atomic_files.write_text(given.out / "training.md", report)
    print(report)


if __name__ == "__main__":
    main()
