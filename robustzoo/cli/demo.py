"""`make demo`: the zoo, one bundled model and the verification of its card, in a minute."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import robustzoo
from robustzoo.data import load_dataset

NAME = "vit_micro2.digits_linf.trades_trh"


def _run(*arguments: str) -> None:
    """Run the installed command as a user would, after printing it."""
    print(f"\n$ robustzoo {' '.join(arguments)}\n", flush=True)
    code = subprocess.run([str(Path(sys.executable).with_name("robustzoo")), *arguments]).returncode
    if code:
        sys.exit(code)


def main() -> None:
    """List, load, predict, verify."""
    _run("ls")
    print(f'\n>>> model = robustzoo.load("{NAME}")')
    model = robustzoo.load(NAME)
    digits = load_dataset("digits", split="test")
    x, label = digits[0]
    prediction = model(x[None]).argmax(1).item()
    print(f">>> model(image).argmax()  # a handwritten {label}\n{prediction}")
    _run("verify", NAME)


if __name__ == "__main__":
    main()
