"""Which model a command means: a name of the zoo, of timm, of the Hub, a folder, or a function of a file."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from robustzoo.cli.output import say
from robustzoo.errors import RobustzooError
from robustzoo.hub.references import is_folder, refuse_unpublished, registered_entry, shortened

if TYPE_CHECKING:
    from torch import nn

    from robustzoo.data import ImageDataset
    from robustzoo.registry import Recipe

_FACTORY = re.compile(r"(?P<file>.+\.py):(?P<name>[^:/\\]+)")
_TIMM, _HUB = "timm:", "hf-hub:"


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
        from robustzoo.data.samples import FolderOptions, open_samples

        given, data_root = options.pop("data"), options.pop("data_root")
        given = self.dataset if given is None else given
        reading = {key: options.pop(key) for key in ("resize", "crop", "interpolation", "classes")}
        if given is not None:
            return open_samples(given, self.module, data_root, FolderOptions(**reading), split)
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


def open_model(text: str) -> OpenedModel:
    """The model that an argument means.

    Args:
        text: a registry name, "local-dir:FOLDER" or a folder; "FILE.py:FUNCTION", which is run, without
            arguments; "timm:NAME"; "hf-hub:OWNER/REPO[@REVISION]".

    Raises:
        RobustzooError: the file or its function does not give a module, or no function is named.
        what `robustzoo.load` raises: see there.
    """
    if _is_file(text):
        raise RobustzooError(f"{text} names no function; expected FILE.py:FUNCTION")
    match = _FACTORY.fullmatch(text)
    if match is not None:
        return OpenedModel(
            _made_by(Path(match["file"]), match["name"]), f"{Path(match['file']).name}:{match['name']}"
        )
    if text.startswith(_TIMM):
        from robustzoo.hub.timm_weights import load_timm

        return OpenedModel(load_timm(text.removeprefix(_TIMM)))
    if text.startswith(_HUB):
        from robustzoo.hub.load import load_repository

        loaded = load_repository(text)
        return OpenedModel(loaded, None, None if loaded.recipe is None else loaded.recipe.dataset)
    from robustzoo.hub.load import load

    loaded = load(text)
    folder = Path(text.removeprefix("local-dir:"))
    return OpenedModel(loaded, None, loaded.recipe.dataset, folder if folder.is_dir() else None)


def _is_file(text: str) -> bool:
    """Whether it names a file of Python, and no function of it."""
    return text.endswith((".py", ".py:")) and not Path(text).is_dir()


def _made_by(file: Path, name: str) -> nn.Module:
    """What the function of a file returns."""
    from torch import nn

    made = getattr(_imported(file), name, None)
    where = f"{file}:{name}"
    if made is None:
        raise RobustzooError(f"{file} has no function {name!r}; it has {_functions(file)}")
    if not isinstance(made, nn.Module):
        if not callable(made):
            raise RobustzooError(
                f"{where} is a {type(made).__name__}; expected a function without arguments that returns the "
                "model"
            )
        try:
            made = made()
        except (Exception, SystemExit) as error:  # its sys.exit is not ours, which says what happened
            raise RobustzooError(f"{where} failed: {_told(error, file)}") from error
    if not isinstance(made, nn.Module):
        raise RobustzooError(
            f"{where} returned a {type(made).__name__}; expected a torch.nn.Module from pixels (B, C, H, W) "
            "in [0, 1] to logits (B, K), in eval mode"
        )
    return made


def _imported(file: Path) -> Any:
    """The file as a module, under the name that worker processes can import it by."""
    if not file.is_file():
        raise RobustzooError(f"there is no file {file}; expected FILE.py:FUNCTION")
    say(f"running {file}: what it does, it does with your rights", err=True)
    folder, stem = str(file.resolve().parent), file.stem
    if not stem.isidentifier():
        raise RobustzooError(f"{file} cannot be imported: {stem!r} is no name of Python; rename the file")
    # Behind everything else: the file's neighbours must not replace installed packages.
    if folder not in sys.path:
        sys.path.append(folder)
    known = sys.modules.get(stem)
    found = getattr(known, "__file__", None) if known else getattr(_spec(stem), "origin", None)
    if found is None or Path(found).resolve() != file.resolve():
        raise RobustzooError(
            f"{file} cannot be imported: {stem!r} already means {found or 'a module of Python'}; rename the "
            "file"
        )
    try:
        return importlib.import_module(stem)
    except (Exception, SystemExit) as error:
        raise RobustzooError(f"{file} cannot be imported: {_told(error, file)}") from error


def _spec(stem: str) -> Any:
    importlib.invalidate_caches()
    return importlib.util.find_spec(stem)


def _functions(file: Path) -> str:
    module = sys.modules[file.stem]
    names = [
        name
        for name, value in vars(module).items()
        if callable(value) and getattr(value, "__module__", None) == module.__name__
    ]
    return ", ".join(names) or "none"


def _told(error: BaseException, file: Path) -> str:
    """The error and the line of the user's own file that it came through."""
    line, at = None, error.__traceback__
    while at is not None:
        if Path(at.tb_frame.f_code.co_filename).resolve() == file.resolve():
            line = at.tb_lineno
        at = at.tb_next
    if isinstance(error, SyntaxError):
        line = error.lineno
    where = "" if line is None else f" (line {line})"
    return f"{type(error).__name__}: {error}{where}"
