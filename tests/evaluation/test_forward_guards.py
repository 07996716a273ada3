"""What would change a number is refused on any scale of logits and at the micro-batch of the run."""

from __future__ import annotations

import copy
import warnings
from collections import OrderedDict, namedtuple

import pytest
import torch
from torch import nn

from robustzoo.diagnostics.masking_probe import probe_masking
from robustzoo.errors import RobustzooError
from robustzoo.evaluation.checks import probe_images
from robustzoo.evaluation.evaluate import evaluate
from robustzoo.evaluation.forward_guards import check_forward, check_micro_batch
from robustzoo.evaluation.prepare import state_digest

X = torch.rand(24, 1, 8, 8, generator=torch.Generator().manual_seed(0))
Y = torch.arange(24) % 3
CPU = torch.device("cpu")


class Changed(nn.Module):
    """A linear classifier of 3 of 5 classes; `change` gets its logits and the pixels."""

    def __init__(self, change=lambda z, x: z, classes: int = 3) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64, classes, generator=torch.Generator().manual_seed(1)))
        self.change = change

    def forward(self, x):
        return self.change(x.flatten(1) @ self.weight, x)


def masked(z, x, value: float = -1e4):
    return torch.cat([z, z.new_full((len(z), 2), value)], 1)


def centred(z):
    return z - z.mean(0)


SCALES = {
    "plain": lambda z, x: z,
    "mask": masked,
    "mask of the least float": lambda z, x: masked(z, x, -3e38),
    "added mask": lambda z, x: torch.cat([z, z[:, :2] - 1e4], 1),
    "offset": lambda z, x: z + 1e4,
    "offset by image": lambda z, x: z + 1e4 * x.mean((1, 2, 3))[:, None],
    "all but two masked": lambda z, x: z.masked_fill(z < z.topk(2).values[:, 1:], -1e4),
    "tiny": lambda z, x: 1e-6 * z,
    "huge": lambda z, x: 1e6 * z,
    "equal for all images": lambda z, x: 0 * z + torch.arange(3.0),
    "all equal": lambda z, x: 0 * z,
}
FAULTS = {
    "batch mean": (centred, "with the other images"),
    "dropout": (lambda z: nn.functional.dropout(z, 0.1), "between two calls"),
    "noise": (lambda z: z + 0.01 * z.std() * torch.randn_like(z), "between two calls"),
    "place in the batch": (lambda z: z * (1 + 0.01 * torch.arange(len(z))[:, None]), "with the other images"),
}


@pytest.mark.parametrize("scale", SCALES)
def test_an_honest_model_is_accepted_on_every_scale(scale):
    model = Changed(SCALES[scale]).eval()
    check_forward(model, probe_images(list(X)))
    for size in (1, 3, 4, 17, 64):
        check_micro_batch(model, list(X), size, CPU, gradients=True, random=False)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("scale", list(SCALES)[:9])
def test_randomness_and_statistics_of_the_batch_are_refused_on_every_scale(scale, fault):
    change, words = FAULTS[fault]
    torch.manual_seed(0)
    with pytest.raises(RobustzooError, match=words):
        check_forward(Changed(lambda z, x: SCALES[scale](change(z), x)).eval(), probe_images(list(X)))


def hiding(z, x):
    return z.detach() + 0 * z if len(x) > 4 else z


AT_SIZE = {
    "centred": (lambda z, x: centred(z) if len(x) > 4 else z, "classified alone"),
    "centred behind a mask": (lambda z, x: masked(centred(z) if len(x) > 4 else z, x), "classified alone"),
    "random": (lambda z, x: nn.functional.dropout(z, 0.5) if len(x) > 4 else z, "classified alone"),
    "hidden gradient": (hiding, "gradient is another one .zero. in a batch of 24"),
    "no gradient": (lambda z, x: z.detach() if len(x) > 4 else z, "no gradient"),
    "other gradient": (lambda z, x: 2 * z.detach() - z if len(x) > 4 else z, "in a batch of 24|recorded"),
    "other classes": (lambda z, x: masked(z, x) if len(x) > 4 else z, r"shape \(24, 5\); expected \(24, 3\)"),
}


@pytest.mark.parametrize("case", AT_SIZE)
def test_a_model_that_is_another_one_for_large_batches_is_refused(case, tmp_path):
    change, words = AT_SIZE[case]
    model = Changed(change).eval()
    with pytest.raises(RobustzooError, match=words):
        evaluate(model, (X, Y), "linf:0.02", "apgd-ce", out=tmp_path, progress=False)
    assert not list(tmp_path.iterdir())
    with pytest.raises(RobustzooError, match=words):
        probe_masking(model, (X, Y), "linf:0.02", progress=False)


def test_a_prediction_that_changes_within_a_wide_rounding_is_refused():
    """At an offset of 3e6 thirty spacings are wider than the logits."""
    model = Changed(lambda z, x: (centred(z) if len(z) > 4 else z) + 3e6).eval()
    with pytest.raises(RobustzooError, match="the predicted class of the same image changes"):
        check_micro_batch(model, list(X), 24, CPU, gradients=False, random=False)


Named = namedtuple("Named", "logits features")


class Output(OrderedDict):
    """As of transformers: a dictionary with attributes."""


ANSWERS = {
    "dict": (lambda z, x: {"features": x, "logits": z}, r"a dict for 4.*output\['logits'\]"),
    "other key": (lambda z, x: {"loss": z.sum(), "scores": z}, r"output\['scores'\]"),
    "ModelOutput": (lambda z, x: Output(logits=z), r"an? Output for 4.*output\['logits'\]"),
    "named tuple": (lambda z, x: Named(z, x), r"output\.logits"),
    "tuple": (lambda z, x: (z, x), r"output\[0\]"),
    "nothing": (lambda z, x: None, "a NoneType for 4.*wrap the model"),
    "a map": (lambda z, x: z[:, :, None, None], r"returned \(4, 3, 1, 1\) for 4 images; expected logits"),
}


@pytest.mark.parametrize("case", ANSWERS)
def test_what_libraries_return_is_refused_with_the_line_that_helps(case):
    change, words = ANSWERS[case]
    with pytest.raises(RobustzooError, match=words):
        check_forward(Changed(change).eval(), probe_images(list(X)))


def test_the_line_helps():
    model = Changed(ANSWERS["ModelOutput"][0]).eval()
    model.register_forward_hook(lambda module, inputs, output: output["logits"])
    assert evaluate(model, (X, Y), "linf:0.02", "pgd-2", progress=False).doc["counts"]["n"] == 24


def layers() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.3), nn.Linear(64, 3)).eval()


def exported(model: nn.Module, size: int | None = None) -> nn.Module:
    shapes = None if size else ({0: torch.export.Dim("batch")},)
    return torch.export.export(model, (X[: size or 4],), dynamic_shapes=shapes).module()


def scripted(model: nn.Module) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.freeze(torch.jit.script(model))


def held(model: nn.Module) -> nn.Module:
    """Inside a module of the caller's, whose eval() would raise for the exported one."""
    outer = nn.Sequential(model)
    outer.training = False
    return outer


@pytest.mark.parametrize("make", [exported, scripted, lambda m: held(exported(m))])
def test_exported_and_frozen_modules_are_evaluated_like_the_module(make):
    options = {"micro_batch_size": 8, "progress": False}
    expected = evaluate(layers(), (X, Y), "linf:0.05", "apgd-ce", **options)
    found = evaluate(make(layers()), (X, Y), "linf:0.05", "apgd-ce", **options)
    assert found.doc["samples"] == expected.doc["samples"]


def test_modules_that_were_exported_wrongly_are_refused_in_words():
    with pytest.raises(
        RobustzooError, match="exported for inputs of one shape: export it with dynamic_shapes"
    ):
        evaluate(exported(layers(), 2), (X, Y), "linf:0.05", "apgd-ce", progress=False)
    with pytest.raises(RobustzooError, match="random in the forward"):
        evaluate(exported(layers().train()), (X, Y), "linf:0.05", "apgd-ce", progress=False)
    with pytest.raises(
        RobustzooError, match=r"1 module is in training mode.*set `training = False` on these"
    ):
        evaluate(nn.Sequential(exported(layers())), (X, Y), "linf:0.1", "pgd-2", progress=False)


def test_frozen_modules_of_other_weights_have_another_digest():
    other = layers()
    with torch.no_grad():
        other[2].weight.mul_(2)
    same = [state_digest(scripted(layers())) for _ in range(2)]
    assert same[0] == same[1] != state_digest(scripted(other))


CONVOLUTION = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Flatten(), nn.Linear(256, 3)).eval()


@pytest.mark.parametrize(
    ("model", "images", "words"),
    [
        (CONVOLUTION, torch.rand(4, 8, 8, 3), r"look like .height, width, channels.: pass images.permute"),
        (copy.deepcopy(CONVOLUTION).half(), torch.rand(4, 3, 8, 8), r"use model.float\(\)"),
        (copy.deepcopy(CONVOLUTION).bfloat16(), torch.rand(4, 3, 8, 8), r"use model.float\(\)"),
        (copy.deepcopy(CONVOLUTION).double(), torch.rand(4, 3, 8, 8), r"use model.float\(\)"),
        (nn.Sequential(nn.Flatten(), nn.Linear(192, 3).half()), torch.rand(4, 3, 8, 8), r"model.float\(\)"),
    ],
    ids=["channels last", "half", "bfloat16", "double", "linear half"],
)
def test_axes_and_weights_of_another_kind_are_told_what_to_do(model, images, words):
    with pytest.raises(RobustzooError, match=words):
        evaluate(model.eval(), (images, torch.tensor([0, 1, 2, 0])), "linf:0.1", "pgd-1", progress=False)
