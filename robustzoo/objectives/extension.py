"""What a package brings to a training: losses, defences, optimizers. The whole interface.

A package names a function for each in its pyproject.toml, and a recipe names it as PACKAGE:NAME:

    [project.entry-points."robustzoo.losses"]
    margin = "my_package.methods:margin"            # --set loss=my-package:margin

    [project.entry-points."robustzoo.defences"]
    calm = "my_package.methods:calm"                # --set defences=trh,my-package:calm

    [project.entry-points."robustzoo.optimizers"]
    signed = "my_package.methods:signed"            # --set optimizer=my-package:signed

A function is called once, `margin(recipe, **arguments)` -> Loss, `calm(recipe, **arguments)` -> Defence,
`signed(recipe, groups, weight_decay, **arguments)` -> torch.optim.Optimizer, with the arguments that the
recipe has for it in `package_args`. The code of a package runs in trainings whose recipe names it, and
nowhere else. See docs/extending.md, and examples/robustzoo_example for a package.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from torch import Tensor

from robustzoo.errors import RobustzooError
from robustzoo.registry.extensions import is_outside, load_point

if TYPE_CHECKING:
    from robustzoo.registry import Recipe

Terms = Mapping[str, Tensor]


@dataclass(frozen=True)
class Seen:
    """What one training pass made of B images, with gradients to the weights.

    Attributes:
        features, logits: of the adversarial images, (B, d) and (B, K), float32.
        clean_features, clean_logits: of the clean ones; None unless something asked for them (`needs_clean`).
        y: int64 (B,), or soft labels, float (B, K), with label smoothing or cutmix.
        step: 0-based optimizer step.
    """

    features: Tensor
    logits: Tensor
    clean_features: Tensor | None
    clean_logits: Tensor | None
    y: Tensor
    step: int


@dataclass(frozen=True)
class Loss:
    """A robust loss.

    Attributes:
        terms: named batch means, scalars, to be logged; "robust" is what is minimised.
        needs_clean: the clean images go through the network too (a training pass of two images for one).
    """

    terms: Callable[[Seen], Terms]
    needs_clean: bool = False


@dataclass(frozen=True)
class Defence:
    """What is added to a loss, or done to the weights; each part may be left out.

    Attributes:
        terms: named scalars, each of which is added to what is minimised, weighted already.
        moves: (weights, their gradients) -> for each weight what is added to it while the training gradient
            is taken, as in SAM: the gradients are those of the whole batch's objective, which costs a second
            training pass. The weights come back before the optimizer's step. Not with ZeRO 3, nor with AWP.
        needs_clean: as of Loss.
    """

    terms: Callable[[Seen], Terms] | None = None
    moves: Callable[[Sequence[Tensor], Sequence[Tensor]], Iterable[Tensor]] | None = None
    needs_clean: bool = False


Kind = TypeVar("Kind")


def brought(recipe: Recipe, field: str, key: str, kind: type[Kind], *more: Any) -> Kind:
    """What PACKAGE:NAME makes for a recipe: the package's code runs.

    Raises:
        RobustzooError: no such package or name, its function fails, or it makes something else.
    """
    make, arguments = load_point(field, key), (recipe.package_args or {}).get(key, {})
    try:
        made = make(recipe, *more, **arguments)
    except Exception as error:  # code of others: anything
        raise RobustzooError(
            f"{field} {key} failed ({type(error).__name__}: {error}); see its package_args, or mend the "
            "package"
        ) from error
    if not isinstance(made, kind):
        raise RobustzooError(
            f"{field} {key} made a {type(made).__name__}; expected {kind.__module__}.{kind.__name__}"
        )
    return made


def brought_loss(recipe: Recipe) -> Loss | None:
    """Of a recipe that names a package's; None otherwise. Raises: RobustzooError as `brought`."""
    return brought(recipe, "loss", recipe.loss, Loss) if is_outside(recipe.loss) else None


def brought_defences(recipe: Recipe) -> list[Defence]:
    """Of packages, in the recipe's order. Raises: RobustzooError as `brought`."""
    return [brought(recipe, "defences", key, Defence) for key in recipe.defences if is_outside(key)]
