"""The house rules that a machine can hold: arrows downwards, one library one room, files of readable size."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "robustzoo"
SOURCES = sorted(PACKAGE.rglob("*.py"))
SCRIPTS = sorted((ROOT / "training").glob("*.py"))

# Leaves, open to every room: standard library alone, but for `keyed_noise`, which needs torch.
LEAVES = {
    "atomic_files",
    "errors",
    "keyed_noise",
    "python_files",
    "streams",
    "untrusted_files",
}
# Room -> the rooms of the package that it may import, beside the leaves.
ALLOWED: dict[str, set[str]] = {
    "registry": set(),
    "cards": {"registry"},
    "data": {"registry"},
    "models": {"registry", "cards", "data"},
    "attacks": {"registry", "models"},
    "objectives": {"registry", "models", "attacks"},
    "evaluation": {"registry", "cards", "data", "models", "attacks"},
}
ALLOWED["verification"] = {*ALLOWED["evaluation"], "evaluation"}
ALLOWED["reports"] = {*ALLOWED["evaluation"], "evaluation"}
ALLOWED["hub"] = {"registry", "cards", "data", "models", "evaluation", "verification", "reports"}
ALLOWED["leaderboard"] = {*ALLOWED["reports"], "verification", "reports"}
ALLOWED["diagnostics"] = {*ALLOWED["evaluation"], "evaluation", "objectives"}
ALLOWED["studies"] = {*ALLOWED["diagnostics"], "diagnostics"}
ALLOWED["training"] = {"registry", "cards", "data", "models", "attacks", "objectives"}
ALLOWED["cli"] = set(ALLOWED)  # the top: every room
ALLOWED["__main__"] = {"cli"}
# Outside library -> the rooms that may import it.
OWNERS = {
    "timm": {"models"},
    "huggingface_hub": {"hub", "cards"},
    "deepspeed": {"training"},
    "torchattacks": {"diagnostics"},
    "autoattack": {"diagnostics"},
    "pyautoattack": {"diagnostics"},
    "matplotlib": {"diagnostics", "reports", "studies", "cli"},
}
TORCH_FREE = {"registry", "cards", *LEAVES} - {"keyed_noise"}


def imported_modules(path: Path) -> set[str]:
    """Every module that a file imports, wherever in the file, type-checking blocks included."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: use absolute imports"
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def test_the_tree_is_the_one_described():
    rooms = {room_of(p) for p in SOURCES} - {"__init__"}
    assert rooms == {*ALLOWED, *LEAVES}


def test_arrows_point_downwards():
    for path in SOURCES:
        if path != PACKAGE / "__init__.py":
            for module in imported_modules(path):
                assert may_import(room_of(path), module), f"{path} must not import {module}"


def may_import(room: str, module: str) -> bool:
    top, *rest = module.split(".")
    if top == "robustzoo":
        return not rest or rest[0] in {room, *LEAVES, *ALLOWED.get(room, set()), "__version__"}
    if top in {"torch", "torchvision"}:
        return room not in TORCH_FREE
    return room in OWNERS.get(top, {room}) and top not in {"training", "tests"}


def test_no_file_hides_a_second_noun():
    long = [path for path in SOURCES + SCRIPTS if len(path.read_text().splitlines()) > 400]
    assert not long


def test_import_is_cheap():
    code = (
        "import robustzoo, robustzoo.registry, robustzoo.cards, sys; "
        "heavy = {'torch', 'timm', 'huggingface_hub', 'scipy', 'matplotlib'} & set(sys.modules); "
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_evidence_is_read_compared_and_merged_without_torch():
    code = "import robustzoo.cli.evidence, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_who_brings_a_model_does_not_wait_for_timm():
    """It takes as long to load as torch; scripts, workers and ranks are processes that each would."""
    code = "import robustzoo, sys; robustzoo.evaluate; assert 'timm' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_public_name_resolves():
    import robustzoo

    assert all(getattr(robustzoo, name) is not None for name in robustzoo.__all__)
