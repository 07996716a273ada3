"""Every reader of what people bring, driven with random and mutated inputs: it may raise only our own errors.

    python benchmarks/fuzz.py [--inputs 40000] [--seed 0] [--kind NAME ...]

The inputs are shared evenly by the kinds. An error must be of one of our own classes; an input may take 5 s
and 500 MB at most. Prints the counts per kind, and each fault with the seed that gives it again:
`--kind NAME --only SEED`. Exit code 1 where there was one.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import random
import resource
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from robustzoo.attacks.clean_pass import Clean
from robustzoo.cards import Evidence
from robustzoo.cards.check import lint_card
from robustzoo.cards.claims import claims_of
from robustzoo.cards.metadata import Card
from robustzoo.cards.witnesses import Witnesses
from robustzoo.data.samples import open_samples
from robustzoo.evaluation.journal import Journal, stored_key
from robustzoo.evaluation.ledger import Finding
from robustzoo.models.checkpoint_files import fitting, read_checkpoint
from robustzoo.models.config import read_config
from robustzoo.models.folder import read_folder
from robustzoo.models.weights import read_weights
from robustzoo.registry import ThreatModel, entries, packages, recipe
from robustzoo.registry.overrides import parse_assignments

SECONDS, MEGABYTES = 5.0, 500
NAME = "vit_micro2.digits_linf.at_trh"
FOLDER = Path(entries.__file__).parents[1] / "bundled" / NAME
JUNK: list[Any] = [
    None, True, -1, 0, 2**63, 2**200, 1e308, float("nan"), float("inf"), -0.0, "", " ", "\0", "a\nb",
    "\x1b[2J", "\u202e", "\ud800", "é" * 300, "x" * 70_000, "../..", "/dev/zero", "linf:8/255", [], {}, [[]],
    {"": None}, [0] * 1000, {"schema": 1}, "0x10", "1e999", "１２", "_1", "1_000",
]  # fmt: skip

Draw = random.Random


def bent(draw: Draw, value: Any, depth: int = 0) -> Any:
    """A JSON value with one or a few nodes changed."""
    if isinstance(value, dict) and value and draw.random() < 0.9:
        key = draw.choice(list(value))
        match draw.randrange(6):
            case 0:
                return {k: v for k, v in value.items() if k != key}
            case 1:
                return {**value, draw.choice(["x", "", "\0", key.upper(), key + " "]): draw.choice(JUNK)}
            case _:
                return {**value, key: bent(draw, value[key], depth + 1)}
    if isinstance(value, list) and value and draw.random() < 0.8:
        at = draw.randrange(len(value))
        match draw.randrange(6):
            case 0:
                return value[:at] + value[at + 1 :]
            case 1:
                return [*value, value[at]]
            case _:
                return [*value[:at], bent(draw, value[at], depth + 1), *value[at + 1 :]]
    if isinstance(value, str) and draw.random() < 0.5:
        return bent_text(draw, value)
    if isinstance(value, int | float) and draw.random() < 0.5:
        return draw.choice([-value, value + 1, value * 10**6, str(value), float(value) / 3, [value]])
    if draw.random() < 0.02:
        nested: Any = value
        for _ in range(draw.choice([50, 5000])):
            nested = [nested]
        return nested
    return draw.choice(JUNK)


def bent_text(draw: Draw, text: str) -> str:
    """A text with a part replaced, repeated, cut or moved."""
    at, to = sorted(draw.randrange(len(text) + 1) for _ in range(2))
    junk = draw.choice([j for j in JUNK if isinstance(j, str)])
    middle = draw.choice(
        ["", text[at:to] * 2, text[at:to].upper(), junk, chr(draw.randrange(0x3000)), "+", ".", ":"]
    )
    return text[:at] + middle + text[to:]


def bent_bytes(draw: Draw, content: bytes) -> bytes:
    """Bytes with bits flipped, cut short, filled with zeros or with random ones."""
    changed = bytearray(content)
    for _ in range(draw.choice([1, 1, 1, 3, 20])):
        at = draw.randrange(len(changed) + 1)
        match draw.randrange(6):
            case 0 if changed:
                changed[at % len(changed)] ^= 1 << draw.randrange(8)
            case 1:
                del changed[at:]
            case 2:
                changed[at:] = bytes(draw.choice([1, 8, 4096]))
            case 3:
                changed[at:at] = draw.randbytes(draw.choice([1, 8, 64]))
            case 4:
                del changed[at : at + draw.randrange(64)]
            case _:
                changed[at : at + 8] = draw.choice([b"\xff" * 8, bytes(8), b"\0\0\0\x7f\0\0\0\0"])
    return bytes(changed)


def bent_json(draw: Draw, document: Any) -> bytes:
    """A JSON document with nodes, or bytes, changed."""
    for _ in range(draw.choice([0, 1, 1, 1, 2, 5])):
        document = bent(draw, document)
    try:
        text = json.dumps(document).encode()
    except RecursionError:
        text = b"[" * 10**5
    return bent_bytes(draw, text) if draw.random() < 0.3 else text


class Inputs:
    """One method a kind: reads one random input, in a folder of its own.

    Args:
        place: an empty folder.
    """

    def __init__(self, place: Path) -> None:
        self.place = place
        evidence = next((FOLDER / "evidence").glob("*.json"))
        self.evidence = json.loads(evidence.read_text())
        self.witnesses = evidence.with_name(self.evidence["witnesses"]["file"]).read_bytes()
        self.card = (FOLDER / "README.md").read_text()
        self.config = json.loads((FOLDER / "config.json").read_text())
        self.weights = (FOLDER / "model.safetensors").read_bytes()
        self.expected = read_folder(FOLDER, check_logits=False).network.state_dict()
        self.lock = json.loads(entries.LOCK_FILE.read_text())
        self.recipe = recipe(NAME).to_json()
        with Journal(place / "whole", {"seed": 0, "model": {"name": "a"}}) as journal:
            for i in range(5):
                journal.append([Finding(i, 0, 4, 1, clean=Clean(i, 1, 1, (2, 3)))])
        self.journal = (place / "whole").read_bytes()

    def _file(self, name: str, content: bytes) -> Path:
        path = self.place / name
        path.write_bytes(content)
        return path

    def names(self, draw: Draw) -> None:
        text = NAME if draw.random() < 0.8 else f"prefix:{NAME}"
        for _ in range(draw.randint(1, 3)):
            text = bent_text(draw, text)
        recipe(text)

    def threats(self, draw: Draw) -> None:
        ThreatModel.parse(bent_text(draw, draw.choice(["linf:8/255", "l2:0.5", "l1:1e1"])))

    def overrides(self, draw: Draw) -> None:
        keys = [*self.recipe, "epochs", "data_range", "epsilon"]
        made = []
        for _ in range(draw.randint(1, 3)):
            key = draw.choice(keys)
            value = draw.choice([*JUNK, *self.recipe.values(), "none", "-1", "0", "1e400", "1,2,3"])
            made.append(f"{key}={value}" if draw.random() < 0.9 else bent_text(draw, f"{key}={value}"))
        recipe(
            NAME, parse_assignments(made) if draw.random() < 0.7 else {draw.choice(keys): draw.choice(JUNK)}
        )

    def recipe_files(self, draw: Draw) -> None:
        recipe(self._file("recipe.json", bent_json(draw, self.recipe)))

    def lock_files(self, draw: Draw) -> None:
        entries.read_lock(self._file("lock.json", bent_json(draw, self.lock)))

    def zoo_lists(self, draw: Draw) -> None:
        weights = {"source": "hub", "repo": "a/b", "commit": "0" * 40, "sha256": "0" * 64, "bytes": 1}
        rows = [{"name": "m", "recipe": NAME, "weights": weights}, {"name": "n", "recipe": "r.json"}]
        self._file("r.json", bent_json(draw, self.recipe))
        self._file(packages.LIST, bent_json(draw, {"schema": packages.SCHEMA, "models": rows}))
        for row in packages._rows(self.place):
            packages._entry("prefix", row, self.place, "a package")

    def journals(self, draw: Draw) -> None:
        path = self._file("journal", bent_bytes(draw, self.journal))
        stored_key(path)
        with Journal(path, {"seed": 0, "model": {"name": "a"}}) as journal:
            journal.append([Finding(9, 0, 4, 1, clean=Clean(9, 1, 1, (2, 3)))])

    def witness_files(self, draw: Draw) -> None:
        Witnesses.load(self._file("witness.safetensors", bent_safetensors(draw, self.witnesses)))

    def evidence_files(self, draw: Draw) -> None:
        Evidence.load(self._file("evidence.json", bent_json(draw, self.evidence))).key()

    def cards(self, draw: Draw) -> None:
        text = bent_text(draw, self.card)
        if draw.random() < 0.5:
            text = bent_bytes(draw, text.encode("utf-8", "surrogatepass")).decode("utf-8", "replace")
        lint_card(text)
        claims_of(*Card.read(text).results())

    def configs(self, draw: Draw) -> None:
        read_config(self._file("config.json", bent_json(draw, self.config)))

    def headers(self, draw: Draw) -> None:
        read_weights(self._file("model.safetensors", bent_safetensors(draw, self.weights)), self.expected)

    def import_files(self, draw: Draw) -> None:
        """Checkpoints of strangers: safetensors and pickles, nested, renamed and cut."""
        if draw.random() < 0.5:
            file = self._file("w.safetensors", bent_safetensors(draw, self.weights))
        else:
            held: dict[str, Any] = dict(self.expected)
            for _ in range(draw.randint(0, 3)):
                key = draw.choice(list(held))
                held[draw.choice([f"module.{key}", bent_text(draw, key)])] = draw.choice(
                    [held.pop(key), *JUNK]
                )
            held = held if draw.random() < 0.5 else {draw.choice(["state_dict", "model", "x"]): held, "n": 3}
            stream = io.BytesIO()
            torch.save(held, stream)
            content = stream.getvalue()
            file = self._file("w.pt", content if draw.random() < 0.5 else bent_bytes(draw, content))
        fitting(read_checkpoint(file), self.expected)

    def dataset_folders(self, draw: Draw) -> None:
        with tempfile.TemporaryDirectory(dir=self.place) as folder:
            root = Path(folder)
            for i in range(draw.randint(0, 3)):
                name = draw.choice(["0", "1", "cat", "é", "-", " ", ".hidden", "x" * 200, "a\nb"]) + str(i)
                (root / name).mkdir()
                for j in range(draw.randint(0, 3)):
                    stream = io.BytesIO()
                    mode = draw.choice(["L", "RGB", "RGBA", "P", "1", "I", "F", "CMYK", "LA"])
                    side = draw.choice([1, 8, 9, 40])
                    kind = draw.choice(["PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP"])
                    with contextlib.suppress(
                        OSError, KeyError, ValueError
                    ):  # Pillow does not write every mode in each
                        Image.new(mode, (side, draw.choice([1, 8, 300]))).save(stream, kind)
                    content = stream.getvalue()
                    if draw.random() < 0.6:
                        content = bent_bytes(draw, content)
                    ending = draw.choice([".png", ".jpg", ".PNG", ".txt", "", ".gif", ".tif"])
                    (root / name / f"{j}{ending}").write_bytes(content)
            data = open_samples(str(root), Small())
            for i in range(len(data)):
                data[i]


class Small(torch.nn.Module):
    """Says what images it takes."""

    input_shape = (1, 8, 8)


def bent_safetensors(draw: Draw, content: bytes) -> bytes:
    """A safetensors file with its header's JSON, or its bytes, changed."""
    if draw.random() < 0.4:
        return bent_bytes(draw, content)
    length = int.from_bytes(content[:8], "little")
    header = bent_json(draw, json.loads(content[8 : 8 + length]))
    stated = len(header) if draw.random() < 0.9 else draw.choice([0, 2**31, 2**63, 7])
    return stated.to_bytes(8, "little") + header + content[8 + length :]


KINDS = [name for name in vars(Inputs) if not name.startswith("_")]


def outcome(read: Callable[[Draw], None], seed: str) -> str:
    """ "accepted", "refused", or what is wrong, in a line."""
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    try:
        read(Draw(seed))
        found = "accepted"
    except Exception as error:
        found = "refused"
        if not type(error).__module__.startswith("robustzoo"):
            at = traceback.extract_tb(error.__traceback__)[-1]
            found = f"{type(error).__name__} in {Path(at.filename).name}:{at.lineno}: {str(error)[:120]!r}"
    seconds = time.process_time() - start
    more = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    if seconds > SECONDS or more > MEGABYTES:
        found = f"{seconds:.1f} s of CPU and {more:.0f} MB more"
    return found


def run(kinds: list[str], inputs: int, seed: int) -> dict[str, Counter[str]]:
    """Outcomes per kind of so many inputs each; of a fault the seed that gives it stands first."""
    found: dict[str, Counter[str]] = {kind: Counter() for kind in kinds}
    with tempfile.TemporaryDirectory() as folder:
        made = Inputs(Path(folder))
        for kind, counts in found.items():
            for i in range(inputs):
                result = outcome(getattr(made, kind), f"{kind}-{seed}-{i}")
                if result not in ("accepted", "refused"):
                    print(f"  {kind}-{seed}-{i}: {result}", flush=True)
                    result = "faults"
                counts[result] += 1
            print(
                f"{kind:<16} {counts['accepted']:>6} accepted {counts['refused']:>6} refused "
                f"{counts['faults']:>4} faults",
                flush=True,
            )
    return found


def main() -> None:
    """Print a row per kind."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--inputs", type=int, default=40_000, help="of all kinds together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", action="append", choices=KINDS, help="default: all")
    parser.add_argument("--only", metavar="SEED", help="one input again, with its traceback")
    given = parser.parse_args()
    kinds = given.kind or KINDS
    if given.only:
        with tempfile.TemporaryDirectory() as folder:
            getattr(Inputs(Path(folder)), kinds[0])(Draw(given.only))
        return
    found = run(kinds, -(-given.inputs // len(kinds)), given.seed)
    faults = sum(counts["faults"] for counts in found.values())
    print(f"{sum(c.total() for c in found.values())} inputs, {faults} faults")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
