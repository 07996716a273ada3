"""The model folder: model.safetensors and config.json, written atomically and read strictly.

timm loads the same folder by itself, `timm.create_model("local-dir:FOLDER", pretrained=True)`, as a network
of normalised images; `read_folder` gives a PixelModel of pixels.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from copy import deepcopy
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from timm import __version__ as timm_version
from torch import nn

from robustzoo import atomic_files
from robustzoo.cards.imported import Imported
from robustzoo.errors import RobustzooError
from robustzoo.keyed_noise import uniform
from robustzoo.models.architectures import build_for, computed_buffers, unstored
from robustzoo.models.config import (
    REFERENCE_SEED,
    WEIGHTS,
    FolderConfig,
    compare_imported,
    read_config,
    render_config,
    render_imported,
)
from robustzoo.models.imported_networks import ImportedModel, rebuild
from robustzoo.models.pixel_model import PixelModel, around
from robustzoo.models.weights import read_weights, verify_sha256, weights_for_export, write_weights
from robustzoo.registry import Recipe
from robustzoo.registry.digests import sha256_file

CONFIG, CARD, EVIDENCE = "config.json", "README.md", "evidence"
_ATOL = 1e-3  # logits; kernels of other machines differ by about 1e-5, a wrong normalisation by far more
_RTOL = 1e-4
_CODE = re.compile(r"network_[0-9a-f]{12}\.py")  # builds an imported network
_LARGEST_CARD = 2**20  # bytes


def write_folder(folder: str | Path, model: PixelModel, recipe: Recipe, *, overwrite: bool = False) -> str:
    """Write `model` as a new model folder, all of it or nothing, and return the SHA-256 of model.safetensors.

    Args:
        folder: a path that does not exist or is an empty folder; with `overwrite`, also a model folder, whose
            card and evidence are removed because they speak about other weights. A folder that already holds
            exactly this model is left as it is.
        model: weights on any device, float32.
        recipe: what the weights were trained with; its architecture and normalisation must be the model's.

    Raises:
        RobustzooError: the folder is in use, or the weights do not belong to the recipe, or are not finite.
    """
    folder = Path(folder).resolve()
    skeleton = build_for(recipe, device="meta")
    for label in ("mean", "std"):
        found = getattr(model, label).cpu().expand(recipe.channels, 1, 1).flatten()
        wanted = torch.tensor(getattr(recipe, label), device="cpu").expand(recipe.channels)
        if not torch.equal(found, wanted):
            raise RobustzooError(
                f"the model's {label} is {found.tolist()}, but its recipe's is {wanted.tolist()}"
            )
    weights = weights_for_export(model.network.state_dict(), skeleton.state_dict())
    computed = computed_buffers(recipe, skeleton)
    for name, tensor in unstored(model.network).items():
        if name not in computed or not torch.equal(tensor.cpu(), computed[name]):
            raise RobustzooError(
                f"{name} of {recipe.architecture} is not what its recipe computes, and no file holds it: "
                "register it as a persistent buffer, or leave it as the network is built"
            )

    logits = _reference_logits(_assemble(skeleton, recipe, weights), REFERENCE_SEED)
    text = render_config(recipe, skeleton, logits.tolist())
    return _write(folder, weights, {CONFIG: text}, overwrite)


def write_imported(
    folder: str | Path,
    model: ImportedModel,
    imported: Imported,
    code: bytes | None,
    *,
    overwrite: bool = False,
) -> str:
    """As `write_folder`, of weights that others trained. code: the file of Python that builds the network."""
    weights = weights_for_export(model.network.state_dict(), model.network.state_dict())
    logits = _reference_logits(model, REFERENCE_SEED)
    files: dict[str, str | bytes] = {CONFIG: render_imported(imported, model.network, logits.tolist())}
    if code is not None and imported.code_file is not None:
        files[imported.code_file] = code
    return _write(Path(folder).resolve(), weights, files, overwrite)


def _write(
    folder: Path, weights: dict[str, torch.Tensor], files: Mapping[str, str | bytes], overwrite: bool
) -> str:
    """All of it or nothing; returns the SHA-256 of model.safetensors."""
    with atomic_files.staging_folder(folder) as staging:
        write_weights(staging / WEIGHTS, weights)
        for name, content in files.items():
            write = atomic_files.write_text if isinstance(content, str) else atomic_files.write_bytes
            write(staging / name, content)
        digest = sha256_file(staging / WEIGHTS)
        if not _holds_the_same(folder, staging):
            _require_replaceable(folder, overwrite)
            atomic_files.replace_folder(staging, folder)
    return digest


class ModelFolder(os.PathLike):
    """A model folder on this machine. Its weights are hashed once and its config.json is read once, when they
    are first asked for.

    Attributes:
        path: as it was given.
        trust: the file of Python that may be run to build an imported network; None: none.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        sha256: str | None = None,
        trust: str | os.PathLike[str] | None = None,
    ) -> None:
        """sha256: of its model.safetensors, where it is known already."""
        self.path = Path(path)
        self.trust = None if trust is None else Path(trust)
        self._sha256 = sha256

    @classmethod
    def of(cls, folder: str | os.PathLike[str]) -> ModelFolder:
        """The folder of a path, or the one given, with what is known of it."""
        return folder if isinstance(folder, ModelFolder) else cls(folder)

    def __fspath__(self) -> str:
        return str(self.path)

    @property
    def sha256(self) -> str:
        """SHA-256 of model.safetensors, 64 lower-case hex digits."""
        if self._sha256 is None:
            self._sha256 = sha256_file(self.path / WEIGHTS)
        return self._sha256

    @cached_property
    def config(self) -> FolderConfig:
        """What config.json says. Raises: RobustzooError, see `read_config`."""
        return read_config(self.path / CONFIG)

    def require_sha256(self, expected: str, **said: Any) -> None:
        """Refuse weights of another hash; said: see `verify_sha256`."""
        self._sha256 = verify_sha256(self.path / WEIGHTS, expected, found=self._sha256, **said)


def read_folder(
    folder: str | os.PathLike[str], sha256: str | None = None, check_logits: bool = True
) -> PixelModel:
    """Load a model folder without trusting it: a float32 PixelModel on the CPU, in eval mode.

    Nothing is executed, nothing outside the folder's own files is named by it, and the weights must have
    exactly the keys, shapes and dtypes of the architecture.

    Args:
        folder: a path or a ModelFolder; holds model.safetensors and config.json; README.md becomes `.card`.
        sha256: expected SHA-256 of model.safetensors, compared before anything is parsed.
        check_logits: recompute the two stored reference logits (two forward passes).

    Raises:
        RobustzooError: model.safetensors is another file, or what else is wrong with the folder, in words.
    """
    opened = ModelFolder.of(folder)
    folder = opened.path
    atomic_files.recover_folder(folder)
    if not folder.is_dir():
        raise RobustzooError(f"{folder} is not a folder; expected a model folder ({WEIGHTS} and {CONFIG})")
    if sha256 is not None:
        opened.require_sha256(
            sha256,
            next_step=f"{folder} was changed; take the original again, or evaluate what it holds now under a "
            "name of its own",
        )
    config = opened.config
    recipe = config.recipe
    if isinstance(recipe, Imported):
        return _read_imported(opened, recipe, check_logits)
    if opened.trust is not None:
        raise RobustzooError(f"{folder} needs no code to be run: leave --trust {opened.trust} away")
    # A model loaded inside someone's inference_mode() could never be attacked.
    with torch.inference_mode(False):
        weights = read_weights(folder / WEIGHTS, config.skeleton.state_dict())
        model = _assemble(deepcopy(config.skeleton), recipe, weights)
    if check_logits:
        _require_reference(model, opened)
    model.name, model.recipe, model.threat_model, model.folder = (
        recipe.name,
        recipe,
        recipe.threat_model,
        folder,
    )
    model.card, model.license = _read_card(folder / CARD), config.license
    return model


def _read_imported(opened: ModelFolder, imported: Imported, check_logits: bool) -> ImportedModel:
    """`read_folder` of weights that others trained. Its code runs where `trust` names that code."""
    folder = opened.path
    network = rebuild(imported, opened.trust, folder)
    compare_imported(folder / CONFIG, imported, network)
    with torch.inference_mode(False):
        network.load_state_dict(read_weights(folder / WEIGHTS, network.state_dict()), strict=True)
        model = ImportedModel(network, imported).eval()
    if check_logits:
        _require_reference(model, opened)
    model.folder, model.trust, model.card = folder, opened.trust, _read_card(folder / CARD)
    return model


def _require_reference(model: PixelModel, opened: ModelFolder) -> None:
    """Raise RobustzooError unless the model gives the logits that config.json states."""
    folder, config = opened.path, opened.config
    recipe = config.recipe
    found = _reference_logits(model, config.reference_seed)
    wanted = torch.tensor(config.reference_logits, device="cpu")
    if not torch.allclose(found, wanted, rtol=_RTOL, atol=_ATOL):
        raise RobustzooError(
            f"{folder}: the loaded model's logits differ from the stored reference by "
            f"{(found - wanted).abs().max().item():.3g} (allowed: {_ATOL}). Either the weights or the "
            f"normalisation (mean {recipe.mean}, std {recipe.std}) are not those of the export, or torch "
            f"{torch.__version__} or timm {timm_version} computes another function from them; "
            "the published numbers would not hold. Take the original folder again, or change the "
            "version; weights that you changed on purpose get a folder of their own with "
            "robustzoo.models.write_folder(FOLDER, model, model.recipe)"
        )


def read_recipe(folder: str | os.PathLike[str]) -> Recipe:
    """The recipe of a model folder, without reading its weights. Raises: RobustzooError as `read_folder`."""
    found = ModelFolder.of(folder).config.recipe
    if isinstance(found, Imported):
        raise RobustzooError(f"{found.name} was imported, and no recipe of its training is known")
    return found


def _assemble(network: nn.Module, recipe: Recipe, weights: dict[str, torch.Tensor]) -> PixelModel:
    """`network`, built on the meta device, with these tensors as its parameters and buffers."""
    network.load_state_dict(weights, strict=True, assign=True)
    for name, tensor in computed_buffers(recipe, network).items():
        owner, _, own = name.rpartition(".")
        setattr(network.get_submodule(owner), own, tensor)
    with torch.device("cpu"):
        return around(network, recipe).eval()


def _reference_logits(model: PixelModel, seed: int) -> torch.Tensor:
    """Logits (2, K) of two images of keyed uniform noise, in float32 whatever the caller's autocast says."""
    pixels = uniform(seed, torch.tensor([0, 1], device="cpu"), "reference", model.input_shape)
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        return model(pixels)


def _holds_the_same(folder: Path, staging: Path) -> bool:
    return all(
        (folder / name).is_file() and sha256_file(folder / name) == sha256_file(staging / name)
        for name in (WEIGHTS, CONFIG)
    )


def _require_replaceable(folder: Path, overwrite: bool) -> None:
    if not folder.exists():
        return
    if not folder.is_dir():
        raise RobustzooError(f"{folder} exists and is not a folder; choose another path")
    content = sorted(entry.name for entry in folder.iterdir())
    if not content:
        return
    known = (WEIGHTS, CONFIG, CARD, EVIDENCE)
    foreign = [name for name in content if name not in known and not _CODE.fullmatch(name)]
    if foreign or WEIGHTS not in content or CONFIG not in content:
        raise RobustzooError(
            f"{folder} is neither empty nor a model folder (it holds {', '.join(content[:4])}); "
            "choose another path, or move that folder away first"
        )
    if not overwrite:
        raise RobustzooError(
            f"{folder} already holds another model; its card and evidence would not fit the new weights. "
            "Choose another path, or pass overwrite=True to replace all of it"
        )


def _read_card(path: Path) -> str | None:
    if not path.is_file():
        return None
    if path.stat().st_size > _LARGEST_CARD:
        raise RobustzooError(f"{path} is larger than {_LARGEST_CARD} bytes, so it is no model card")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise RobustzooError(f"{path} is not UTF-8 text: {error}") from error
