"""A model folder from a stranger: each fault is refused in words, before anything is allocated or run."""

from __future__ import annotations

import json
import pickle

import pytest
import torch
from safetensors.torch import load_file, save_file

from robustzoo.errors import RobustzooError
from robustzoo.models import read_folder, verify_sha256
from robustzoo.registry.digests import sha256_file


def rewrite(folder, change):
    """Change the tensors of a folder and save them again."""
    weights = load_file(folder / "model.safetensors")
    weights = change(weights) or weights
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def reconfigure(folder, change):
    config = json.loads((folder / "config.json").read_text())
    change(config)
    (folder / "config.json").write_text(json.dumps(config))


# --- the bytes ---


def test_a_flipped_byte_is_refused_with_both_hashes_and_the_size(folder):
    path = folder / "model.safetensors"
    good = sha256_file(path)
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)
    with pytest.raises(RobustzooError) as caught:
        read_folder(folder, sha256=good)
    for word in (
        good,
        sha256_file(path),
        f"{len(data)} bytes",
        "Next:",
        "was changed; take the original again, or",
    ):
        assert word in str(caught.value)
    assert path.read_bytes() == bytes(data)  # never deleted


def test_expected_size_is_named_where_it_is_known(folder):
    with pytest.raises(RobustzooError, match=r"expected sha256 0{64} \(12 bytes\)"):
        verify_sha256(folder / "model.safetensors", "0" * 64, expected_bytes=12)
    with pytest.raises(RobustzooError, match=r"nothing.safetensors does not exist; do this"):
        verify_sha256(folder / "nothing.safetensors", "0" * 64, next_step="do this")


def test_a_pointer_of_git_lfs_is_named_as_one(folder):
    """What a clone has where `git lfs` is not installed."""
    path = folder / "model.safetensors"
    digest = sha256_file(path)
    path.write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{digest}\nsize 23456\n")
    for sha256 in (None, digest):
        with pytest.raises(
            RobustzooError, match=r"pointer of Git LFS, not the weights: run .*`git lfs pull`"
        ):
            read_folder(folder, sha256=sha256)


def test_float8_is_named(folder):
    rewrite(folder, lambda weights: {k: v.to(torch.float8_e4m3fn) for k, v in weights.items()})
    with pytest.raises(RobustzooError, match=r"has dtype F8_E4M3, expected torch.float32"):
        read_folder(folder)


@pytest.mark.parametrize("keep", [0, 5, 8, 100, -1, -1000])
def test_a_truncated_file_is_refused(folder, keep):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(RobustzooError, match=r"truncated.*take the original again"):
        read_folder(folder)


def test_a_file_with_a_tail_is_refused(folder):
    with (folder / "model.safetensors").open("ab") as stream:
        stream.write(b"more")
    with pytest.raises(RobustzooError, match="too long"):
        read_folder(folder)


@pytest.mark.parametrize(
    "data",
    [
        b"<!DOCTYPE html><html>Quota exceeded</html>",
        pickle.dumps({"state_dict": 1}),
        (2**62).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"[]",
        (7).to_bytes(8, "little") + b'{"a":1}',
        (2000).to_bytes(8, "little") + b"[" * 2000,
        (22).to_bytes(8, "little") + b'{"a": {"dtype": "F32"}',
    ],
    ids=["html", "pickle", "huge header", "list", "no entry", "nested", "no json"],
)
def test_other_files_are_refused_and_never_unpickled(folder, data):
    (folder / "model.safetensors").write_bytes(data)
    with pytest.raises(RobustzooError, match="take the original again"):
        read_folder(folder)


def test_overlapping_tensors_are_refused(folder):
    path = folder / "model.safetensors"
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    header["norm.bias"]["data_offsets"] = header["norm.weight"]["data_offsets"]
    text = json.dumps(header).encode()
    body = data[8 + length :]
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)
    with pytest.raises(RobustzooError):
        read_folder(folder)


# --- the tensors ---


def drop(weights):
    del weights["blocks.0.norm1.weight"]


def add(weights):
    weights["blocks.9.norm1.weight"] = torch.zeros(64)


def prefix(weights):
    return {f"model.{name}": tensor for name, tensor in weights.items()}


def crop(weights):
    weights["head.weight"] = weights["head.weight"][:9].clone()


def transpose(weights):
    weights["head.weight"] = weights["head.weight"].t().contiguous()


def halve(weights):
    weights["head.bias"] = weights["head.bias"].half()


def count(weights):
    weights["head.bias"] = weights["head.bias"].long()


def poison(weights):
    weights["head.bias"][3] = float("nan")


def shift(weights):
    weights["head.bias"] += 0.01


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (drop, "missing tensors: blocks.0.norm1.weight"),
        (add, "tensors the architecture does not have: blocks.9.norm1.weight"),
        (prefix, "missing tensors: .* and .* more"),
        (crop, r"head.weight has shape \(9, 64\), expected \(10, 64\)"),
        (transpose, r"head.weight has shape \(64, 10\), expected \(10, 64\)"),
        (halve, "head.bias has dtype torch.float16, expected torch.float32"),
        (count, "head.bias has dtype torch.int64, expected torch.float32"),
        (poison, "1 of 10 values of head.bias are NaN"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(folder, change, words):
    rewrite(folder, change)
    with pytest.raises(RobustzooError, match=words):
        read_folder(folder, check_logits=False)


def test_changed_weights_that_fit_fail_the_reference_logits(folder):
    rewrite(folder, shift)
    with pytest.raises(RobustzooError, match=r"differ from the stored reference by 0.01.*normalisation"):
        read_folder(folder)
    read_folder(folder, check_logits=False)


# --- the configuration ---


def put(path, value):
    """A change of one value, `path` with dots; the last part is the key."""

    def change(config):
        *parents, key = path.split(".")
        for parent in parents:
            config = config[parent]
        config[key] = value

    return change


def remove(path):
    def change(config):
        *parents, key = path.split(".")
        for parent in parents:
            config = config[parent]
        del config[key]

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (remove("robustzoo"), 'no "robustzoo" block'),
        (put("robustzoo.schema", 2), "schema 2"),
        (put("robustzoo.recipe", None), "recipe is invalid"),
        (put("robustzoo.recipe.architecture", "vit_evil"), "vit_evil"),
        (put("robustzoo.recipe.architecture", "../../etc"), "recipe is invalid"),
        (put("robustzoo.recipe.image_size", "8"), "recipe is not as a recipe is written"),
        (put("robustzoo.recipe.num_classes", 10**9), "recipe"),
        (put("robustzoo.recipe.mean", [0.5]), "recipe"),
        (put("robustzoo.recipe.attack_steps", 1), "recipe"),
        (put("robustzoo.name", "vit_l16.imagenet_linf.at_trh"), "robustzoo.name is"),
        (put("robustzoo.recipe_digest", "0" * 64), "robustzoo.recipe_digest is"),
        (put("architecture", "vit_large_patch16_224"), "architecture is 'vit_large_patch16_224'"),
        (put("architecture", "hf-hub:evil/model"), "architecture is 'hf-hub:evil/model'"),
        (put("num_classes", True), "num_classes is True"),
        (put("num_classes", "10"), "num_classes is '10'"),
        (put("model_args.depth", 40), "model_args.depth is 40"),
        (put("model_args.attn_layer", "os.system"), "unknown key model_args.attn_layer"),
        (put("model_args", None), "model_args is None"),
        (remove("model_args.patch_size"), "model_args.patch_size is missing"),
        (put("pretrained_cfg.mean", [0.485]), r"pretrained_cfg.mean is \[0.485\]"),
        (put("pretrained_cfg.std", [float("nan")]), "pretrained_cfg.std"),
        (put("pretrained_cfg.url", "http://evil.example/x.pth"), "unknown key pretrained_cfg.url"),
        (put("pretrained_cfg.file", "../../secret"), "unknown key pretrained_cfg.file"),
        (put("pretrained_cfg.custom_load", True), "custom_load is True"),
        (remove("robustzoo.reference"), "reference.seed"),
        (put("robustzoo.reference.seed", -1), "reference.seed is -1"),
        (put("robustzoo.reference.logits", [[0.0] * 10]), "2 x 10 finite numbers"),
        (put("robustzoo.reference.logits", [[float("inf")] * 10] * 2), "2 x 10 finite numbers"),
        (put("robustzoo.reference.logits", [["0"] * 10] * 2), "2 x 10 finite numbers"),
    ],
)
def test_configurations_that_contradict_themselves_are_refused(folder, change, words):
    reconfigure(folder, change)
    with pytest.raises(RobustzooError, match=words):
        read_folder(folder)


def test_free_text_may_change(folder):
    reconfigure(folder, put("pretrained_cfg.license", "mit"))
    reconfigure(folder, put("pretrained_cfg.description", "ours"))
    read_folder(folder)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[1]", "holds a list"),
        ("{}", 'no "robustzoo" block'),
        (" " * (2**20 + 1), "no model configuration: it has 1,048,577 bytes"),
    ],
    ids=["empty", "broken", "nested", "list", "object", "huge"],
)
def test_files_that_are_no_configuration_are_refused(folder, text, words):
    (folder / "config.json").write_text(text)
    with pytest.raises(RobustzooError, match=words):
        read_folder(folder)


@pytest.mark.parametrize("kind", ["missing", "folder"])
@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_missing_files_are_named(folder, name, kind):
    (folder / name).unlink()
    if kind == "folder":
        (folder / name).mkdir()
    with pytest.raises(RobustzooError, match=f"{name} does not exist"):
        read_folder(folder)


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(RobustzooError, match="is not a folder"):
        read_folder(tmp_path / "nowhere")


def test_a_card_that_is_no_text_is_refused(folder):
    (folder / "README.md").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RobustzooError, match="not UTF-8"):
        read_folder(folder)
