"""What an evaluation costs beyond the network: its wall time over counts times the bare model's speed.

    python benchmarks/evaluation_overhead.py [--model NAME|resnet2b] [--n 200] [--rounds 3] [--out DIR]

aa-standard in this process alone, one thread. Hooks count the images that pass the model forwards and
backwards (guards, trials and padding included); Evidence counts those that the samples needed (no padding).

The bare model's speed is measured in two ways, since a shared machine is not as fast in one minute as in the
next. "in between": every EVERY forwards the evaluation's clock stops and a copy of the model does one warming
pass and REPEATS forwards and forwards with gradients of a whole micro-batch; so both see the same moments.
"around": nothing but the model, over WINDOW seconds before and after each evaluation, which then runs without
interruption. Each way with the mean of its passes, and with the faster of every two in a row, which leaves
out slow moments that the evaluation's wall time has in it. Writes evaluation_overhead.json and .md to --out.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from evaluation import PROTOCOL, Counter, circumstances, footer, show
from evaluation_subjects import subject
from torch import Tensor, nn

import robustzoo
from robustzoo.attacks.frozen import frozen
from robustzoo.data import evaluation_subset
from robustzoo.evaluation.micro_batch import DEFAULT_MICRO_BATCH

EVERY, REPEATS, WINDOW = 100, 4, 10.0
WAYS = ("in between", "around")
COUNTS = ("hooks", "Evidence")
SPEEDS = ("mean", "faster of two")


class BareModel:
    """Seconds of single passes of a micro-batch, with nothing else around them."""

    def __init__(self, model: nn.Module, batch: Tensor) -> None:
        self.model, self.batch = model, batch
        self.forwards: list[float] = []
        self.both: list[float] = []

    def measure(self, times: int) -> None:
        """Enter so many forwards, and so many forwards with the gradient of the pixels."""
        with torch.inference_mode(False):
            self._both()
            self.both += [_seconds(self._both) for _ in range(times)]
            self._forward()
            self.forwards += [_seconds(self._forward) for _ in range(times)]

    def _forward(self) -> None:
        with torch.inference_mode():
            self.model(self.batch)

    def _both(self) -> None:
        with torch.enable_grad():
            pixels = self.batch.clone().requires_grad_(True)
            torch.autograd.grad(self.model(pixels).sum(), pixels)

    def speed(self, kind: str) -> tuple[float, float]:
        """Seconds of one image forwards and backwards; kind: one of SPEEDS."""
        forward, both = (_typical(times, kind) / len(self.batch) for times in (self.forwards, self.both))
        return forward, both - forward


def _seconds(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _typical(times: list[float], kind: str) -> float:
    """The mean of the times, or of the smaller of every two in a row."""
    if kind == "mean":
        return statistics.mean(times)
    return statistics.mean(min(pair) for pair in zip(times[::2], times[1::2], strict=True))


# Models without a threat model of their own.
BUDGETS = {"resnet2b": "linf:1/255"}


def attack(
    model: nn.Module, data: Any, budget: str | None, indices: list[int], size: int
) -> tuple[float, dict[str, Any]]:
    """Evaluate; the seconds, and the passes forwards and backwards by each of COUNTS."""
    counter = Counter(model)
    start = time.perf_counter()
    found = robustzoo.evaluate(
        model, data, budget, protocol=PROTOCOL, indices=indices, micro_batch_size=size, progress=False
    )
    seconds = time.perf_counter() - start
    passes = found.doc["passes"]["forward"], found.doc["passes"]["backward"]
    return seconds, {"hooks": (counter.forwards, counter.backwards), "Evidence": passes}


def in_between(name: str, data: Any, indices: list[int], size: int) -> dict[str, Any]:
    """One evaluation that stops now and then for the bare model."""
    model = subject(name)[0]
    bare = BareModel(copy.deepcopy(model), _batch(data[0][0].shape, size))
    calls, stopped = 0, 0.0

    def stop(module: nn.Module, inputs: tuple) -> None:
        nonlocal calls, stopped
        calls += 1
        if calls % EVERY == 0:
            start = time.perf_counter()
            bare.measure(REPEATS)
            stopped += time.perf_counter() - start

    model.register_forward_pre_hook(stop)
    with frozen(bare.model):
        seconds, counts = attack(model, data, BUDGETS.get(name), indices, size)
    return _ratios("in between", seconds - stopped, counts, bare)


def around(name: str, data: Any, indices: list[int], size: int) -> dict[str, Any]:
    """One evaluation without interruption, the bare model before and after it."""
    model = subject(name)[0]
    bare = BareModel(copy.deepcopy(model), _batch(data[0][0].shape, size))

    def window() -> None:
        start = time.perf_counter()
        while time.perf_counter() - start < WINDOW:
            bare.measure(REPEATS)

    with frozen(bare.model):
        window()
        seconds, counts = attack(model, data, BUDGETS.get(name), indices, size)
        window()
    return _ratios("around", seconds, counts, bare)


def _batch(shape: tuple[int, ...], size: int) -> Tensor:
    return torch.rand(size, *shape, generator=torch.Generator().manual_seed(0))


def _ratios(way: str, seconds: float, counts: dict[str, Any], bare: BareModel) -> dict[str, Any]:
    ratios = {}
    for kind in SPEEDS:
        forward, backward = bare.speed(kind)
        for by, (forwards, backwards) in counts.items():
            ratios[f"{by}, {kind}"] = seconds / (forwards * forward + backwards * backward)
    return {"way": way, "seconds": seconds, "counts": counts, "ratios": ratios}


def table(document: dict[str, Any]) -> str:
    """The rounds as Markdown, with medians."""
    heads = [f"{by}, {kind}" for kind in SPEEDS for by in COUNTS]
    rows = [f"| the bare model's speed | seconds | {' | '.join(heads)} |", "|---|---|" + "---|" * len(heads)]
    for way in WAYS:
        found = [run for run in document["runs"] if run["way"] == way]
        cells = []
        for head in heads:
            ratios = [run["ratios"][head] for run in found]
            cells.append(f"{statistics.median(ratios):.3f} ({min(ratios):.3f}-{max(ratios):.3f})")
        seconds = statistics.median(run["seconds"] for run in found)
        rows.append(f"| {way} | {seconds:.1f} | {' | '.join(cells)} |")
    counts = document["runs"][0]["counts"]
    shown = "; ".join(f"{by}: {f:,} forwards, {b:,} backwards" for by, (f, b) in counts.items())
    return "\n".join(
        [
            f"{document['model']}, {PROTOCOL}, {document['n']} images, micro-batch "
            f"{document['micro_batch']}, one process and thread; medians (and ranges) of "
            f"{document['rounds']} rounds. {shown}.",
            "",
            *rows,
            "",
            footer(document),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="vit_micro2.digits_linf.trades_trh")
    parser.add_argument("--n", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3, help="of both ways, one after the other")
    parser.add_argument("--micro-batch", type=int, default=DEFAULT_MICRO_BATCH)
    parser.add_argument("--out", type=Path, help="folder for evaluation_overhead.json and .md")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    data = subject(arguments.model)[1]
    indices = evaluation_subset(data, arguments.n).indices
    size = min(arguments.micro_batch, len(indices))
    runs = []
    for _ in range(arguments.rounds):
        for measure in (in_between, around):
            runs.append(measure(arguments.model, data, indices, size))
            print(f"{runs[-1]['way']}: {runs[-1]['seconds']:.1f} s, {runs[-1]['ratios']}", flush=True)
    document = {
        "model": arguments.model,
        "n": len(indices),
        "micro_batch": size,
        "rounds": arguments.rounds,
        "runs": runs,
        **circumstances(),
    }
    show(document, table(document), "evaluation_overhead", arguments.out)


if __name__ == "__main__":
    main()
