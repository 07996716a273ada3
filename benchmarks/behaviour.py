"""What the commands answer, on record: run it before and after a change that should change nothing.

    python benchmarks/behaviour.py record BEFORE       (about ten minutes on two cores)
    python benchmarks/behaviour.py record AFTER
    python benchmarks/behaviour.py compare BEFORE AFTER

Every case is a short sequence of commands, run from this checkout in an empty folder. The record holds, for
each, exit codes, standard output, the refusal where there is one, and every file that was written: Evidence
without its key `run`, cards and other text as they are, binary files by their sha256. Times, temporary
folders and versions are blanked out.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import json
import multiprocessing
import os
import re
import runpy
import sys
import tempfile
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROBUSTZOO = ("robustzoo",)
TRAIN = (str(ROOT / "training" / "train.py"),)
EXPORT = (str(ROOT / "training" / "export.py"),)
AT, TRH, TRADES = (f"vit_micro2.digits_linf.{method}" for method in ("at_base", "at_trh", "trades_base"))

# A stranger's network and images: seeded weights, 2 and 5 classes of 3x12x12 pixels, and one that is random.
FOREIGN = """
import torch
from torch import nn


def _network(classes):
    generator = torch.Generator().manual_seed(classes)
    network = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(288, classes)).eval()
    for p in network.parameters():
        p.data = 0.3 * torch.randn(p.shape, generator=generator)
    network.input_shape = (3, 12, 12)
    return network


def two():
    return _network(2)


def five():
    return _network(5)


class Noisy(nn.Module):
    input_shape = (3, 12, 12)

    def __init__(self):
        super().__init__()
        self.network = _network(5)

    def forward(self, x):
        return self.network(x + 0.02 * torch.randn_like(x))


def noisy():
    return Noisy().eval()


def training():
    return _network(5).train()


def softmax():
    return nn.Sequential(_network(5), nn.Softmax(1)).eval()
"""


def run(*arguments: object) -> tuple[str, ...]:
    return (*ROBUSTZOO, *map(str, arguments))


def evaluate(*arguments: object) -> tuple[str, ...]:
    return run("evaluate", *arguments, "--out", "out", "--json")


def foreign(function: str, *arguments: object) -> tuple[str, ...]:
    return evaluate(f"foreign.py:{function}", "--data", f"images{5 if function != 'two' else 2}", *arguments)


def train(*arguments: object) -> tuple[str, ...]:
    return (*TRAIN, *map(str, arguments))


SHARDS = [evaluate(AT, "--protocol", "apgd-ce+t", "--n", 8, "--shard", f"{i}/2") for i in (1, 2)]
SHORT = ("--out", "run", "--batch-size", 16, "--micro-batch", 8, "--checkpoint-every", 2, "--seed", 3)
CASES: dict[str, list[tuple[str, ...]]] = {
    **{
        f"evaluate.{protocol}": [evaluate(AT, "--protocol", protocol, "--n", 6)]
        for protocol in ("apgd-ce", "apgd-dlr", "apgd-t", "fab-t", "fab", "square", "apgd-malt", "pgd-10")
    },
    "evaluate.aa-standard": [evaluate(TRADES, "--n", 4)],
    "evaluate.ce+dlr": [evaluate(TRH, "--protocol", "apgd-ce+dlr", "--n", 6, "--seed", 5)],
    "evaluate.workers": [evaluate(TRH, "--protocol", "apgd-ce+t", "--n", 6, "--workers", 2)],
    "evaluate.micro-batch": [evaluate(TRH, "--protocol", "apgd-ce", "--n", 6, "--micro-batch", 4)],
    "evaluate.bf16": [evaluate(TRH, "--protocol", "apgd-ce", "--n", 6, "--precision", "bf16")],
    "evaluate.l2": [evaluate(AT, "--threat-model", "l2:1/2", "--protocol", "apgd-ce+t", "--n", 6)],
    "evaluate.l1": [evaluate(AT, "--threat-model", "l1:3", "--protocol", "apgd-ce+t", "--n", 4)],
    "evaluate.l2.square": [evaluate(AT, "--threat-model", "l2:1/2", "--protocol", "square", "--n", 4)],
    "evaluate.l1.fab": [evaluate(AT, "--threat-model", "l1:3", "--protocol", "fab-t", "--n", 4)],
    "evaluate.curve": [
        evaluate(AT, "--epsilons", "1/50,1/20,1/10", "--protocol", "apgd-ce", "--n", 8),
        run("report", "out"),
    ],
    "evaluate.norms": [
        evaluate(
            AT, "--threat-model", "linf:1/20", "--threat-model", "l2:1/4", "--protocol", "apgd-ce", "--n", 6
        )
    ],
    "evaluate.shards": [
        *SHARDS,
        run("evidence", "merge", "out", "--out", "merged"),
    ],
    "evaluate.again": [evaluate(AT, "--protocol", "apgd-ce", "--n", 6)] * 2,
    "evaluate.page": [run("evaluate", AT, "--protocol", "apgd-ce", "--n", 6)],
    "foreign.five": [foreign("five", "--threat-model", "linf:1/50", "--protocol", "aa-standard")],
    "foreign.two": [foreign("two", "--threat-model", "linf:1/50", "--protocol", "apgd-ce+t")],
    "foreign.plus": [foreign("five", "--threat-model", "linf:1/100", "--protocol", "aa-plus", "--n", 3)],
    "foreign.rand": [foreign("noisy", "--threat-model", "linf:1/50", "--protocol", "aa-rand", "--n", 3)],
    "foreign.l2": [foreign("five", "--threat-model", "l2:1/10", "--protocol", "aa-standard", "--n", 4)],
    "foreign.refusals": [
        foreign("noisy", "--threat-model", "linf:1/50"),
        foreign("training", "--threat-model", "linf:1/50"),
        foreign("softmax", "--threat-model", "linf:1/50"),
        foreign("two"),
        run("evaluate", "foreign.py:two", "--data", "images5", "--threat-model", "linf:1/50", "--json"),
        run("evaluate", "foreign.py:absent", "--data", "images5", "--threat-model", "linf:1/50"),
        run("evaluate", "absent.py:two", "--data", "images5", "--threat-model", "linf:1/50"),
        run("evaluate", AT, "--protocol", "autoattack"),
        run("evaluate", AT, "--threat-model", "linf:8"),
        run("evaluate", AT, "--n", 0),
        run("evaluate", "vit_micro3.digits_linf.at_base"),
    ],
    "verify.replay": [run("verify", name, "--mode", "replay", "--json") for name in (AT, TRH)],
    "verify.all": [run("verify", "--all")],
    "verify.refusals": [
        run("verify", "absent"),
        run("verify", AT, "--mode", "quick"),
        run("verify", AT, "--tolerance", 100),
        run("verify", "vit_l16.imagenet_linf.at_base"),
    ],
    "compare": [run("compare", AT, TRH), run("compare", AT, TRH, "--json")],
    "compare.refusal": [
        evaluate(AT, "--protocol", "apgd-ce", "--n", 4),
        run("compare", AT, "out/evidence", "--json"),
    ],
    "report": [run("report", AT), run("report", AT, "--json", "--html", "report.html")],
    "crosscheck": [run("crosscheck", AT, "--attacks", "apgd-ce,square", "--n", 6, "--json")],
    "masking": [run("diagnose", "masking", AT, "--n", 16, "--json")],
    "bound": [run("diagnose", "bound", AT, "--n", 32, "--json")],
    "hessian": [run("diagnose", "hessian", AT, "--n", 16, "--json")],
    "ls": [run("ls"), run("ls", "--published"), run("ls", "--json", "--published"), run("ls", "--paper")],
    "show": [run("show", AT), run("show", AT, "--json"), run("show", "vit_l16.imagenet_linf.trades_trh")],
    "recipe": [
        run("recipe", AT),
        run("recipe", "vit_l16.imagenet_linf.trades_trh", "--json"),
        run("recipe", AT, "--set", "epochs=3", "--json"),
    ],
    "recipe.refusals": [
        run("recipe", AT, "--set", "epochs=x"),
        run("recipe", AT, "--set", "absent=3"),
        run("recipe", "absent.json"),
        run("recipe", "vit_micro2.digits_linf.trades_x"),
        run("recipe", "vit_micro2.imagenet_linf.at_base"),
    ],
    "train.at": [
        train(TRH, *SHORT, "--max-steps", 4),
        train(TRH, *SHORT, "--max-steps", 6, "--resume"),
        run("evaluate", "run/model", "--protocol", "apgd-ce+t", "--n", 6, "--json"),
        run("card", "run/model"),
        run("verify", "run/model", "--json"),
        run("verify", "run/model", "--mode", "spot", "--seed", 1, "--json"),
        run("verify", "run/model", "--mode", "full", "--same-seed", "--json"),
        run("plot", "run"),
    ],
    "train.trades": [
        train("vit_micro2.digits_linf.trades_trh_awp_swa", *SHORT, "--max-steps", 3, "--zero", 0),
        (*EXPORT, "run"),
    ],
    "train.mart": [train("vit_micro2.digits_linf.mart_awp", *SHORT, "--max-steps", 2, "--zero", 2)],
    "train.alp": [train("vit_micro2.digits_linf.alp_s2o_swa", *SHORT, "--max-steps", 2, "--zero", 3)],
    "train.changed": [
        train(AT, *SHORT, "--set", "epochs=1", "--max-steps", 2),
        run("evaluate", "run/model", "--protocol", "apgd-ce", "--n", 6, "--json"),
        run("card", "run/model"),
    ],
    "train.refusals": [
        train("absent"),
        train(AT),
        train(AT, "--out", "run", "--zero", 4),
        train(AT, "--out", "run", "--set", "absent=1"),
        train("vit_ti4.cifar10jpg_linf.at_base", "--out", "run"),
        train("vit_l16.imagenet_linf.at_base", "--out", "run", "--data", "absent"),
        (*EXPORT, "absent"),
    ],
}

# What differs between equal runs: temporary folders, times, rates, versions, memory.
BLANKED = [
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?\S*"), "<time>"),
    (re.compile(r"\b\d+(\.\d+)? (s|seconds|min|minutes|hours|h|MB|GB|GiB|images/s)\b"), "<amount>"),
    (re.compile(r"\b\d+:\d\d(:\d\d)?\b"), "<duration>"),
    (re.compile(r'"(wall_seconds|seconds|elapsed|started|entropy)": [^,\n}]+'), r'"\1": "<time>"'),
]


def blanked(text: str, folder: str) -> str:
    text = text.replace(folder, "<here>").replace(str(ROOT), "<checkout>").replace(sys.executable, "python")
    for pattern, word in BLANKED:
        text = pattern.sub(word, text)
    return text


def without_run(document: object) -> object:
    """A JSON document without what may vary between equal runs, wherever in it."""
    if isinstance(document, dict):
        return {k: without_run(v) for k, v in document.items() if k not in ("run", "versions", "fingerprint")}
    return [without_run(item) for item in document] if isinstance(document, list) else document


def stated(text: str, folder: str) -> str:
    try:
        return blanked(json.dumps(without_run(json.loads(text)), indent=1), folder)
    except ValueError:
        return blanked(text, folder)


def written(folder: Path) -> dict[str, str]:
    files = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        place = str(path.relative_to(folder))
        if place.startswith(("images", "foreign.py", "__pycache__")) or "checkpoints/" in place:
            continue
        if path.suffix in (".json", ".md"):
            files[place] = stated(path.read_text(), str(folder))
        elif path.suffix == ".safetensors":
            files[place] = hashlib.sha256(path.read_bytes()).hexdigest()
        else:
            files[place] = "present"
    return files


def make_images(folder: Path) -> None:
    import numpy as np
    from PIL import Image

    random = np.random.default_rng(0)
    for classes in (2, 5):
        for k in range(classes):
            place = folder / f"images{classes}" / f"class{k}"
            place.mkdir(parents=True)
            for i in range(3):
                Image.fromarray(random.integers(0, 256, (12, 12, 3), dtype=np.uint8)).save(place / f"{i}.png")


def in_a_fork(command: tuple[str, ...], folder: Path) -> tuple[int, str, str]:
    """Exit code and both streams of a command, run in a copy of this process, which has torch loaded."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        child = os.fork()
        if not child:
            os.chdir(folder)
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
            code = 1
            try:
                code = _run(command)
            except BaseException:
                traceback.print_exc()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        out.seek(0)
        err.seek(0)
        return code, out.read(), err.read()


def _run(command: tuple[str, ...]) -> int:
    sys.argv = list(command)
    try:
        if command[0] == "robustzoo":
            from robustzoo.cli import main

            main()
        else:
            runpy.run_path(command[0], run_name="__main__")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def answers(name: str) -> tuple[str, dict]:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch).resolve()
        (folder / "foreign.py").write_text(FOREIGN)
        make_images(folder)
        said = []
        for command in CASES[name]:
            code, out, err = in_a_fork(command, folder)
            said.append(
                {
                    "command": blanked(" ".join(command), str(folder)),
                    "exit": code,
                    "output": stated(out, str(folder)).splitlines(),
                    "refusal": blanked(err, str(folder)).splitlines()[-3:] if code else [],
                }
            )
        return name, {"commands": said, "files": written(folder)}


def record(folder: Path, chosen: list[str], processes: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    names = [name for name in CASES if not chosen or any(name.startswith(c) for c in chosen)]
    os.environ.update(PYTHONPATH=str(ROOT), OMP_NUM_THREADS="1", COLUMNS="100")
    sys.path.insert(0, str(ROOT))
    import deepspeed  # noqa: F401  # loaded once, for every command
    import timm  # noqa: F401
    import torch

    torch.set_num_threads(1)
    with multiprocessing.get_context("fork").Pool(processes, maxtasksperchild=1) as pool:
        for name, found in pool.imap(answers, names):
            (folder / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")
            print(name, [command["exit"] for command in found["commands"]], flush=True)


def compare(before: Path, after: Path) -> int:
    names = sorted({p.name for p in before.glob("*.json")} | {p.name for p in after.glob("*.json")})
    different = 0
    for name in names:
        one, two = ((f / name).read_text() if (f / name).exists() else "" for f in (before, after))
        if one == two:
            continue
        different += 1
        print(f"==== {name}")
        print("\n".join(difflib.unified_diff(one.splitlines(), two.splitlines(), lineterm="", n=2)))
    print(f"{len(names) - different} of {len(names)} cases equal")
    return 1 if different or not names else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record")
    recording.add_argument("folder", type=Path)
    recording.add_argument("cases", nargs="*", help="beginnings of case names; default: all")
    recording.add_argument("--processes", type=int, default=2)
    comparing = commands.add_parser("compare")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    given = parser.parse_args()
    if given.command == "record":
        record(given.folder, given.cases, given.processes)
        return 0
    return compare(given.before, given.after)


if __name__ == "__main__":
    sys.exit(main())
