"""Whatever would give a meaningless number is refused, with words, and nothing is left behind."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import TensorDataset

import robustzoo
from robustzoo.attacks.answers import NonFiniteLogits
from robustzoo.cards import Evidence
from robustzoo.cards.signs import masking_warning
from robustzoo.data import DataError, TensorSource
from robustzoo.data.samples import choose_samples
from robustzoo.evaluation.checks import (
    EvaluationWarning,
    RobustzooError,
    outputs_note,
    probe_images,
)
from robustzoo.evaluation.evaluate import evaluate
from robustzoo.evaluation.forward_guards import check_forward
from robustzoo.evaluation.machine import seconds_per_pass
from robustzoo.evaluation.terms import check_writable
from robustzoo.reports.text import report

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


def fail(*words):
    raise AssertionError(*words)


BAD_MODELS = {
    "softmax": (lambda z, x: z.softmax(1), "softmax"),
    "sigmoid": (lambda z, x: z.sigmoid(), "sigmoid"),
    "one-hot": (lambda z, x: nn.functional.one_hot(z.argmax(1), 3).float(), "softmax"),
    "random": (lambda z, x: z + torch.randn_like(z), "random in the forward"),
    "dropout": (lambda z, x: nn.functional.dropout(z, 0.5), "random in the forward"),
    "batch mean": (lambda z, x: z - z.mean(0), "other images"),
    "batch norm": (lambda z, x: (z - z.mean(0)) / (z.std(0, unbiased=False) + 1), "other images"),
    "NaN": (lambda z, x: z * float("nan"), "NaN"),
    "infinite": (lambda z, x: z / 0, "NaN or infinite"),
    "masked by infinity": (
        lambda z, x: torch.cat([z, z.new_full((len(z), 2), -torch.inf)], 1),
        "2 of the model's 5 logits are minus infinity",
    ),
    "a tuple": (lambda z, x: (z, x), "tuple"),
    "a map": (lambda z, x: z[:, :, None], "expected logits (4, K)"),
    "one logit": (lambda z, x: z[:, :1], "K >= 2"),
    "double": (lambda z, x: z.double(), "float32"),
    "bfloat16": (lambda z, x: z.bfloat16(), "float32"),
    "detached": (lambda z, x: z.detach(), "gradient"),
    "integer": (lambda z, x: z.detach().round().float(), "gradient"),
    "other with gradients": (lambda z, x: z * 2 if x.requires_grad else z, "when gradients are recorded"),
    "other where enabled": (lambda z, x: z + torch.is_grad_enabled(), "when gradients are recorded"),
    "an assertion": (lambda z, x: fail(), "shape (4, 1, 8, 8) in [0, 1] on cpu: AssertionError"),
    "a sentence": (lambda z, x: fail("No such thing."), "on cpu: No such thing. Expected a module"),
    "failing": (lambda z, x: z @ torch.ones(7, 7), "fails on a float32 batch"),
    "infinite gradient": (lambda z, x: z + (x[:, 0, 0, :1] * 0).sqrt(), "gradient"),
}


@pytest.mark.parametrize("case", BAD_MODELS)
def test_a_model_that_gives_meaningless_numbers_is_refused(case, tmp_path):
    change, word = BAD_MODELS[case]
    with pytest.raises(RobustzooError) as caught:
        evaluate(Wrapped(change).eval(), (X, Y), "linf:0.1", "pgd-2", out=tmp_path, progress=False)
    assert word in str(caught.value)
    assert not list(tmp_path.iterdir())


def writing(write, recorded_only: bool = False) -> nn.Module:
    """A model whose forward writes into its input first, or only where gradients are recorded."""

    class Writing(Wrapped):
        def forward(self, x):
            if x.requires_grad or not recorded_only:
                with torch.no_grad():
                    write(x)
            return super().forward(x)

    return Writing().eval()


WRITES = {
    "sub_": lambda x: x.sub_(0.01),
    "mul_": lambda x: x.mul_(0.5),
    "data": lambda x: x.data.add_(0.25).clamp_(0, 1),
    "a pixel": lambda x: x[:, :, 0, 0].fill_(2.0),
}


@pytest.mark.parametrize(
    ("write", "protocol"), [*((write, "pgd-2") for write in WRITES), ("sub_", "square"), ("data", "aa-rand")]
)
def test_a_forward_that_writes_into_its_input_is_refused(write, protocol):
    with pytest.raises(RobustzooError, match=r"changes its input in place.*use x = x - "):
        evaluate(writing(WRITES[write]), (X, Y), "linf:0.1", protocol, progress=False)


def test_a_forward_that_writes_only_where_gradients_are_recorded_is_refused():
    with pytest.raises(RobustzooError, match="changes its input in place"):
        check_forward(writing(WRITES["mul_"], recorded_only=True), probe_images(list(X)), random=True)


def test_the_trial_of_speed_hands_a_forward_images_of_its_own():
    """One image expanded is a batch in one place of memory, which no forward can write to."""
    image = X[0].clone()
    seconds = seconds_per_pass(writing(lambda x: x.data.clamp_(0, 0.5)), image.expand(5, *image.shape))
    assert min(seconds) >= 0
    assert torch.equal(image, X[0])
    clamped = evaluate(writing(lambda x: x.data.clamp_(0, 1)), (X, Y), "linf:0.1", "pgd-2", progress=False)
    plain = evaluate(Wrapped().eval(), (X, Y), "linf:0.1", "pgd-2", progress=False)
    assert clamped.doc["samples"] == plain.doc["samples"]


class Changing(TensorDataset):
    """Training data: an image flipped, or a label replaced, by chance."""

    def __init__(self, what: str) -> None:
        super().__init__(X, Y)
        self.what, self.generator = what, torch.Generator().manual_seed(0)

    def __getitem__(self, i):
        x, y = super().__getitem__(i)
        changed = torch.rand((), generator=self.generator) < 0.5
        if self.what == "image":
            return (x.flip(-1) if changed else x), y
        return x, (0 if changed else y)


@pytest.mark.parametrize("what", ["image", "label"])
def test_data_that_change_with_every_read_are_refused(what):
    with pytest.raises(
        RobustzooError, match=rf"the {what} of item \d differs between two reads.*training trans"
    ):
        evaluate(Wrapped().eval(), Changing(what), "linf:0.1", "pgd-2", progress=False)


def test_images_of_another_shape_than_the_models_are_refused_with_both_shapes():
    model = robustzoo.load("vit_micro2.digits_linf.at_base")
    data = (torch.rand(4, 3, 32, 32), Y[:4])
    with pytest.raises(RobustzooError, match=r"shape \(3, 32, 32\), but the model expects \(1, 8, 8\)"):
        evaluate(model, data, protocol="pgd-2", progress=False)


@pytest.mark.parametrize("shape", ["big", (3, 8.0, 8), (3, 0, 8), (8, 8), 8, (True, 8, 8)])
def test_an_input_shape_that_is_no_shape_is_refused_before_images_are_read(shape, tmp_path):
    model = Wrapped().eval()
    model.input_shape = shape
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "0.png").touch()
    for data in ((X, Y), tmp_path):
        with pytest.raises(RobustzooError) as caught:
            evaluate(model, data, "linf:0.1", "pgd-2", progress=False)
        assert (
            f"input_shape is {shape!r}; expected (channels, height, width), three positive integers"
            in str(caught.value)
        )


@pytest.mark.parametrize("shape", [[1, 8, 8], torch.Size([1, 8, 8]), tuple(np.array([1, 8, 8]))])
def test_an_input_shape_may_be_any_sequence_of_whole_numbers(shape):
    model = Wrapped().eval()
    model.input_shape = shape
    assert check_forward(model, probe_images(list(X))) == 3


def test_square_alone_needs_no_gradient():
    model = Wrapped(lambda z, x: z.detach()).eval()
    assert check_forward(model, probe_images(list(X)), gradients=False) == 3


def test_a_training_module_anywhere_is_refused():
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.1), nn.Linear(64, 3)).eval()
    model[1].train()
    with pytest.raises(RobustzooError, match=r"1 module is in training mode \(1\).*model.eval"):
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
    with pytest.raises(RobustzooError, match=r"sample 4 is 3, but the model has 3 outputs: expected 0\.\.2"):
        evaluate(Wrapped().eval(), (X, y), "linf:0.1", "pgd-2", progress=False)
    with pytest.raises(ValueError, match="sample 4 has label 3; expected 0 to 2"):
        evaluate(Wrapped().eval(), TensorDataset(X, y), "linf:0.1", "pgd-2", progress=False)


def test_a_model_that_has_more_outputs_for_large_batches_is_refused(tmp_path):
    """The probe has four images, the evaluation a batch of six."""
    model = Wrapped(lambda z, x: torch.cat([z, z[:, :1]], 1) if len(z) > 4 else z).eval()
    with pytest.raises(ValueError, match=r"output has shape \(6, 4\); expected \(6, 3\)"):
        evaluate(model, (X, Y), "linf:0.1", "pgd-2", micro_batch_size=6, out=tmp_path, progress=False)
    assert not list(tmp_path.iterdir())


WRONG_ARGUMENTS = [
    ({"model": "vit_micro2.digits_linf.at_base"}, r"a name; .*robustzoo\.load\('vit_micro2"),
    ({"model": None}, r"model is None; expected a torch\.nn\.Module"),
    ({"model": lambda x: x}, r"model is a function; expected a torch\.nn\.Module.*wrap the function"),
    ({"model": nn.Linear}, "the class Linear.*pass an instance"),
    ({"model": 3}, r"model is 3 \(int\)"),
    ({"data": None}, "data is None; expected the name"),
    ({"data": X}, "one Tensor of shape"),
    ({"data": {"x": X, "y": Y}}, "data is a dict with 'x', 'y'; .*the pair"),
    ({"data": (X.to_sparse(), Y)}, "images: a tensor of layout torch.sparse_coo; .*to_dense"),
    ({"data": (X.to("meta"), Y)}, "images: a tensor on the meta device"),
    ({"data": (X, Y.to("meta"))}, "labels: a tensor on the meta device"),
    ({"model": nn.Sequential(nn.Flatten(), nn.LazyLinear(3)).eval()}, r"1\.weight has no shape yet \(a lazy"),
    ({"model": nn.Linear(2, 2, device="meta").eval()}, "weight is on the meta device, without values"),
    ({"device": "meta"}, "device 'meta' cannot be used"),
    ({"threat_model": None}, "no threat model.*linf:8/255"),
    ({"threat_model": 0.1}, r"0\.1 \(float\) is not a threat model"),
    ({"threat_model": "linf:eight"}, "linf:eight"),
    ({"protocol": None}, "protocol is None; expected a name such as 'aa-standard'"),
    ({"protocol": 10}, r"protocol is 10 \(int\)"),
    ({"protocol": "autoattack"}, "unknown protocol 'autoattack'; did you mean aa-standard"),
    ({"protocol": "AA-Standard"}, "did you mean aa-standard"),
    ({"protocol": "PGD20"}, "did you mean pgd-20"),
    ({"protocol": "fgsm"}, "did you mean pgd-1"),
    *(({"n": n}, f"n is {n!r} .*expected a whole number of at least 1") for n in (1.5, "3", 0, -2, True)),
    *(({"micro_batch_size": size}, f"micro_batch_size is {size!r}") for size in (0, -1, 2.0, "8")),
    *(({"workers": workers}, f"workers is {workers!r}") for workers in (0, -1, 1.5, None)),
    *(({"seed": seed}, f"seed is {seed!r}") for seed in (-1, 0.5, "1", None, 2**64)),
    *(({"device": device}, f"device '{device}' cannot be used") for device in (1.5, "gpu", "cuda:99")),
    ({"out": 3}, r"out is 3 \(int\); expected the path of a folder"),
    ({"out": ""}, "out is ''"),
    ({"out": __file__}, "is a file; expected a folder"),
    ({"data_root": 3}, "data_root is 3"),
    ({"data_root": "nowhere"}, "no data at nowhere"),
    ({"name": ""}, "name is ''"),
    ({"name": 3}, "name is 3"),
    ({"progress": "yes"}, "progress is 'yes'"),
]


@pytest.mark.parametrize(
    ("options", "words"), WRONG_ARGUMENTS, ids=[str(o).partition(" at 0x")[0] for o, _ in WRONG_ARGUMENTS]
)
def test_wrong_arguments_are_named_before_the_model_is_called(options, words):
    def refuse(logits, x):
        raise AssertionError("computed with a wrong argument")

    arguments = {
        "model": Wrapped(refuse).eval(),
        "data": (X, Y),
        "threat_model": "linf:0.1",
        "protocol": "pgd-2",
        "progress": False,
        **options,
    }
    with pytest.raises((ValueError, FileNotFoundError), match=words) as caught:
        evaluate(**arguments)
    assert type(caught.value).__module__.startswith("robustzoo")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc, which takes no files")
def test_a_place_that_only_says_it_is_writable_is_refused_at_once():
    with pytest.raises(RobustzooError, match=r"out is '/proc/x', but nothing can be written in /proc"):
        evaluate(Wrapped().eval(), (X, Y), "linf:0.1", "pgd-2", out="/proc/x", progress=False)


def test_trying_a_place_for_results_leaves_nothing(tmp_path):
    check_writable(tmp_path / "new" / "folder")
    assert not list(tmp_path.iterdir())


def test_numpy_integers_are_whole_numbers():
    number = np.int64
    arguments = ((X, Y), "linf:0.1", "pgd-2")
    options = {"n": 3, "seed": 1, "micro_batch_size": 2, "workers": 1}
    first = evaluate(Wrapped().eval(), *arguments, **options, progress=False)
    wide = {key: number(value) for key, value in options.items()}
    assert evaluate(Wrapped().eval(), *arguments, **wide, progress=False).key() == first.key()


class Rounding(Wrapped):
    """Sees only the pixels' nearest quarter: the gradient is there, and zero everywhere."""

    def forward(self, x):
        return super().forward((x * 4).round() / 4)


def test_gradients_that_are_zero_throughout_are_told_and_recorded(tmp_path):
    model = Rounding().eval()
    with torch.no_grad():
        y = model(X).argmax(1)
    options = {"threat_model": "linf:0.01", "protocol": "apgd-ce+t"}
    with pytest.warns(EvaluationWarning, match="gradient masking suspected.*may be overestimated") as caught:
        found = evaluate(model, (X, y), **options, out=tmp_path, progress=False)
    assert caught[0].filename == __file__
    robust = found.robust_accuracy.correct
    assert robust and found.doc["run"]["zero_gradients"]["apgd-ce"] >= robust
    assert found.doc["run"]["zero_gradients"]["apgd-t"] >= robust
    assert "zero_gradients" not in found.key()
    (path,) = (tmp_path / "evidence").glob("*.json")
    assert f"apgd-ce on {found.doc['run']['zero_gradients']['apgd-ce']} of 6" in report(Evidence.load(path))
    events = []
    evaluate(model, (X, y), **options, progress=events.append)
    assert [e for e in events if e["event"] == "warning" and "overestimated" in e["text"]]


def test_gradients_that_are_there_are_not_suspected():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = evaluate(Wrapped().eval(), (X, Y), "linf:0.1", "aa-standard", progress=False)
    assert found.doc["run"]["zero_gradients"] == {}
    assert "masking" not in report(found)


def test_single_images_without_a_gradient_are_no_masking():
    assert masking_warning({"apgd-ce": 5}, 500) is None
    assert "apgd-ce on 6 of 500" in masking_warning({"apgd-ce": 6, "apgd-t": 1}, 500)
    assert "apgd-t" not in masking_warning({"apgd-ce": 6, "apgd-t": 1}, 500)


def test_a_batch_larger_than_the_data_is_remarked_once():
    events = []
    found = evaluate(
        Wrapped().eval(), (X, Y), "linf:0.1", "pgd-2", micro_batch_size=9, progress=events.append
    )
    remarks = [e["text"] for e in events if "padding" in e.get("text", "")]
    assert len(remarks) == 1 and remarks[0].startswith("micro-batch 9 is larger than the 6 images")
    assert found.doc["micro_batch_size"] == 9
    cost = next(e["text"] for e in events if e["event"] == "cost")
    assert ", under 1 s if all stay robust" in cost


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


@pytest.mark.parametrize("protocol", ["square", "apgd-ce+t"])
def test_a_non_finite_logit_met_by_an_attack_is_refused(protocol, tmp_path):
    """The clean images are classified; an attack that brightens a pixel of image 4 meets no number there."""
    images = 0.5 * X
    images[4, 0, 0, 0] = 0.59
    model = Wrapped(lambda z, x: torch.where(x[:, 0, 0, :1] > 0.6, torch.nan, z)).eval()
    with torch.no_grad():
        y = model(images).argmax(1)
    with pytest.raises(NonFiniteLogits, match="sample 4;"):
        evaluate(model, (images, y), "linf:0.02", protocol, out=tmp_path, progress=False)
    assert not list(tmp_path.glob("evidence/*.json"))


def test_the_model_and_torch_are_left_as_they_were():
    model = Wrapped().eval()
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        evaluate(model, (X, Y), "linf:0.1", "pgd-2", progress=False)
        assert torch.get_num_threads() == 2
        with pytest.raises(RobustzooError):
            evaluate(Wrapped(lambda z, x: z.softmax(1)).eval(), (X, Y), "linf:0.1", "pgd-2", progress=False)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert model.weight.requires_grad and model.weight.grad is None and not model.training


@pytest.mark.parametrize(
    "protocol", ["apgd-ce", "fab", pytest.param("square", marks=pytest.mark.slow), "pgd-5"]
)
def test_default_dtype_and_device_of_the_caller_are_suspended(protocol):
    few = X[:2], Y[:2]
    expected = evaluate(Wrapped().eval(), few, "l2:0.3", protocol, progress=False)
    model, before = Wrapped().eval(), (torch.get_default_dtype(), torch.get_default_device())
    try:
        torch.set_default_dtype(torch.float64)
        with torch.device("meta"):
            found = evaluate(model, few, "l2:0.3", protocol, progress=False)
            assert torch.get_default_device().type == "meta"
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(before[0])
    assert found.doc["samples"] == expected.doc["samples"] and torch.get_default_device() == before[1]


def test_a_compiled_module_is_attacked_like_the_module():
    """torch.compile's wrapper has a length, which it asks of a module that may have none."""
    model = Wrapped().eval()
    found, expected = (
        evaluate(m, (X, Y), "linf:0.02", "apgd-ce", progress=False).doc
        for m in (torch.compile(model, backend="eager"), model)
    )
    assert found["samples"] == expected["samples"]


def test_weights_made_in_inference_mode_are_refused():
    with torch.inference_mode():
        model = Wrapped().eval()
        with pytest.raises(RobustzooError, match=r"the model's weight was made under torch\.inference_mode"):
            evaluate(model, (X, Y), "linf:0.02", "apgd-ce", progress=False)
    with pytest.raises(RobustzooError, match=r"the model's weight was made under torch\.inference_mode"):
        evaluate(model, (X, Y), "linf:0.02", "apgd-ce", progress=False)


def test_autocast_and_inference_mode_of_the_caller_are_suspended():
    model = Wrapped().eval()
    expected = evaluate(model, (X, Y), "linf:0.1", "pgd-2", progress=False)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.inference_mode():
        found = evaluate(model, (X, Y), "linf:0.1", "pgd-2", progress=False)
        assert torch.is_autocast_enabled("cpu") and torch.is_inference_mode_enabled()
    assert found.deterministic_bytes() == expected.deterministic_bytes()


def test_more_outputs_than_classes_are_told_once(tmp_path):
    for name, level in (("dark", 20), ("light", 200)):
        (tmp_path / name).mkdir()
        Image.new("L", (8, 8), level).save(tmp_path / name / "0.png")
    events: list[dict] = []
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 3)).eval()
    model.input_shape = (3, 8, 8)
    evaluate(model, tmp_path, "linf:0.01", protocol="apgd-ce", progress=events.append)
    told = [event["text"] for event in events if "the model has" in event.get("text", "")]
    assert told == [
        "the model has 3 outputs, the data 2 classes, 'dark' to 'light': they are taken for the first 2 "
        "outputs, and any other answer is wrong"
    ]
    assert outputs_note(("a", "b", "c"), 3) is None
    assert outputs_note(("0", "1"), 3) is None  # of tensors: the labels that occur
