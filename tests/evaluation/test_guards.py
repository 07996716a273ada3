"""Whatever would give a meaningless number is refused, with words, and nothing is left behind."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from robustzoo.data import DataError, TensorSource
from robustzoo.evaluation.evaluator import evaluate
from robustzoo.evaluation.guards import GuardError, check_forward, probe_images
from robustzoo.evaluation.samples import choose_samples

X = torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))
Y = torch.tensor([0, 1, 2, 0, 1, 2])


class Wrapped(nn.Module):
    """A linear classifier of 8x8 images with something done to its logits."""

    def __init__(self, change=lambda logits, x: logits, classes: int = 3) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.weight = nn.Parameter(torch.randn(64, classes, generator=generator))
        self.change = change

    def forward(self, x):
        return self.change(x.flatten(1) @ self.weight, x)


BAD_MODELS = {
    "softmax": (lambda z, x: z.softmax(1), "softmax"),
    "one-hot": (lambda z, x: nn.functional.one_hot(z.argmax(1), 3).float(), "softmax"),
    "random": (lambda z, x: z + torch.randn_like(z), "random in the forward"),
    "dropout": (lambda z, x: nn.functional.dropout(z, 0.5), "random in the forward"),
    "batch mean": (lambda z, x: z - z.mean(0), "other images"),
    "batch norm": (lambda z, x: (z - z.mean(0)) / (z.std(0, unbiased=False) + 1), "other images"),
    "NaN": (lambda z, x: z * float("nan"), "NaN"),
    "infinite": (lambda z, x: z / 0, "NaN or infinite"),
    "a tuple": (lambda z, x: (z, x), "tuple"),
    "a map": (lambda z, x: z[:, :, None], "expected logits (4, K)"),
    "one logit": (lambda z, x: z[:, :1], "K >= 2"),
    "double": (lambda z, x: z.double(), "float32"),
    "bfloat16": (lambda z, x: z.bfloat16(), "float32"),
    "detached": (lambda z, x: z.detach(), "gradient"),
    "integer": (lambda z, x: z.detach().round().float(), "gradient"),
    "failing": (lambda z, x: z @ torch.ones(7, 7), "fails on a float32 batch"),
    "infinite gradient": (lambda z, x: z + (x[:, 0, 0, :1] * 0).sqrt(), "gradient"),
}


@pytest.mark.parametrize("case", BAD_MODELS)
def test_a_model_that_gives_meaningless_numbers_is_refused(case, tmp_path):
    change, word = BAD_MODELS[case]
    with pytest.raises(GuardError) as caught:
        evaluate(Wrapped(change).eval(), (X, Y), "linf:0.1", "pgd-2", out=tmp_path, progress=False)
    assert word in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_square_alone_needs_no_gradient():
    model = Wrapped(lambda z, x: z.detach()).eval()
    assert check_forward(model, probe_images(list(X)), gradients=False) == 3


def test_a_training_module_anywhere_is_refused():
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.1), nn.Linear(64, 3)).eval()
    model[1].train()
    with pytest.raises(GuardError, match=r"1 modules are in training mode \(1\).*model.eval"):
        evaluate(model, (X, Y), "linf:0.1", "pgd-2", progress=False)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 6])
def test_few_images_are_completed_for_the_probe(count):
    images = probe_images(list(X[:count]))
    assert images.shape == (4, 1, 8, 8)
    assert len({tuple(image.flatten().tolist()) for image in images}) >= min(2 * count, 4)


BAD_DATA = {
    "bytes": ((X * 255).byte(), Y),
    "normalised": ((X - 0.5) / 0.25, Y),
    "NaN": (X * float("nan"), Y),
    "float labels": (X, Y.float()),
    "one-hot labels": (X, nn.functional.one_hot(Y)),
    "negative label": (X, Y - 1),
    "too few labels": (X, Y[:3]),
    "no images": (X[:0], Y[:0]),
}


@pytest.mark.parametrize("case", BAD_DATA)
def test_images_outside_the_box_and_labels_that_are_no_classes_are_refused(case, tmp_path):
    with pytest.raises(DataError):
        evaluate(Wrapped().eval(), BAD_DATA[case], "linf:0.1", "pgd-2", out=tmp_path, progress=False)
    assert not list(tmp_path.iterdir())


def test_a_label_beyond_the_outputs_is_refused():
    y = torch.tensor([0, 1, 2, 0, 3, 1])
    with pytest.raises(GuardError, match=r"sample 4 is 3, but the model has 3 outputs: expected 0\.\.2"):
        evaluate(Wrapped().eval(), (X, y), "linf:0.1", "pgd-2", progress=False)
    with pytest.raises(ValueError, match="sample 4 has label 3; expected 0 to 2"):
        evaluate(Wrapped().eval(), TensorDataset(X, y), "linf:0.1", "pgd-2", progress=False)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"seed": -1}, GuardError),
        ({"seed": 0.5}, GuardError),
        ({"micro_batch_size": 0}, GuardError),
        ({"workers": 0}, GuardError),
        ({"n": 7}, DataError),
        ({"n": 0}, DataError),
        ({"indices": []}, DataError),
        ({"indices": [0, 0]}, DataError),
        ({"indices": [6]}, DataError),
        ({"indices": [0], "n": 1}, DataError),
        ({"protocol": "autoattack"}, ValueError),
        ({"threat_model": "linf:eight"}, ValueError),
        ({"threat_model": None}, GuardError),
        ({"device": "gpu"}, GuardError),
        ({"device": "cuda:99"}, GuardError),
        ({"out": __file__}, GuardError),
    ],
    ids=str,
)
def test_arguments_out_of_range_are_refused(options, error):
    arguments = {"threat_model": "linf:0.1", "protocol": "pgd-2", "progress": False, **options}
    with pytest.raises(error):
        evaluate(Wrapped().eval(), (X, Y), **arguments)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"indices": []}, "indices are empty"),
        ({"indices": [0, 0]}, "indices hold 0 twice"),
        ({"indices": [1, 6]}, r"indices hold 6; expected whole numbers in 0\.\.5"),
        ({"indices": [-1]}, "indices hold -1"),
        ({"indices": [1.5]}, r"indices hold 1\.5 \(float\)"),
        ({"indices": [True]}, "indices hold True"),
        ({"indices": "12"}, "indices are '12'"),
        ({"indices": 3}, "indices are 3"),
        ({"indices": [0], "n": 1}, "n is 1, and indices are given too"),
        ({"n": 7}, "n is 7; expected a whole number from 1 to 6"),
    ],
    ids=str,
)
def test_a_wrong_choice_of_images_names_what_is_wrong(options, words):
    with pytest.raises(DataError, match=words):
        choose_samples(TensorSource(X, Y), **options)


def test_positions_may_be_an_array_or_a_tensor():
    data = TensorSource(X, Y)
    chosen = [choose_samples(data, indices=form) for form in ([4, 1], torch.tensor([4, 1]), np.array([1, 4]))]
    assert all(subset.indices == [1, 4] for subset in chosen)
    assert len({subset.digest for subset in chosen}) == 1


def test_a_non_finite_logit_met_later_is_refused(tmp_path):
    """Only image 5 makes this model overflow, so the probe of the first four cannot see it."""
    images = X.clone()
    images[5] = 0.0
    model = Wrapped(lambda z, x: z / x.sum((1, 2, 3)).sign()[:, None]).eval()
    with pytest.raises(ValueError, match="sample 5"):
        evaluate(model, (images, Y), "linf:0.1", "pgd-2", out=tmp_path, progress=False)
    assert not list(tmp_path.iterdir())


def test_the_model_and_torch_are_left_as_they_were():
    model = Wrapped().eval()
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        evaluate(model, (X, Y), "linf:0.1", "pgd-2", progress=False)
        assert torch.get_num_threads() == 2
        with pytest.raises(GuardError):
            evaluate(Wrapped(lambda z, x: z.softmax(1)).eval(), (X, Y), "linf:0.1", "pgd-2", progress=False)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert model.weight.requires_grad and model.weight.grad is None and not model.training


def test_autocast_and_inference_mode_of_the_caller_are_suspended():
    model = Wrapped().eval()
    expected = evaluate(model, (X, Y), "linf:0.1", "pgd-2", progress=False)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.inference_mode():
        found = evaluate(model, (X, Y), "linf:0.1", "pgd-2", progress=False)
        assert torch.is_autocast_enabled("cpu") and torch.is_inference_mode_enabled()
    assert found.deterministic_bytes() == expected.deterministic_bytes()
