"""load(name): name -> entry -> folder (bundled, checkout, Hub or local) -> PixelModel in eval mode."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from robustzoo.hub.fetch import (
    HubError,
    OfflineMiss,
    download_command,
    fetch_folder,
    parse_reference,
    promised_sha256,
)
from robustzoo.hub.names import (
    NotPublished,
    is_folder,
    refuse_unpublished,
    registered_entry,
    shortened,
)
from robustzoo.registry import recipe
from robustzoo.registry.entries import pin_problem

if TYPE_CHECKING:
    from robustzoo.models import PixelModel
    from robustzoo.registry import Entry

__all__ = ["HubError", "NotPublished", "OfflineMiss", "load", "resolve_folder"]

_WEIGHTS = "model.safetensors"


def load(
    name: str | Path,
    *,
    pretrained: bool = True,
    cache_dir: str | Path | None = None,
    local_files_only: bool = False,
    token: str | bool | None = None,
) -> PixelModel:
    """A model by name, ready to use: pixels (B, C, H, W) in [0, 1] -> logits (B, K), in eval mode on the CPU.

    Args:
        name: a registry name such as "vit_micro2.digits_linf.trades_trh", or PREFIX:NAME of a package that
            brings models; "local-dir:FOLDER" or the path of a model folder; "hf-hub:OWNER/REPO@COMMIT" with
            the 40 hex digits of a commit.
        pretrained: False builds the same model with random weights, for any compatible name.
        cache_dir, local_files_only, token: as in huggingface_hub; used only for Hub folders.

    Returns:
        PixelModel with `.name`, `.recipe` (what it was trained with), `.threat_model`, `.card` (text or None)
        and `.folder` (None without weights).

    Raises:
        UnknownName, IncompatibleName: no such model; the message suggests near names.
        NotPublished: a recipe without weights; the message gives the training command.
        HashMismatch, FolderError: the folder is not the published one, or not usable.
        OfflineMiss, HubError: the Hub folder cannot be had.
        TypeError: pretrained is no bool.
    """
    from robustzoo.models import pixel_model, read_folder, read_recipe

    if not isinstance(pretrained, bool):
        raise TypeError(f"pretrained {pretrained!r} is no bool; expected True or False")
    registered = registered_entry(name)
    if registered is not None and not pretrained:
        wanted = recipe(str(name))
    else:
        folder = resolve_folder(name, cache_dir=cache_dir, local_files_only=local_files_only, token=token)
        if pretrained:
            return read_folder(folder)
        wanted = read_recipe(folder)
    model = pixel_model(wanted).eval()
    model.name, model.recipe, model.threat_model = wanted.name, wanted, wanted.threat_model
    return model


def resolve_folder(
    name: str | Path,
    *,
    cache_dir: str | Path | None = None,
    local_files_only: bool = False,
    token: str | bool | None = None,
) -> Path:
    """The model folder that a name means (see `load`), its weights compared with the pinned SHA-256 and size,
    and its recipe with that of the name.

    Raises:
        UnknownName, IncompatibleName, NotPublished, OfflineMiss, HubError, HashMismatch: see `load`.
        FolderError: the path is no folder, or the pinned folder lacks its weights or is of another recipe.
    """
    from robustzoo.models import FolderError, verify_sha256

    registered = registered_entry(name)
    if registered is not None:
        refuse_unpublished(registered)
        return _pinned_folder(registered, cache_dir, local_files_only, token)
    text = str(name)
    if text.startswith("hf-hub:"):
        repo, commit = parse_reference(text.removeprefix("hf-hub:"))
        folder = fetch_folder(
            repo, commit, cache_dir=cache_dir, local_files_only=local_files_only, token=token
        )
        promised = promised_sha256(folder / _WEIGHTS)
        if promised is not None:
            again = _download_again(folder, repo, commit, cache_dir)
            verify_sha256(folder / _WEIGHTS, promised, next_step=again)
        return folder
    folder = Path(text.removeprefix("local-dir:"))
    if not is_folder(folder):
        raise FolderError(
            f"{shortened(folder)} is not a folder; expected a model folder (model.safetensors and "
            "config.json), or a name that `robustzoo ls` lists"
        )
    return folder


def _pinned_folder(
    registered: Entry, cache_dir: str | Path | None, local_files_only: bool, token: str | bool | None
) -> Path:
    from robustzoo.models import FolderError, verify_sha256

    weights = registered.weights
    if weights.source == "hub":
        folder = fetch_folder(
            weights.repo, weights.commit, cache_dir=cache_dir, local_files_only=local_files_only, token=token
        )
        next_step = _download_again(folder, weights.repo, weights.commit, cache_dir)
    else:
        folder = weights.folder
        next_step = {
            "bundled": "this installation is damaged; reinstall the package robustzoo",
            "zoo": "the folder is part of the repository, not of the package; restore it in a git checkout",
            "package": f"the folder is part of {registered.brought_by}; reinstall that",
        }[weights.source]
    verify_sha256(folder / _WEIGHTS, weights.sha256, expected_bytes=weights.bytes, next_step=next_step)
    if (problem := pin_problem(registered.recipe.name, weights, folder)) is not None:
        raise FolderError(
            f"{problem}; reinstall {registered.brought_by or 'the package robustzoo'}, which pins it, and "
            "report this there if it stays"
        )
    return folder


def _download_again(folder: Path, repo: str, commit: str, cache_dir: str | Path | None) -> str:
    file = (folder / _WEIGHTS).resolve()  # the snapshot's file is a link to this one
    again = download_command(repo, commit, cache_dir, force=True)
    return f"delete the cached file {file} and download it again:\n  {again}"
