"""The registry is light: no torch, no numpy, no network client."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HEAVY = (
    "torch",
    "timm",
    "numpy",
    "scipy",
    "huggingface_hub",
    "safetensors",
    "click",
    "rich",
    "http.client",
    "ssl",
)
CODE = f"""
import sys
import robustzoo.registry as registry
from robustzoo.registry.describe import describe
from robustzoo.registry.paper import published_cell
for name in registry.list_models():
    describe(registry.entry(name).recipe), published_cell(name)
registry.published()
print([module for module in {HEAVY!r} if module in sys.modules])
"""


def test_every_recipe_without_heavy_imports():
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", CODE], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
