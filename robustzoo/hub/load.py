"""A model by name: load it, or verify its card. Name -> entry -> folder (bundled, checkout, Hub or local)."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from robustzoo import atomic_files
from robustzoo.errors import RobustzooError
from robustzoo.hub.fetch import PREFIX, download_command, fetch_folder, pin, promised_sha256
from robustzoo.hub.files import WEIGHTS, check_files
from robustzoo.hub.references import (
    is_folder,
    refuse_unpublished,
    registered_entry,
    shortened,
    split_reference,
)
from robustzoo.registry.digests import sha256_file, verify_sha256
from robustzoo.registry.entries import pin_problem, read_configuration

if TYPE_CHECKING:
    from robustzoo.models import ModelFolder, PixelModel
    from robustzoo.registry import Entry
    from robustzoo.verification.verify import VerificationReport


def load(
    name: str | Path,
    *,
    pretrained: bool = True,
    cache_dir: str | Path | None = None,
    local_files_only: bool = False,
    token: str | bool | None = None,
    trust: str | Path | None = None,
) -> PixelModel:
    """A model by name, ready to use: pixels (B, C, H, W) in [0, 1] -> logits (B, K), in eval mode on the CPU.

    Args:
        name: a registry name such as "vit_micro2.digits_linf.trades_trh", or PREFIX:NAME of a package that
            brings models; "local-dir:FOLDER" or the path of a model folder; "hf-hub:OWNER/REPO@COMMIT" with
            the 40 hex digits of a commit. A tag in its place, a branch or nothing is looked up once, and the
            commit that it means is printed: name that one to get the same model always.
        pretrained: False builds the same model with random weights, for any compatible name.
        cache_dir, local_files_only, token: as in huggingface_hub; used only for Hub folders.
        trust: the file of Python that may be run to build an imported network: the one that its folder names,
            after you have read it. Without it no code of a folder ever runs.

    Returns:
        PixelModel with `.name`, `.recipe` (what it was trained with), `.threat_model`, `.card` (text or None)
        and `.folder` (None without weights).

    Raises:
        UnknownName, IncompatibleName: no such model; the message suggests near names.
        RobustzooError: a recipe without weights (the message gives the training command), a folder that is
            not the published one or not usable, or a Hub folder that cannot be had (for want of a
            network: OfflineMiss).
        TypeError: pretrained is no bool.
    """
    if not isinstance(pretrained, bool):
        raise TypeError(f"pretrained {pretrained!r} is no bool; expected True or False")
    registered = registered_entry(name)
    folder = None
    if registered is None or pretrained:
        folder = _folder(name, registered, cache_dir, local_files_only, token)
        folder.trust = None if trust is None else Path(trust)
    from robustzoo import models  # after what the files alone show: it loads torch

    if folder is None:
        wanted = registered.recipe
    else:
        if pretrained:
            return models.read_folder(folder)
        wanted = models.read_recipe(folder)
    model = models.pixel_model(wanted).eval()
    model.name, model.recipe, model.threat_model = wanted.name, wanted, wanted.threat_model
    return model


def load_repository(reference: str) -> PixelModel:
    """The model of "hf-hub:OWNER/REPO", of a branch or tag "...@NAME", or of a commit "...@COMMIT".

    What is no commit is looked up first, and the commit is said and named in the result: a branch can change.
    A repository of robustzoo loads as with `load`; any other must have timm's layout, and comes with its own
    normalisation folded in.

    Raises:
        RobustzooError: as `load`, or the repository is not in timm's layout.
    """
    from robustzoo.models import read_folder
    from robustzoo.models.timm_models import timm_folder

    pinned = pin(reference)
    folder = resolve(pinned)
    return read_folder(folder) if _is_ours(folder.path) else timm_folder(folder.path, pinned)


def verify(
    name: str,
    *,
    mode: str = "replay",
    card: str | Path | None = None,
    trust: str | Path | None = None,
    **options: Any,
) -> VerificationReport:
    """Check the claims of a model's card against its weights.

    Args:
        name: registry name, `local-dir:FOLDER`, or the path of a model folder.
        mode: `replay` (seconds: clean pass and every witness), `spot` (a first tier on all images, then the
            whole protocol on a random sample) or `full` (the whole protocol again).
        card: another card than the folder's own README.md.
        trust: as of `load`.
        options: passed on to `robustzoo.verification.verify.verify` (tolerance, seed, workers, ...).

    Raises:
        UnknownName: no such name.
        RobustzooError: the name has no weights to verify, they are not those that the registry or the
            Evidence names, or the folder of a registered name is of another recipe or size than it pins.
        CardError: the card is missing or has no claims.
    """
    from robustzoo.verification.verify import verify as verify_folder

    registered = registered_entry(name)
    folder = _folder(name, registered)
    folder.trust = None if trust is None else Path(trust)
    sha256 = None if registered is None else registered.weights.sha256
    return verify_folder(
        folder, card=None if card is None else Path(card), mode=mode, sha256=sha256, **options
    )


def resolve(name: str | Path, **where: Any) -> ModelFolder:
    """The model folder that a name means, its weights compared with the pinned SHA-256 and size, and its
    recipe with that of the name.

    Args:
        name: see `load`. where: its cache_dir, local_files_only and token.

    Raises:
        UnknownName, IncompatibleName: see `load`.
        RobustzooError: as `load`; the path is no folder, or the pinned folder lacks its weights or is of
            another recipe.
    """
    return _folder(name, registered_entry(name), **where)


def download(name: str, to: str | Path | None = None) -> Path:
    """Fetch a model's folder without loading it, its weights compared with the pinned hash.

    Args:
        name: see `load`.
        to: a folder that does not exist, is empty, or holds this model: a copy is put there, whole or not at
            all. None: the folder is where the cache or the package has it.

    Raises:
        RobustzooError: as `load`, or `to` holds something else.
    """
    folder = _resolved(name, registered_entry(name))[0]
    if to is None:
        return folder
    to = Path(to).absolute()
    files = {path.relative_to(folder): path for path in sorted(folder.rglob("*")) if path.is_file()}
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        if all(
            (to / name).is_file() and sha256_file(to / name) == sha256_file(files[name]) for name in files
        ):
            return to
        raise RobustzooError(f"{to} holds something else already; choose another place, or move it away")
    if (reason := atomic_files.why_unwritable(to.parent)) is not None:
        raise RobustzooError(f"nothing was downloaded to {to}: {reason}; choose another place")
    with atomic_files.staging_folder(to) as staging:
        for inside, source in files.items():
            (staging / inside).parent.mkdir(exist_ok=True)
            shutil.copyfile(source, staging / inside)
        atomic_files.replace_folder(staging, to)
    return to


def resolve_folder(name: str | Path) -> Path:
    """The path of `resolve`, for who needs no more."""
    return resolve(name).path


def _folder(
    name: str | Path,
    registered: Entry | None,
    cache_dir: str | Path | None = None,
    local_files_only: bool = False,
    token: str | bool | None = None,
) -> ModelFolder:
    path, sha256 = _resolved(name, registered, cache_dir, local_files_only, token)
    from robustzoo.models import ModelFolder  # after what the files alone show: it loads torch

    return ModelFolder(path, sha256)


def _resolved(
    name: str | Path,
    registered: Entry | None,
    cache_dir: str | Path | None = None,
    local_files_only: bool = False,
    token: str | bool | None = None,
) -> tuple[Path, str | None]:
    """The path of a model folder and, where it was compared, the hash of its weights."""
    sha256 = None
    text = str(name)
    if registered is not None:
        refuse_unpublished(registered)
        path, sha256 = _pinned_folder(registered, cache_dir, local_files_only, token)
    elif text.startswith(PREFIX):
        pinned = pin(text, token=token, local_files_only=local_files_only)
        repo, commit = split_reference(pinned)
        path = fetch_folder(repo, commit, cache_dir=cache_dir, local_files_only=local_files_only, token=token)
        promised = promised_sha256(path / WEIGHTS)
        if promised is not None:
            again = _download_again(path, repo, commit, cache_dir)
            sha256 = verify_sha256(path / WEIGHTS, promised, next_step=again)
    else:
        path = Path(text.removeprefix("local-dir:"))
        if not is_folder(path):
            raise RobustzooError(
                f"{shortened(path)} is not a folder; expected a model folder (model.safetensors and "
                "config.json), or a name that `robustzoo ls` lists"
            )
    check_files(path)
    return path, sha256


def _pinned_folder(
    registered: Entry, cache_dir: str | Path | None, local_files_only: bool, token: str | bool | None
) -> tuple[Path, str]:
    weights = registered.weights
    if weights.source == "hub":
        path = fetch_folder(
            weights.repo, weights.commit, cache_dir=cache_dir, local_files_only=local_files_only, token=token
        )
        next_step = _download_again(path, weights.repo, weights.commit, cache_dir)
    else:
        path = weights.folder
        next_step = {
            "bundled": "this installation is damaged; reinstall the package robustzoo",
            "zoo": "the folder is part of the repository, not of the package; restore it in a git checkout",
            "package": f"the folder is part of {registered.brought_by}; reinstall that",
        }[weights.source]
    sha256 = verify_sha256(path / WEIGHTS, weights.sha256, expected_bytes=weights.bytes, next_step=next_step)
    if (problem := pin_problem(registered.recipe.name, weights, path)) is not None:
        raise RobustzooError(
            f"{problem}; reinstall {registered.brought_by or 'the package robustzoo'}, which pins it, and "
            "report this there if it stays"
        )
    return path, sha256


def _download_again(folder: Path, repo: str, commit: str, cache_dir: str | Path | None) -> str:
    file = (folder / WEIGHTS).resolve()  # the snapshot's file is a link to this one
    again = download_command(repo, commit, cache_dir, force=True)
    return f"delete the cached file {file} and download it again:\n  {again}"


def _is_ours(folder: Path) -> bool:
    """Whether config.json has our block; a damaged one is left to its reader."""
    try:
        return "robustzoo" in read_configuration(folder)
    except (OSError, RobustzooError):
        return False
