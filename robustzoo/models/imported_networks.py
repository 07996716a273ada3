"""Networks whose weights others trained: built by timm or by a file of Python, normalisation folded in."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import timm
import torch
from torch import Tensor, nn

from robustzoo.cards.imported import PYTHON, Imported
from robustzoo.errors import RobustzooError
from robustzoo.models.timm_models import ForeignModel
from robustzoo.python_files import made_by
from robustzoo.registry.extensions import TIMM
from robustzoo.untrusted_files import read_bytes

_LARGEST_CODE = 10**6  # bytes
_EXPECTED = "a torch.nn.Module from normalised images (B, C, H, W) to logits (B, K)"


@dataclass(frozen=True)
class Code:
    """A file of Python that builds a network, and what it held when it was read: that is what runs."""

    path: Path
    source: bytes

    @classmethod
    def read(cls, path: Path) -> Code:
        """Raises: RobustzooError for no file, or one too large to be code."""
        try:
            return cls(path, read_bytes(path, _LARGEST_CODE))
        except OSError as error:
            raise RobustzooError(
                f"{path} cannot be read: {error.strerror or error}; expected FILE.py"
            ) from error

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.source).hexdigest()

    @property
    def stored_name(self) -> str:
        """Of its copy in a folder: no two of other content have one name, nor do installed packages."""
        return f"network_{self.sha256[:12]}.py"


class ImportedModel(ForeignModel):
    """A network of others behind the normalisation that its folder states: pixels (B, C, H, W) in [0, 1] to
    logits (B, K). Its head need not be linear; `features` and `head` work where timm's interfaces are there.

    Attributes:
        imported: what the folder says of it. trust: the file of Python that built it; None with timm.
    """

    trust: Path | None = None

    def __init__(self, network: nn.Module, imported: Imported) -> None:
        super().__init__(network, imported.mean, imported.std)
        self.imported = imported
        self.input_shape = imported.input_shape
        self.name, self.threat_model, self.license = imported.name, imported.threat_model, imported.license

        self.preprocessing = timm_part(imported, network).get("pretrained_cfg")

    @property
    def num_classes(self) -> int:
        return self.imported.num_classes


def build(
    architecture: str, num_classes: int | None, model_args: dict[str, Any], code: Code | None = None
) -> nn.Module:
    """The network with weights of no meaning, in eval mode. torch's global generator stays as it is.

    Args:
        architecture: "timm:NAME" or "python:FUNCTION".
        num_classes: None: what timm makes by itself. Only of timm.
        code: to run; None with timm.

    Raises:
        RobustzooError: timm has no such network or not with these arguments, or the function fails.
    """
    with torch.random.fork_rng(devices=[]):
        if code is not None:
            return module_by(code.path, architecture.removeprefix(PYTHON), _EXPECTED, code.source).eval()
        more = {} if num_classes is None else {"num_classes": num_classes}
        try:
            network = timm.create_model(
                architecture.removeprefix(TIMM), pretrained=False, **model_args, **more
            )
        except Exception as error:  # of timm and of the network's own code
            raise RobustzooError(
                f"timm cannot make {architecture.removeprefix(TIMM)} with {model_args | more}: "
                f"{error}. Expected "
                "timm:NAME of timm.list_models() and --model-args as JSON"
            ) from error
    return network.eval()


def rebuild(imported: Imported, trust: Path | None, folder: Path) -> nn.Module:
    """The network of a folder.

    Raises:
        RobustzooError: it needs code of the folder and `trust` does not name that code; as `build`.
    """
    if imported.code_file is None:
        return build(imported.architecture, imported.num_classes, imported.model_args)
    theirs = folder / imported.code_file
    if trust is None:
        raise RobustzooError(
            f"{folder} is built by code in {theirs} (sha256 {imported.code_sha256}), which has "
            f"not been run: read "
            f'it, and where you trust it give --trust {theirs}, in Python trust="{theirs}"'
        )
    code = Code.read(trust)
    if code.sha256 != imported.code_sha256:
        raise RobustzooError(
            f"{trust} has sha256 {code.sha256}, and the code that {folder} was imported with "
            f"{imported.code_sha256}: "
            f"nothing was run; give that file, {theirs}"
        )
    return build(imported.architecture, imported.num_classes, imported.model_args, code)


def timm_part(imported: Imported, network: nn.Module) -> dict[str, Any]:
    """What timm reads of config.json; empty for a network that timm does not know."""
    if imported.code_file is not None:
        return {}
    stated = getattr(network, "pretrained_cfg", None) or {}
    pool = getattr(network, "global_pool", None)
    return {
        "architecture": imported.architecture.removeprefix(TIMM),
        "num_classes": imported.num_classes,
        "num_features": network.num_features,
        **({"global_pool": pool} if isinstance(pool, str) else {}),
        "model_args": imported.model_args | {"num_classes": imported.num_classes},
        "pretrained_cfg": {
            "custom_load": False,
            "input_size": list(imported.input_shape),
            "fixed_input_size": bool(stated.get("fixed_input_size")),
            "interpolation": stated.get("interpolation") or "bicubic",
            "crop_pct": 1.0 if imported.image_size < 64 else stated.get("crop_pct") or 0.875,
            "crop_mode": "center",
            "mean": list(imported.mean),
            "std": list(imported.std),
            "num_classes": imported.num_classes,
            "pool_size": None,
            "first_conv": stated.get("first_conv"),
            "classifier": stated.get("classifier"),
            "license": imported.license,
        },
    }


def clean_correct(model: nn.Module, dataset: Any, indices: list[int], batch: int = 250) -> int:
    """How many of these images the model classifies correctly."""
    correct = 0
    with torch.no_grad():
        for start in range(0, len(indices), batch):
            pairs = [dataset[i] for i in indices[start : start + batch]]
            x = torch.stack([image for image, _ in pairs])
            correct += int(
                (logits_of(model, x).argmax(1) == torch.tensor([label for _, label in pairs])).sum()
            )
    return correct


def logits_of(model: nn.Module, x: Tensor) -> Tensor:
    try:
        logits = model(x)
    except RobustzooError:
        raise
    except Exception as error:  # of a stranger's forward: shapes, types, anything
        raise RobustzooError(
            f"the network does not take images of {tuple(x.shape[1:])} ({type(error).__name__}: "
            f"{error}); check "
            "the architecture, --model-args and --image-size"
        ) from error
    if not isinstance(logits, Tensor) or logits.dim() != 2:
        found = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise RobustzooError(
            f"the network answers {found} for {len(x)} images; expected logits ({len(x)}, classes)"
        )
    return logits


def module_by(file: Path, name: str, expected: str, source: bytes | None = None) -> nn.Module:
    """The torch module that the function `name` of a file returns. Raises: RobustzooError.

    expected: what it should be, in words. source: as of `made_by`.
    """
    made = made_by(file, name, source=source, ready=nn.Module)
    if not isinstance(made, nn.Module):
        raise RobustzooError(f"{file}:{name} returned a {type(made).__name__}; expected {expected}")
    return made
