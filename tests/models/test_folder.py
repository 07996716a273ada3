"""The model folder: what is written is what is read, timm reads it too, and nothing is ever half written."""

from __future__ import annotations

import json
import os
import stat

import pytest
import timm
import torch
from safetensors import safe_open

from robustzoo.errors import RobustzooError
from robustzoo.models import folder as folder_module
from robustzoo.models import pixel_model, read_folder, read_recipe, write_folder
from robustzoo.registry import recipe
from robustzoo.registry.digests import sha256_file


def test_round_trip(folder, small_model, small_recipe, digits):
    (folder / "README.md").write_text("# the card\n")
    model = read_folder(folder, sha256=sha256_file(folder / "model.safetensors"))
    assert not model.training
    assert torch.equal(model(digits), small_model(digits))
    assert (model.name, model.recipe, model.threat_model) == (
        small_recipe.name,
        small_recipe,
        small_recipe.threat_model,
    )
    assert (model.card, model.folder) == ("# the card\n", folder)
    assert read_recipe(folder) == small_recipe
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_timm_alone_reads_the_folder(folder, small_model, small_recipe, digits):
    network = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    x = (digits - small_recipe.mean[0]) / small_recipe.std[0]
    assert torch.equal(network(x), small_model(digits))
    config = timm.data.resolve_model_data_config(network)
    assert [tuple(config[key]) for key in ("mean", "std", "input_size")] == [(0.3,), (0.37,), (1, 8, 8)]


def test_three_channels_give_timm_three_means(tmp_path):
    wanted = recipe("vit_ti4.cifar10jpg_linf.trades_base")
    model = pixel_model(wanted).eval()
    write_folder(tmp_path / "m", model, wanted)
    network = timm.create_model(f"local-dir:{tmp_path / 'm'}", pretrained=True).eval()
    x = torch.rand(2, 3, 32, 32)
    assert torch.equal(network((x - 0.47) / 0.25), model(x))
    assert network.pretrained_cfg["mean"] == [0.47] * 3


def test_equal_weights_give_equal_bytes_whatever_their_layout(tmp_path, folder, small_model, small_recipe):
    """Transposed and shared storage: the file must depend on the values alone."""
    head = small_model.head
    head.weight.data = head.weight.data.t().contiguous().t()
    store = torch.cat([small_model.network.norm.weight.data, small_model.network.norm.bias.data])
    small_model.network.norm.weight.data, small_model.network.norm.bias.data = store[:64], store[64:]
    small_model.requires_grad_(False)
    digest = write_folder(tmp_path / "again", small_model, small_recipe)
    assert digest == sha256_file(folder / "model.safetensors")
    for name in ("model.safetensors", "config.json"):
        assert (tmp_path / "again" / name).read_bytes() == (folder / name).read_bytes()


def test_header_is_bare_timm_keys_and_the_format_alone(folder, small_model):
    with safe_open(folder / "model.safetensors", framework="pt") as stream:
        assert stream.metadata() == {"format": "pt"}
        assert set(stream.keys()) == set(small_model.network.state_dict())


def test_config_is_timms_layout_with_our_block_at_the_root(folder, small_recipe):
    config = json.loads((folder / "config.json").read_text())
    assert set(config) == {
        *("architecture", "num_classes", "num_features", "global_pool", "model_args", "pretrained_cfg"),
        "robustzoo",
    }
    assert {"img_size": 8, "patch_size": 2, "in_chans": 1}.items() <= config["model_args"].items()
    ours = config["robustzoo"]
    assert (ours["schema"], ours["name"], ours["recipe_digest"]) == (
        1,
        small_recipe.name,
        small_recipe.digest,
    )
    assert torch.tensor(ours["reference"]["logits"]).shape == (2, 10)


def test_files_can_be_read_by_other_users(folder):
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE((folder / "model.safetensors").stat().st_mode) == 0o666 & ~umask
    assert stat.S_IMODE(folder.stat().st_mode) == 0o777 & ~umask


def test_surroundings_of_the_caller_do_not_change_the_model(folder, small_model, digits):
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        model = read_folder(folder)
    x = digits.requires_grad_()
    (gradient,) = torch.autograd.grad(model(x).sum(), x)  # impossible with weights made in inference mode
    assert torch.equal(model(x), small_model(x)) and gradient.abs().sum() > 0


def test_loading_leaves_the_random_generator_alone(folder):
    torch.manual_seed(3)
    before = torch.get_rng_state()
    read_folder(folder)
    assert torch.equal(torch.get_rng_state(), before)


# --- writing into folders that exist ---


def test_an_empty_folder_is_filled(tmp_path, small_model, small_recipe):
    (tmp_path / "empty").mkdir()
    write_folder(tmp_path / "empty", small_model, small_recipe)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty"]  # no staging folder left
    read_folder(tmp_path / "empty")


def test_the_same_model_again_keeps_card_and_evidence(folder, small_model, small_recipe):
    (folder / "README.md").write_text("card")
    digest = write_folder(folder, small_model, small_recipe)
    assert digest == sha256_file(folder / "model.safetensors") and (folder / "README.md").exists()


def test_other_weights_need_overwrite_and_remove_stale_evidence(folder, small_model, small_recipe):
    (folder / "evidence").mkdir()
    (folder / "evidence" / "aa-standard.json").write_text("{}")
    before = sha256_file(folder / "model.safetensors")
    with torch.no_grad():
        small_model.head.bias += 1
    with pytest.raises(RobustzooError, match="overwrite=True"):
        write_folder(folder, small_model, small_recipe)
    assert sha256_file(folder / "model.safetensors") == before
    assert write_folder(folder, small_model, small_recipe, overwrite=True) != before
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]
    assert sorted(path.name for path in folder.parent.iterdir()) == ["model"]
    read_folder(folder)


def test_a_folder_whose_replacement_was_killed_is_read_again(folder, small_model):
    """Between its two renames, where the system cannot exchange two folders in one step."""
    folder.rename(folder.with_name(f".{folder.name}.01234567.old"))
    assert torch.equal(read_folder(folder).head.bias, small_model.head.bias)
    assert sorted(path.name for path in folder.parent.iterdir()) == ["model"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_with_other_things_is_never_touched(tmp_path, folder, small_model, small_recipe, overwrite):
    with torch.no_grad():
        small_model.head.bias += 1
    (folder / "thesis.tex").write_text("precious")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter.txt").write_text("precious")
    for place in (folder, tmp_path / "home"):
        with pytest.raises(RobustzooError, match="neither empty nor a model folder"):
            write_folder(place, small_model, small_recipe, overwrite=overwrite)
    (tmp_path / "file").write_text("precious")
    with pytest.raises(RobustzooError, match="not a folder"):
        write_folder(tmp_path / "file", small_model, small_recipe, overwrite=overwrite)


def test_a_failure_on_the_way_leaves_the_old_folder(folder, small_model, small_recipe, monkeypatch):
    before = sha256_file(folder / "model.safetensors")
    with torch.no_grad():
        small_model.head.bias += 1

    def full_disk(path, text):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(folder_module.atomic_files, "write_text", full_disk)
    with pytest.raises(OSError, match="No space left"):
        write_folder(folder, small_model, small_recipe, overwrite=True)
    assert sha256_file(folder / "model.safetensors") == before
    assert sorted(path.name for path in folder.parent.iterdir()) == ["model"]


# --- refused at export ---


def poke(model, name, change):
    module, _, leaf = name.rpartition(".")
    parameter = model.network.get_submodule(module)
    setattr(parameter, leaf, torch.nn.Parameter(change(getattr(parameter, leaf).data)))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda w: w.index_fill(0, torch.tensor([2]), float("nan")),
            "64 of 640 values of head.weight are NaN",
        ),
        (lambda w: w.index_fill(0, torch.tensor([2]), float("inf")), "NaN or infinite"),
        (lambda w: w[:9], r"head.weight has shape \(9, 64\), expected \(10, 64\)"),
        (lambda w: w.half(), "head.weight has dtype torch.float16, expected torch.float32"),
    ],
)
def test_bad_weights_are_not_exported(tmp_path, small_model, small_recipe, change, words):
    poke(small_model, "head.weight", change)
    with pytest.raises(RobustzooError, match=words):
        write_folder(tmp_path / "out", small_model, small_recipe)
    assert not list(tmp_path.iterdir())


def test_a_model_with_more_layers_is_not_exported(tmp_path, small_model, small_recipe):
    small_model.network.extra = torch.nn.Linear(2, 2)
    with pytest.raises(RobustzooError, match=r"tensors the architecture does not have: extra\.bias"):
        write_folder(tmp_path / "out", small_model, small_recipe)


def test_another_normalisation_is_not_exported(tmp_path, small_model, small_recipe):
    small_model.mean.fill_(0.5)
    with pytest.raises(RobustzooError, match="the model's mean is"):
        write_folder(tmp_path / "out", small_model, small_recipe)
