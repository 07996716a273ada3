"""aa-standard: robustzoo against the reference algorithms, on one model and the same images, in one run.

    python benchmarks/evaluation.py [--model NAME] [--budget linf:2/255] [--n 200] [--count-images 8]
                                    [--repeat 1] [--contestants NAME ...] [--out DIR]
    python benchmarks/evaluation.py --growth [--out DIR]
    python benchmarks/evaluation.py --suite [--models NAME ...] [--sizes 100 200 1000] [--out DIR]

--suite: one table over models (digits, resnet2b and those that --models names), numbers of images and norms,
then how the cost of a linear model grows with images, classes and pixels (--growth: that alone).

Contestants, each in processes of its own and one after the other:
    robustzoo            evaluate(..., workers=2), one thread a process
    robustzoo 1w         the same with one worker (in the suite)
    pyautoattack 2t      AutoAttack(version="standard") at its defaults, one process with two threads
    pyautoattack 2p      the same, two processes with one thread and half of the images each
    torchattacks 2t      its AutoAttack's members with the protocol's steps (skipped if not installed)
Seconds are those of the attack, imports and loading left out, but for robustzoo's worker processes, whose
start counts. Memory is the peak of the resident sizes of all processes of a contestant. Forwards and
backwards are counted by hooks on the model, an image each, in a second run on images that robustzoo left
robust; its guards and its trial of the speed are in them.
Writes evaluation.json and evaluation.md to --out.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import torch
from evaluation_subjects import Synthetic, subject

import robustzoo
from robustzoo.data import evaluation_subset
from robustzoo.evaluation import machine
from robustzoo.registry import ThreatModel

PROTOCOL = "aa-standard"
# Contestant -> (kind, processes, threads of each).
CONTESTANTS = {
    "robustzoo": ("robustzoo", 1, 1),
    "robustzoo 1w": ("robustzoo", 1, 1),
    "pyautoattack 2t": ("pyautoattack", 1, 2),
    "pyautoattack 2p": ("pyautoattack", 2, 1),
    "torchattacks 2t": ("torchattacks", 1, 2),
}


_REFERENCE = {"linf": "Linf", "l2": "L2", "l1": "L1"}


class Counter:
    """Images that pass a model forwards, and backwards to its input."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.forwards = self.backwards = 0
        model.register_forward_hook(self._forward)

    def _forward(self, module: torch.nn.Module, inputs: tuple, output: torch.Tensor) -> None:
        self.forwards += len(output)
        if output.requires_grad:
            output.register_hook(self._backward)

    def _backward(self, gradient: torch.Tensor) -> None:
        self.backwards += len(gradient)


def attack(kind: str, job: dict[str, Any]) -> dict[str, Any]:
    """Run one contestant here on the images of `job`; {"seconds", "robust", ...}."""
    torch.set_num_threads(job["threads"])
    model, data = subject(job["model"])
    budget = ThreatModel.parse(job["budget"]) if job["budget"] else model.threat_model
    pairs = [data[i] for i in job["indices"]]
    x, y = torch.stack([x for x, _ in pairs]), torch.tensor([label for _, label in pairs])
    classes = data.num_classes
    counter = Counter(model) if job["count"] else None
    start = time.perf_counter()
    if kind == "robustzoo":
        found = robustzoo.evaluate(
            model,
            data,
            budget,
            protocol=PROTOCOL,
            indices=job["indices"],
            workers=job["workers"],
            micro_batch_size=job["micro_batch"],
            progress=False,
        )
        seconds = time.perf_counter() - start
        robust = [verdict.robust for verdict in found.verdicts]
        return _result(seconds, robust, counter)
    model.validate_pixels = False  # the opponents are timed without our checks
    points = (_pyautoattack if kind == "pyautoattack" else _torchattacks)(model, x, y, budget, classes)
    seconds = time.perf_counter() - start
    result = _result(seconds, None, counter)
    with torch.no_grad():
        correct, still = model(x).argmax(1) == y, model(points).argmax(1) == y
    return {**result, "robust": (correct & still).tolist()}


def _result(seconds: float, robust: list[bool] | None, counter: Counter | None) -> dict[str, Any]:
    counts = {} if counter is None else {"forwards": counter.forwards, "backwards": counter.backwards}
    return {"seconds": seconds, "robust": robust, **counts}


def _pyautoattack(model, x, y, budget: ThreatModel, classes: int) -> torch.Tensor:
    from pyautoattack import AutoAttack

    found = AutoAttack(model, device="cpu", eps=budget.eps, norm=_REFERENCE[budget.norm], seed=0)
    found = found.run_standard_evaluation(x, y)
    return found[0] if isinstance(found, tuple) else found


def _torchattacks(model, x, y, budget: ThreatModel, classes: int) -> torch.Tensor:
    import torchattacks

    common = {"norm": _REFERENCE[budget.norm], "eps": budget.eps, "n_restarts": 1, "seed": 0}
    members = [
        torchattacks.APGD(model, steps=100, loss="ce", **common),
        torchattacks.APGDT(model, steps=100, n_classes=classes, **common),
        torchattacks.FAB(model, steps=100, multi_targeted=True, n_classes=classes, **common),
        torchattacks.Square(model, n_queries=5000, **common),
    ]
    return torchattacks.MultiAttack(members)(x, y)


def contest(name: str, job: dict[str, Any]) -> dict[str, Any]:
    """Run a contestant in new processes; the slowest counts, verdicts are joined, memory is added up."""
    kind, processes, threads = CONTESTANTS[name]
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{number}.json" for number in range(processes)]
        children = []
        for number, path in enumerate(paths):
            part = {**job, "indices": job["indices"][number::processes], "threads": threads}
            path.write_text(json.dumps(part))
            children.append(psutil.Popen([sys.executable, __file__, "--child", kind, str(path)]))
        peak = _watch(children)
        if any(child.wait() for child in children):
            raise SystemExit(f"{name} failed")
        results = [json.loads(path.read_text()) for path in paths]
    robust = [False] * len(job["indices"])
    for number, result in enumerate(results):
        robust[number::processes] = result.pop("robust")
    seconds = max(result["seconds"] for result in results)
    counts = {k: sum(result[k] for result in results) for k in ("forwards", "backwards") if k in results[0]}
    return {**results[0], **counts, "seconds": seconds, "robust": robust, "peak_mb": peak / 1e6}


def _watch(children: list[psutil.Popen]) -> int:
    """Peak of the summed resident sizes of the processes and their own children, until all have ended."""
    peak = 0
    while any(child.poll() is None for child in children):
        total = 0
        for child in children:
            try:
                total += sum(p.memory_info().rss for p in (child, *child.children(recursive=True)))
            except psutil.Error:
                continue
        peak = max(peak, total)
        time.sleep(0.1)
    return peak


def table(document: dict[str, Any]) -> str:
    """The results as Markdown."""
    rows = ["| contestant | seconds | robust | same verdicts | peak MB | forwards | backwards |"]
    rows.append("|---|---|---|---|---|---|---|")
    for name, row in document["contestants"].items():
        counts = [f"{row[k]:,.0f}" if k in row else "" for k in ("forwards_each", "backwards_each")]
        rows.append(
            f"| {name} | {row['seconds']:.1f} | {sum(row['robust'])} | {row['agreement']:.1%} | "
            f"{row['peak_mb']:.0f} | {counts[0]} | {counts[1]} |"
        )
    ratios = ", ".join(f"{ratio:.2f} of {name}" for name, ratio in document["ratios"].items())
    return "\n".join(
        [
            f"{document['model']}, {PROTOCOL}, {document['n']} images; forwards and backwards are those of "
            f"an image that is never broken, by hooks on {document['counted_images']} of them.",
            "",
            *rows,
            "",
            f"robustzoo takes {ratios}." if ratios else "",
            "",
            footer(document),
        ]
    )


def run(model: str, budget: str | None, n: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """All contestants on one model; a document."""
    data = subject(model)[1]
    indices = evaluation_subset(data, n).indices
    names = [n for n, (kind, *_) in CONTESTANTS.items() if importlib.util.find_spec(kind) is not None]
    if not arguments.suite:
        names.remove("robustzoo 1w")
    names = [name for name in names if name in ("robustzoo", *arguments.contestants)]
    if (budget or "").startswith("l1"):  # it has no L1
        names = [name for name in names if not name.startswith("torchattacks")]
    job = {"model": model, "budget": budget, "indices": indices, "count": False}
    job["micro_batch"] = arguments.micro_batch
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for _ in range(arguments.repeat):
        for name in names:
            runs[name].append(contest(name, {**job, "workers": 1 if name == "robustzoo 1w" else 2}))
            print(f"{model} {budget or ''} {n}: {name}: {runs[name][-1]['seconds']:.1f} s", flush=True)
    rows = {name: sorted(found, key=lambda r: r["seconds"])[len(found) // 2] for name, found in runs.items()}
    ours = rows["robustzoo"]
    never = [i for i, robust in zip(indices, ours["robust"], strict=True) if robust]
    counted = never[: arguments.count_images]
    for name, row in rows.items():
        same = [a == b for a, b in zip(row["robust"], ours["robust"], strict=True)]
        row["agreement"] = sum(same) / len(same)
        if counted:
            counting = {**job, "indices": counted, "workers": 1, "count": True}
            found = contest(name, {**counting, "micro_batch": len(counted)})
            assert all(found["robust"]) or not name.startswith("robustzoo")
            for kind in ("forwards", "backwards"):
                row[f"{kind}_each"] = found[kind] / len(counted)
    return {
        "model": model,
        "budget": budget,
        "n": len(indices),
        "counted_images": len(counted),
        "contestants": rows,
        "ratios": {
            n: ours["seconds"] / row["seconds"] for n, row in rows.items() if not n.startswith("robustzoo")
        },
        **circumstances(),
    }


# Norm -> budget of the suite; None: the model's own.
_SUITE = {
    "digits": ("vit_micro2.digits_linf.trades_trh", (None, "l2:0.5", "l1:2")),
    "resnet2b": ("resnet2b", ("linf:1/255", "l2:0.1", "l1:2")),
}


def suite(arguments: argparse.Namespace) -> dict[str, Any]:
    """Every model, budget and number of images (norms beside the first at the smallest number)."""
    models = [*_SUITE.values(), *((name, (None, "l2:0.5", "l1:12")) for name in arguments.models)]
    small = min(arguments.sizes)
    found = [
        run(model, budget, n, arguments)
        for model, budgets in models
        for n in arguments.sizes
        for budget in (budgets if n == small else budgets[:1])
    ]
    return {"runs": found, "growth": growth(), **circumstances()}


def growth() -> list[dict[str, Any]]:
    """Seconds of an evaluation of a linear model as one number grows: of one step on every image, and of
    each attack on eight."""
    rows = []
    cases = [("images", n, 10, 8) for n in (500, 5_000, 50_000)]
    cases += [("classes", 8, k, 32) for k in (10, 100, 1_000)]
    cases += [("pixels", 8, 10, side) for side in (8, 32, 224)]
    for kind, n, classes, side in cases:
        model = Synthetic(classes, side)
        g = torch.Generator().manual_seed(1)
        x = torch.rand(n, 3, side, side, generator=g)
        y = torch.cat([model(part).argmax(1) for part in x.split(256)])
        protocols = ("pgd-1",) if kind == "images" else ("apgd-ce", "apgd-t", "fab-t", "square")
        for protocol in protocols:
            start = time.perf_counter()
            robustzoo.evaluate(model, (x, y), "linf:0.00001", protocol, progress=False)
            seconds = time.perf_counter() - start
            rows.append({"grows": kind, "n": n, "classes": classes, "side": side, "protocol": protocol})
            rows[-1]["seconds"] = seconds
            print(f"growth {rows[-1]}", flush=True)
    return rows


def suite_table(document: dict[str, Any]) -> str:
    """One table of all runs, and one of how cost grows."""
    rows = [
        "| model | budget | images | contestant | seconds | ours / it | robust | same verdicts | peak MB |"
    ]
    rows[0] += " forwards | backwards |"
    rows.append("|" + "---|" * 11)
    for one in document["runs"]:
        for name, row in one["contestants"].items():
            counts = [f"{row[k]:,.0f}" if k in row else "" for k in ("forwards_each", "backwards_each")]
            ratio = f"{one['ratios'][name]:.2f}" if name in one["ratios"] else ""
            rows.append(
                f"| {one['model']} | {one['budget'] or 'its own'} | {one['n']} | {name} | "
                f"{row['seconds']:.1f} | {ratio} | {sum(row['robust'])} | {row['agreement']:.1%} | "
                f"{row['peak_mb']:.0f} | {counts[0]} | {counts[1]} |"
            )
    if not document["runs"]:
        rows = []
    grown = ["| grows | images | classes | side | protocol | seconds |", "|" + "---|" * 6]
    for row in document["growth"]:
        grown.append(
            "| " + " | ".join(f"{v:.1f}" if k == "seconds" else str(v) for k, v in row.items()) + " |"
        )
    return "\n".join([*rows, "", *grown, "", footer(document)])


def circumstances() -> dict[str, Any]:
    """Machine, versions and command of this run."""
    parts = platform.machine(), f"{psutil.cpu_count()} cores", torch.backends.cpu.get_cpu_capability()
    return {
        "machine": ", ".join(parts),
        "versions": machine.versions(),
        "command": " ".join(["python", *sys.argv]),
    }


def footer(document: dict[str, Any]) -> str:
    """`circumstances` as a line."""
    versions = ", ".join(f"{name} {version}" for name, version in document["versions"].items())
    return f"{document['machine']}; {versions}; `{document['command']}`"


def show(document: dict[str, Any], text: str, stem: str, out: Path | None) -> None:
    """Print the text, and write STEM.json and STEM.md into `out`."""
    print(text)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / f"{stem}.json").write_text(json.dumps(document, indent=1) + "\n")
        (out / f"{stem}.md").write_text(text + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--model", default="vit_micro2.digits_linf.trades_trh", help="Linf, at least 80 %% robust"
    )
    parser.add_argument("--budget", help="default: the model's own threat model")
    parser.add_argument("--n", type=int, default=200)
    parser.add_argument("--suite", action="store_true", help="all models, norms and sizes in one table")
    parser.add_argument("--models", nargs="*", default=[], help="names or folders beside the suite's own")
    parser.add_argument("--sizes", nargs="+", type=int, default=[100, 200, 1000], help="images of the suite")
    parser.add_argument("--micro-batch", type=int, help="robustzoo's; default: its own choice")
    parser.add_argument("--count-images", type=int, default=8, help="0 counts nothing")
    parser.add_argument("--repeat", type=int, default=1, help="runs of each; the median is shown")
    parser.add_argument("--out", type=Path, help="folder for evaluation.json and evaluation.md")
    parser.add_argument("--growth", action="store_true", help="only how the cost of a linear model grows")
    parser.add_argument("--contestants", nargs="+", default=list(CONTESTANTS), help="beside robustzoo")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        kind, path = arguments.child
        job = json.loads(Path(path).read_text())
        Path(path).write_text(json.dumps(attack(kind, job)))
        return
    if arguments.growth:
        document = {"runs": [], "growth": growth(), **circumstances()}
        show(document, suite_table(document), "evaluation_growth", arguments.out)
        return
    if arguments.suite:
        document = suite(arguments)
        show(document, suite_table(document), "evaluation_suite", arguments.out)
        return
    document = run(arguments.model, arguments.budget, arguments.n, arguments)
    show(document, table(document), "evaluation", arguments.out)


if __name__ == "__main__":
    main()
