"""Run by `make wheel` in a clean environment: the wheel carries its data and serves every bundled model."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import robustzoo

here = Path(__file__).resolve().parents[1]
if here in Path(robustzoo.__file__).resolve().parents and "site-packages" not in robustzoo.__file__:
    sys.exit(f"imported the sources ({robustzoo.__file__}), not the installed wheel")

import torch  # noqa: E402

names = robustzoo.list_models(published_only=True)
if len(names) < 4:
    sys.exit(f"expected at least 4 bundled models in the wheel, found {names}")
for name in names:
    model = robustzoo.load(name)
    logits = model(torch.zeros(1, model.recipe.channels, model.recipe.image_size, model.recipe.image_size))
    if not torch.isfinite(logits).all() or not model.card:
        sys.exit(f"{name} loads without finite logits or without its card")
command = str(Path(sys.executable).with_name("robustzoo"))
subprocess.run([command, "ls", "--published"], check=True)
subprocess.run([command, "verify", names[0]], check=True)
print(f"wheel ok: {len(names)} bundled models loaded, {names[0]} verified")
