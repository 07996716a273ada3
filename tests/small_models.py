"""Small models that need no training: ridge regression on pixels, and on the features of a random ViT."""

from __future__ import annotations

import shutil

import pytest
import torch
from torch import Tensor, nn

from robustzoo.cards import render_card
from robustzoo.data import load_dataset
from robustzoo.evaluation.checks import EvaluationWarning
from robustzoo.evaluation.evaluate import evaluate
from robustzoo.models.folder import read_folder, write_folder
from robustzoo.models.pixel_model import pixel_model
from robustzoo.registry import recipe

NAME = "vit_micro2.digits_linf.at_base"


def ridge(inputs: Tensor, labels: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Weight (10, d) and bias (10,) of one-against-all least squares, times `scale`."""
    x = torch.cat([inputs, torch.ones(len(inputs), 1)], 1).double()
    targets = nn.functional.one_hot(labels, 10).double()
    solution = torch.linalg.solve(x.T @ x + 0.1 * torch.eye(x.shape[1]), x.T @ targets).float() * scale
    return solution[:-1].T.contiguous(), solution[-1].contiguous()


def digits(split: str) -> tuple[Tensor, Tensor]:
    dataset = load_dataset("digits", split=split)
    pairs = [dataset[i] for i in range(len(dataset))]
    return torch.stack([x for x, _ in pairs]), torch.tensor([y for _, y in pairs])


@pytest.fixture(scope="session")
def linear() -> nn.Module:
    """A linear classifier of digits, about 90 % accurate, in eval mode."""
    x, y = digits("train")
    weight, bias = ridge(x.flatten(1), y, 10.0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    model[1].load_state_dict({"weight": weight, "bias": bias})
    return model.eval()


@pytest.fixture(scope="session")
def published(tmp_path_factory):
    """A model folder with weights, Evidence, witnesses and a card, as the command line leaves it."""
    chosen = recipe(NAME)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = pixel_model(chosen).eval()
    x, y = digits("train")
    with torch.no_grad():
        weight, bias = ridge(model.features(x), y, 10.0)
        model.head.weight.copy_(weight)
        model.head.bias.copy_(bias)
    folder = tmp_path_factory.mktemp("published") / "model"
    write_folder(folder, model, chosen)
    config = folder / "config.json"  # as `robustzoo card --licence apache-2.0` leaves it
    config.write_text(config.read_text().replace('"license": "unknown"', '"license": "apache-2.0"'))
    with pytest.warns(EvaluationWarning, match="does not hold the published weights"):
        evidence = evaluate(
            read_folder(folder), "digits", "linf:1/40", "pgd-5", n=100, out=folder, progress=False
        )
    text = render_card(chosen, evidence, evidence.doc["model"]["sha256"], "apache-2.0")
    (folder / "README.md").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def folder(published, tmp_path):
    """A copy of `published` to damage."""
    return shutil.copytree(published, tmp_path / "model")
