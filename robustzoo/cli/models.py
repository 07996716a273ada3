"""Which model a command means: a name of the zoo, of timm, of the Hub, a folder, or a function of a file."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import robustzoo
from robustzoo.cli.output import say
from robustzoo.errors import RobustzooError
from robustzoo.hub.references import is_folder, refuse_unpublished, registered_entry, shortened

if TYPE_CHECKING:
    from torch import nn

    from robustzoo.data import ImageDataset
    from robustzoo.registry import Recipe

_FACTORY = re.compile(r"(?P<file>.+\.py):(?P<name>[^:/\\]+)")
_TIMM, _HUB = "timm:", "hf-hub:"
_EXPECTED = "a torch.nn.Module from pixels (B, C, H, W) in [0, 1] to logits (B, K), in eval mode"


@dataclass(frozen=True)
class OpenedModel:
    """A module from pixels to logits; what to call it (None: its own name); its own dataset and folder, where
    it has them."""

    module: nn.Module
    name: str | None = None
    dataset: str | None = None
    folder: Path | None = None

    def images(self, options: dict[str, Any], split: str = "test") -> ImageDataset:
        """The images that the options of `robustzoo.cli.options.images` mean, which are taken out of them.

        split: of a dataset of the catalog.

        Raises: RobustzooError where none are named and it has none of its own; DataError, MissingData.
        """
        from robustzoo.data import samples  # torch, as all that is imported below

        given, data_root = options.pop("data"), options.pop("data_root")
        given = self.dataset if given is None else given
        reading = {key: options.pop(key) for key in ("resize", "crop", "interpolation", "classes")}
        if given is not None:
            return samples.open_samples(
                given, self.module, data_root, samples.FolderOptions(**reading), split
            )
        raise RobustzooError(
            "this model has no dataset of its own: name one, or a folder with one sub-folder of images per "
            "class, with --data (and the threat model with --threat-model, for example linf:8/255)"
        )


def refuse_unknown(text: str) -> None:
    """Raise what `robustzoo.load` raises for a name without weights, before torch is loaded for it: seconds.

    text: as of `open_model`.
    """
    if _FACTORY.fullmatch(text) is None and not text.startswith((_TIMM, _HUB)) and not _is_file(text):
        registered = registered_entry(text)
        if registered is not None:
            refuse_unpublished(registered)


def recipe_of(model: str) -> Recipe | None:
    """The recipe of a registry name with weights; None for a folder or a Hub reference, not looked into here.

    Raises:
        UnknownName, IncompatibleName, RobustzooError: as `robustzoo.load`.
        click.UsageError: no such folder.
    """
    registered = registered_entry(model)
    if registered is not None:
        refuse_unpublished(registered)
        return registered.recipe
    folder = Path(model.removeprefix("local-dir:"))
    if not model.startswith("hf-hub:") and not is_folder(folder):
        raise click.UsageError(
            f"{shortened(folder)} is not a folder; expected a model folder (model.safetensors and "
            "config.json), or a name that `robustzoo ls` lists"
        )
    return None


def open_model(text: str, trust: Path | None = None) -> OpenedModel:
    """The model that an argument means.

    Args:
        text: a registry name, "local-dir:FOLDER" or a folder; "FILE.py:FUNCTION", which is run, without
            arguments; "timm:NAME"; "hf-hub:OWNER/REPO[@REVISION]".
        trust: the file of Python that may be run for an imported model's folder; see `robustzoo.load`.

    Raises:
        RobustzooError: the file or its function does not give a module, or no function is named.
        what `robustzoo.load` raises: see there.
    """
    if _is_file(text):
        raise RobustzooError(f"{text} names no function; expected FILE.py:FUNCTION")
    match = _FACTORY.fullmatch(text)
    if trust is not None and (match is not None or text.startswith((_TIMM, _HUB))):
        raise RobustzooError(f"--trust {trust} goes with an imported model's folder; {text} is none")
    if match is not None:
        from robustzoo.models.imported_networks import module_by

        file = Path(match["file"])
        say_running(file)
        return OpenedModel(module_by(file, match["name"], _EXPECTED), f"{file.name}:{match['name']}")
    if text.startswith(_TIMM):
        from robustzoo.hub.timm_weights import load_timm

        return OpenedModel(load_timm(text.removeprefix(_TIMM)))
    if text.startswith(_HUB):
        from robustzoo.hub.load import load_repository

        loaded = load_repository(text)
        described = loaded.recipe or getattr(loaded, "imported", None)  # timm's own has neither
        return OpenedModel(loaded, None, None if described is None else described.dataset)
    if trust is not None:
        say_running(trust)
    loaded = robustzoo.load(text, trust=trust)
    folder = Path(text.removeprefix("local-dir:"))
    described = loaded.recipe or loaded.imported
    return OpenedModel(loaded, None, described.dataset, folder if folder.is_dir() else None)


def _is_file(text: str) -> bool:
    """Whether it names a file of Python, and no function of it."""
    return text.endswith((".py", ".py:")) and not Path(text).is_dir()


def say_running(file: Path) -> None:
    """Tell, before a file of Python is run, that it is."""
    if file.is_file():
        say(f"running {file}: what it does, it does with your rights", err=True)
