"""`architecture=timm:NAME`: a network that no row of the catalog knows, from recipe to folder and card."""

from __future__ import annotations

import json

import pytest
import timm
import torch
from safetensors.torch import save_file

from robustzoo.errors import RobustzooError
from robustzoo.models import pixel_model, read_folder, write_folder
from robustzoo.models.initial import load_initial
from robustzoo.registry import Recipe, recipe

BASE = "resnet_mini.cifar10jpg_linf.at_base"
SWIN = {"window_size": 2, "depths": [1, 2], "embed_dim": 16, "num_heads": [2, 2], "patch_size": 2}
DISTILLED = "deit_tiny_distilled_patch16_224"  # two heads
ATTO = {
    "architecture": "timm:convnext_atto",
    "model_args": {"depths": [1, 1, 1, 1], "dims": [8, 8, 16, 16], "stem_type": "overlap_tiered"},
}


def of(architecture, base=BASE, **arguments):
    return recipe(base, {"architecture": f"timm:{architecture}", "model_args": arguments or None})


def test_a_recipe_file_names_it_and_the_digest_holds_it(tmp_path):
    file = tmp_path / "mine.json"
    file.write_text(json.dumps({"base_name": BASE, **ATTO}))
    made = recipe(file)
    assert (made.architecture, dict(made.model_args)) == ("timm:convnext_atto", ATTO["model_args"])
    assert made.name == f"{BASE}+{made.digest[:8]}" and made.digest != recipe(BASE).digest
    assert Recipe.from_json(json.loads(json.dumps(made.to_json()))) == made
    by_hand = recipe(BASE, {**ATTO, "model_args": json.dumps(ATTO["model_args"])})
    assert by_hand.digest == made.digest
    assert recipe(BASE, {"architecture": "timm:convnext_atto"}).digest != made.digest


# fixed size and class token; batch norm; a head behind a norm; no linear head
@pytest.mark.parametrize(
    ("name", "arguments", "linear"),
    [
        ("vit_tiny_patch16_224", {"patch_size": 8, "embed_dim": 32, "depth": 1, "num_heads": 2}, True),
        ("resnet10t", {"stem_width": 8}, True),
        ("convnext_atto", ATTO["model_args"], True),
        (DISTILLED, {"embed_dim": 32, "depth": 1, "num_heads": 2}, False),
        ("swin_tiny_patch4_window7_224", SWIN, True),  # positions and masks that no file holds
        ("swinv2_tiny_window8_256", SWIN, True),
        ("maxvit_pico_rw_256", {"depths": [1, 1, 1, 1]}, True),
        ("eva02_tiny_patch14_224", {"patch_size": 8, "embed_dim": 32, "depth": 1, "num_heads": 2}, True),
    ],
)
def test_folder_of_any_network(tmp_path, name, arguments, linear):
    made = of(name, **arguments)
    model = pixel_model(made)
    model.check_head()
    assert model.has_linear_head == linear and model.training
    model.eval()
    write_folder(tmp_path / "m", model, made)
    x = torch.rand(2, 3, 32, 32)
    again = read_folder(tmp_path / "m")
    assert torch.equal(again(x), model(x)) and again.num_classes == 10
    alone = timm.create_model(f"local-dir:{tmp_path / 'm'}", pretrained=True).eval()
    assert torch.allclose(alone((x - again.mean) / again.std), model(x), atol=1e-6)
    assert timm.data.resolve_model_data_config(alone)["input_size"] == (3, 32, 32)


def test_a_computed_buffer_is_what_its_recipe_computes(tmp_path):
    made = of("swin_tiny_patch4_window7_224", **SWIN)
    model = pixel_model(made).eval()
    model.network.layers[0].blocks[0].attn.relative_position_index[0, 0] = 0
    with pytest.raises(RobustzooError, match="relative_position_index"):
        write_folder(tmp_path / "m", model, made)
    assert not (tmp_path / "m").exists()


def test_without_a_linear_head_there_are_no_features():
    model = pixel_model(of(DISTILLED, embed_dim=32, depth=1, num_heads=2))
    for asked in (lambda: model.head, lambda: model.features(torch.rand(1, 3, 32, 32))):
        with pytest.raises(RobustzooError, match="not linear"):
            asked()


def test_a_checkpoint_of_a_network_with_batch_norm_and_another_head(tmp_path):
    for name, arguments, kept in (
        ("resnet10t", {"stem_width": 8}, "bn1.running_mean"),
        (DISTILLED, {"embed_dim": 32, "depth": 1, "num_heads": 2, "img_size": 32}, "dist_token"),
    ):
        source = timm.create_model(name, num_classes=7, **arguments)
        save_file(source.state_dict(), tmp_path / "w.safetensors")
        arguments.pop("img_size", None)
        network = pixel_model(of(name, **arguments)).network
        assert "new class head for 10 classes" in load_initial(network, tmp_path / "w.safetensors")
        assert torch.equal(network.state_dict()[kept], source.state_dict()[kept])


REFUSED = [
    ({"architecture": "timm:convnext"}, "Did you mean"),
    ({"architecture": "timm:convnext_atto", "model_args": {"depth": "many"}}, "change model_args"),
]


@pytest.mark.parametrize(("changes", "keyword"), REFUSED)
def test_networks_that_timm_does_not_make(changes, keyword):
    with pytest.raises(RobustzooError, match=keyword):
        pixel_model(recipe(BASE, changes))


OF_RECIPES = [
    ({"architecture": "resnet18"}, "name"),
    ({"architecture": "timm:resnet18.a1_in1k"}, "without a tag"),
    ({"model_args": {"depths": [1]}}, "architecture=timm:NAME"),
    ({**ATTO, "model_args": {"in_chans": 1}}, "in_chans"),
    ({**ATTO, "model_args": {"checkpoint_path": "x.pth"}}, "checkpoint_path"),
    ({**ATTO, "model_args": [1]}, "JSON object"),
    ({**ATTO, "patch_stride": 4}, "patch_stride"),
]


@pytest.mark.parametrize(("changes", "keyword"), OF_RECIPES)
def test_recipes_that_are_refused(changes, keyword):
    with pytest.raises(RobustzooError, match=keyword):
        recipe(BASE, changes)
