"""What a model argument names, as far as text, registry and disk tell: nothing heavy is imported."""

from __future__ import annotations

import re
from pathlib import Path

from robustzoo import atomic_files
from robustzoo.errors import RobustzooError
from robustzoo.registry import Entry, UnknownName, entry
from robustzoo.registry.describe import training_command

PREFIX = "hf-hub:"
_REPO = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_REVISION = re.compile(r"[A-Za-z0-9][\w./-]{0,199}", re.ASCII)
_LONGEST_NAME = 200  # characters; registry names have about 40
_WEIGHTS = (".pt", ".pth", ".ckpt", ".bin", ".pkl", ".tar", ".safetensors", ".npz", ".onnx", ".h5")


def registered_entry(name: str | Path) -> Entry | None:
    """The entry of a registry name; None for what is a folder or a Hub reference.

    A registry name wins over a folder of that name in the working directory: what a name means must not
    depend on where one stands.
    """
    if isinstance(name, Path) or str(name).startswith(("local-dir:", PREFIX)):
        return None
    if str(name).lower().endswith(_WEIGHTS) and not is_folder(Path(str(name))):
        raise UnknownName(
            f"{shortened(name)} is a file of weights, which does not say of what network: name the model "
            "folder that it is in, make one with `robustzoo import FILE`, or FILE.py:FUNCTION "
            "with a function that builds the network and loads it"
        )
    if len(str(name)) > _LONGEST_NAME and not is_folder(Path(str(name))):
        raise UnknownName(
            f"{shortened(name)!r} ({len(str(name))} characters) is neither a model name nor a folder; "
            "`robustzoo ls --recipes` lists the names"
        )
    try:
        return entry(name)
    except UnknownName:
        if name and ("/" in str(name) or is_folder(Path(str(name)))):  # Path("") is the working directory
            return None
        raise


def is_folder(path: Path) -> bool:
    """Path.is_dir, False too for what no file system takes as a path (too long, or with a null byte). A
    folder whose replacement was cut short is put back."""
    try:
        atomic_files.recover_folder(path)
        return path.is_dir()
    except (OSError, ValueError):
        return False


def shortened(name: str | Path) -> str:
    """For messages: a very long name's beginning."""
    text = str(name)
    return text if len(text) <= _LONGEST_NAME else f"{text[:60]}..."


def refuse_unpublished(registered: Entry) -> None:
    """Raise RobustzooError for an entry without weights, with the command that trains them."""
    if registered.weights is None:
        raise RobustzooError(
            f"no weights of {registered.name} are published. Train them:\n"
            f"  {training_command(registered.recipe, registered.name)}\n"
            f"or build it with random weights: robustzoo.load({registered.name!r}, pretrained=False)"
        )


def split_reference(reference: str) -> tuple[str, str]:
    """`hf-hub:OWNER/REPO` or `hf-hub:OWNER/REPO@REVISION` -> (repo, revision or "").

    Raises:
        RobustzooError: no such form.
    """
    repo, at, revision = reference.removeprefix(PREFIX).partition("@")
    if not _REPO.fullmatch(repo) or ".." in repo or "--" in repo or any(len(p) > 96 for p in repo.split("/")):
        raise RobustzooError(
            f"{shortened(repo)!r} is no Hub repository; expected {PREFIX}OWNER/REPO, with @ and a commit, "
            "tag or branch behind it"
        )
    if at and not _REVISION.fullmatch(revision):
        raise RobustzooError(
            f"{shortened(revision)!r} is no commit, tag or branch; expected {PREFIX}{repo}@COMMIT with the "
            "40 hex digits of a commit, or a tag in its place"
        )
    return repo, revision


def is_commit(revision: str) -> bool:
    """Whether it is the 40 hex digits of a commit, not a branch or a tag."""
    return _COMMIT.fullmatch(revision) is not None
