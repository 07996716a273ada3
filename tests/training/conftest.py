"""Training in this process, and the environment of training in another."""

from __future__ import annotations

import functools
import os
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))  # `training` is not part of the installed package

os.environ.setdefault("DS_ACCELERATOR", "cpu")  # read when DeepSpeed is imported; two ranks need no two GPUs
pytest.importorskip("deepspeed", reason="training needs the extra `train`")


@contextmanager
def _training():
    import torch

    from robustzoo.training.__main__ import train as main
    from tests.training.ranks import LAUNCHER_VARIABLES

    with pytest.MonkeyPatch.context() as patch:
        for name in LAUNCHER_VARIABLES:  # noted first, so that what `main` sets is undone
            patch.setenv(name, "")
            patch.delenv(name)
        patch.setattr("robustzoo.training.validation.STEPS", 2)
        patch.setattr("robustzoo.training.validation.LARGEST", 20)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        yield main
        torch.set_num_threads(threads)


@pytest.fixture
def train():
    """Training in this process, arguments to status, on one thread; leaves no launcher's variables."""
    with _training() as main:
        yield main


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """trained(*arguments): the folder of a run that every test may read, trained once."""

    @functools.cache
    def run(*arguments: str) -> Path:
        folder = tmp_path_factory.mktemp("trained") / "run"
        with _training() as main:
            assert main([*arguments, "--out", str(folder)]) == 0
        return folder

    return run


@pytest.fixture
def subprocess_environment():
    """Environment of a training process of its own: one thread, no variables of a launcher."""
    from tests.training.ranks import training_environment

    return training_environment()


@pytest.fixture(scope="session")
def weights():
    """Tensors of an exported model folder, by name."""
    from safetensors.torch import load_file

    return lambda folder: load_file(folder / "model.safetensors")
