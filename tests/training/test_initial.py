"""Initial weights: every tensor fits or nothing changes; only the class head may be new."""

from __future__ import annotations

import pytest
import timm
import torch
from safetensors.torch import save_file

from robustzoo.errors import RobustzooError
from robustzoo.models import build_network, write_folder
from robustzoo.models.initial import load_initial
from robustzoo.models.pixel_model import PixelModel
from robustzoo.registry import recipe


@pytest.fixture
def network():
    return build_network("vit_micro2", 8, 1, 10)


@pytest.fixture
def file(tmp_path):
    """Writes the weights of another random network, changed, and gives (path, those weights)."""

    def write(num_classes=10, **changes):
        state = build_network("vit_micro2", 8, 1, num_classes).state_dict()
        for name, change in changes.items():
            name = name.replace("__", ".")
            if change is None:
                del state[name]
            else:
                state[name] = change(state.get(name))
        path = tmp_path / "initial.safetensors"
        save_file({name: tensor.contiguous() for name, tensor in state.items()}, path)
        return path, state

    return write


def same(a, b) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def copy(network):
    return {name: tensor.clone() for name, tensor in network.state_dict().items()}


def test_random_leaves_the_network(network):
    before = copy(network)
    assert load_initial(network, "random") == "random weights"
    assert same(before, network.state_dict())


def test_a_file_with_the_same_head(network, file):
    path, state = file()
    assert load_initial(network, path) == f"{path}, class head included"
    assert same(network.state_dict(), state)


@pytest.mark.parametrize("change", [{"num_classes": 7}, {"head__weight": None, "head__bias": None}])
def test_another_head_is_made_new(network, file, change):
    path, state = file(**change)
    assert load_initial(network, path).endswith("with a new class head for 10 classes")
    loaded = network.state_dict()
    assert all(torch.equal(loaded[name], state[name]) for name in loaded if not name.startswith("head."))
    assert loaded["head.bias"].abs().max() == 0
    assert 0.015 < loaded["head.weight"].std() < 0.025


def test_a_model_folder(network, tmp_path):
    plan = recipe("vit_micro2.digits_linf.at_base")
    model = PixelModel(build_network("vit_micro2", 8, 1, 10), plan.mean, plan.std)
    write_folder(tmp_path / "model", model, plan)
    load_initial(network, tmp_path / "model")
    assert same(network.state_dict(), model.network.state_dict())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"norm__weight": None}, "norm.weight is missing"),
        ({"extra": lambda _: torch.zeros(1)}, "extra is unknown"),
        ({"pos_embed": lambda t: t[:, :4]}, r"position embedding has shape \(1, 4, 64\); .*1 \+ g \* g"),
        ({"pos_embed": lambda t: t[..., :32]}, r"pos_embed has shape \(1, 17, 32\), not \(1, 17, 64\)"),
        ({"norm__bias": lambda t: t * float("nan")}, "norm.bias has values that are not finite"),
        ({"norm__bias": lambda t: t.long()}, "norm.bias holds torch.int64, not floating-point numbers"),
        ({"norm__bias": lambda t: t.bool()}, "norm.bias holds torch.bool, not floating-point numbers"),
    ],
)
def test_what_does_not_fit_is_refused_and_changes_nothing(network, file, change, words):
    before = copy(network)
    path, _ = file(**change)
    with pytest.raises(RobustzooError, match=f"{words}.*Give weights of the same architecture"):
        load_initial(network, path)
    assert same(before, network.state_dict())


def test_unreadable_files(network, tmp_path):
    with pytest.raises(RobustzooError, match="no such file"):
        load_initial(network, tmp_path / "absent.safetensors")
    (tmp_path / "cut.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{")
    with pytest.raises(
        RobustzooError,
        match=r"not a readable safetensors file.*; give one, an .npz .*, or --init random",
    ):
        load_initial(network, tmp_path / "cut.safetensors")


def test_a_checkpoint_of_timm_at_its_revision(network, monkeypatch):
    source = build_network("vit_micro2", 8, 1, 21)
    asked = {}

    def create_model(tag, **arguments):
        asked.update(arguments, tag=tag)
        return source

    monkeypatch.setattr(timm, "create_model", create_model)
    revision = "0123456789abcdef0123456789abcdef01234567"
    said = load_initial(network, f"timm:vit_x.augreg@{revision}")
    assert asked["tag"] == "vit_x.augreg" and asked["pretrained"] is True
    assert asked["pretrained_cfg_overlay"]["hf_hub_id"] == f"timm/vit_x.augreg@{revision}"
    assert said == f"timm:vit_x.augreg@{revision}, with a new class head for 10 classes"
    assert torch.equal(network.state_dict()["pos_embed"], source.state_dict()["pos_embed"])


def test_an_unreachable_checkpoint_says_what_to_do(network, monkeypatch):
    def unreachable(tag, **arguments):
        raise OSError("no route to host")

    monkeypatch.setattr(timm, "create_model", unreachable)
    with pytest.raises(RobustzooError) as refused:
        load_initial(network, "timm:vit_x.augreg@unpinned")
    for words in (
        "no route to host",
        "hf download timm/vit_x.augreg`",
        "HF_HOME",
        "--init random",
        "--init PATH",
    ):
        assert words in str(refused.value)


@pytest.mark.parametrize("init", ["timm:tag", "timm:@x", "somewhere"])
def test_malformed(network, init):
    with pytest.raises(RobustzooError, match="neither random, timm:TAG@REVISION nor a Path"):
        load_initial(network, init)
