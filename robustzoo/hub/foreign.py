"""Repositories of the Hub that robustzoo did not write: a commit of them, and the timm model in it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from huggingface_hub import constants

from robustzoo.hub.fetch import HubError, RequestFailed, ask, parse_reference
from robustzoo.hub.load import load, resolve_folder
from robustzoo.models import PixelModel
from robustzoo.models.foreign import timm_folder

_PREFIX = "hf-hub:"
_ANY_COMMIT = "0" * 40


def load_repository(reference: str) -> PixelModel:
    """The model of "hf-hub:OWNER/REPO", of a branch or tag "...@NAME", or of a commit "...@COMMIT".

    What is no commit is looked up first, and the commit is said and named in the result: a branch can change.
    A repository of robustzoo loads as with `load`; any other must have timm's layout, and comes with its own
    normalisation folded in.

    Raises:
        HubError, OfflineMiss, HashMismatch: as `load`.
        ForeignModelError: the repository is not in timm's layout.
    """
    pinned = pin(reference)
    folder = resolve_folder(pinned)
    return load(pinned) if _is_ours(folder) else timm_folder(folder, pinned)


def pin(reference: str) -> str:
    """The reference with the 40 hex digits of the commit that it means now."""
    repo, _, revision = reference.removeprefix(_PREFIX).partition("@")
    try:
        parse_reference(f"{repo}@{revision}")
        return reference
    except HubError:
        parse_reference(f"{repo}@{_ANY_COMMIT}")  # refuses what is no repository
    try:
        if constants.HF_HUB_OFFLINE:
            raise RequestFailed([], "HF_HUB_OFFLINE is set")
        commit = ask("commit", repo, revision or None)
    except RequestFailed as error:
        if {"RepositoryNotFoundError", "RevisionNotFoundError", "GatedRepoError"} & {*error.kinds}:
            raise HubError(
                f"{constants.ENDPOINT} does not give {reference}: {_first_line(error)}. Check the spelling, "
                "or give access with `hf auth login`"
            ) from error
        raise HubError(
            f"{reference} names no commit, and {constants.ENDPOINT} cannot be asked which it means "
            f"({_first_line(error)}); name one that is cached: {_PREFIX}{repo}@COMMIT"
        ) from error
    print(f"{reference} is commit {commit} today; the result is named by it", file=sys.stderr)
    return f"{_PREFIX}{repo}@{commit}"


def _is_ours(folder: Path) -> bool:
    """Whether config.json has our block; a damaged one is left to its reader."""
    try:
        config = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and "robustzoo" in config


def _first_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
