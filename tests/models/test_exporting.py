"""A PixelModel in other programs: traced, compiled, exported; the range is checked in eager alone."""

import pytest
import torch
from click.testing import CliRunner

import robustzoo
from robustzoo.cli import group
from robustzoo.errors import RobustzooError

NAME = "vit_micro2.digits_linf.trades_trh"
X = torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def model():
    return robustzoo.load(NAME)


def test_traced_exported_and_compiled_models_answer_the_same(model):
    with torch.no_grad():
        logits = model(X)
        traced = torch.jit.trace(model, X, check_trace=False)
        exported = torch.export.export(
            model, (X,), dynamic_shapes=({0: torch.export.Dim("b", min=1)},)
        ).module()
        compiled = torch.compile(model, fullgraph=True, backend="eager")
        for made in (traced, exported, compiled):
            assert torch.allclose(made(X), logits, atol=1e-5)
        assert torch.allclose(exported(X[:3]), logits[:3], atol=1e-5)
    with pytest.raises(RobustzooError, match=r"\[0, 1\]"):
        model(2 + X)


def test_onnx_answers_the_same(tmp_path, model):
    pytest.importorskip("onnxscript", reason="needs the extra onnx")
    runtime = pytest.importorskip("onnxruntime", reason="needs the extra onnx")
    file = tmp_path / "model.onnx"
    done = CliRunner().invoke(group, ["export", NAME, "--onnx", str(file)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    session = runtime.InferenceSession(str(file))
    for x in (X, X[:1]):
        (found,) = session.run(["logits"], {"pixels": x.numpy()})
        with torch.no_grad():
            assert torch.allclose(torch.from_numpy(found), model(x), atol=1e-4)
