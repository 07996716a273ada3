"""aa-standard: robustzoo against the reference algorithms, on one model and the same images, in one run.

    python benchmarks/evaluation.py [--model NAME] [--n 200] [--count-images 8] [--repeat 1] [--out DIR]

Contestants, each in processes of its own and one after the other:
    robustzoo            evaluate(..., workers=2), one thread a process
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

import robustzoo
from robustzoo.data import evaluation_subset, load_dataset
from robustzoo.evaluation import machine

PROTOCOL = "aa-standard"
# Contestant -> (kind, processes, threads of each).
CONTESTANTS = {
    "robustzoo": ("robustzoo", 1, 1),
    "pyautoattack 2t": ("pyautoattack", 1, 2),
    "pyautoattack 2p": ("pyautoattack", 2, 1),
    "torchattacks 2t": ("torchattacks", 1, 2),
}


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
    model = robustzoo.load(job["model"])
    data = load_dataset(model.recipe.dataset)
    pairs = [data[i] for i in job["indices"]]
    x, y = torch.stack([x for x, _ in pairs]), torch.tensor([label for _, label in pairs])
    eps, classes = model.threat_model.eps, data.num_classes
    counter = Counter(model) if job["count"] else None
    start = time.perf_counter()
    if kind == "robustzoo":
        found = robustzoo.evaluate(
            model,
            data,
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
    points = (_pyautoattack if kind == "pyautoattack" else _torchattacks)(model, x, y, eps, classes)
    seconds = time.perf_counter() - start
    result = _result(seconds, None, counter)
    with torch.no_grad():
        correct, still = model(x).argmax(1) == y, model(points).argmax(1) == y
    return {**result, "robust": (correct & still).tolist()}


def _result(seconds: float, robust: list[bool] | None, counter: Counter | None) -> dict[str, Any]:
    counts = {} if counter is None else {"forwards": counter.forwards, "backwards": counter.backwards}
    return {"seconds": seconds, "robust": robust, **counts}


def _pyautoattack(model, x, y, eps: float, classes: int) -> torch.Tensor:
    from pyautoattack import AutoAttack

    found = AutoAttack(model, device="cpu", eps=eps, norm="Linf", seed=0, version="standard")
    found = found.run_standard_evaluation(x, y)
    return found[0] if isinstance(found, tuple) else found


def _torchattacks(model, x, y, eps: float, classes: int) -> torch.Tensor:
    import torchattacks

    common = {"norm": "Linf", "eps": eps, "n_restarts": 1, "seed": 0}
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
            f"robustzoo takes {ratios}.",
            "",
            footer(document),
        ]
    )


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """All contestants; the document that is written."""
    model = robustzoo.load(arguments.model)
    data = load_dataset(model.recipe.dataset)
    indices = evaluation_subset(data, arguments.n).indices
    names = [n for n, (kind, *_) in CONTESTANTS.items() if importlib.util.find_spec(kind) is not None]
    job = {"model": arguments.model, "indices": indices, "workers": 2, "count": False}
    job["micro_batch"] = arguments.micro_batch
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for _ in range(arguments.repeat):
        for name in names:
            runs[name].append(contest(name, job))
            print(f"{name}: {runs[name][-1]['seconds']:.1f} s", flush=True)
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
            assert all(found["robust"]) or name != "robustzoo"
            for kind in ("forwards", "backwards"):
                row[f"{kind}_each"] = found[kind] / len(counted)
    return {
        "model": arguments.model,
        "n": len(indices),
        "counted_images": len(counted),
        "contestants": rows,
        "ratios": {n: ours["seconds"] / row["seconds"] for n, row in rows.items() if n != "robustzoo"},
        **circumstances(),
    }


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
    parser.add_argument("--n", type=int, default=200)
    parser.add_argument("--micro-batch", type=int, help="robustzoo's; default: its own choice")
    parser.add_argument("--count-images", type=int, default=8, help="0 counts nothing")
    parser.add_argument("--repeat", type=int, default=1, help="runs of each; the median is shown")
    parser.add_argument("--out", type=Path, help="folder for evaluation.json and evaluation.md")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        kind, path = arguments.child
        job = json.loads(Path(path).read_text())
        Path(path).write_text(json.dumps(attack(kind, job)))
        return
    document = run(arguments)
    show(document, table(document), "evaluation", arguments.out)


if __name__ == "__main__":
    main()
