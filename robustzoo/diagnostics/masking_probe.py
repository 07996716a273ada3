"""Gradient masking, tried out: five short experiments on a model, and what they say in words.

After Athalye, Carlini and Wagner (2018) and Carlini et al. (2019): a defence that only hides its gradient
shows by gradients of zero, by a loss that gradient steps do not raise, and by searches without gradients that
do better.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from robustzoo.attacks.pgd import pgd, uniform_start
from robustzoo.cards.signs import square_sign
from robustzoo.evaluation.prepare import Prepared, ask, identify, prepare
from robustzoo.evaluation.progress import Reporter
from robustzoo.evaluation.witnessing import margins
from robustzoo.evaluation.workers import attacked

WHITE_BOX = "apgd-ce+t"
_FEW, _MANY = 10, 100  # steps of the two searches whose losses are compared
_STEP = 2.5  # total length of a search's steps, in epsilons
# Zero gradients on more than this share of the images are no accident; as in an evaluation's warning.
_SHARE = 0.01
# A mean loss that differs by less than this share is the same.
_SAME = 0.01


@dataclass
class MaskingProbe:
    """What the experiments found. Counts are images; losses are mean cross-entropies of the correct ones.

    Attributes:
        clean: correct images, counted at two batch shapes. zero_gradients: images whose gradient is zero at
            every pixel. loss: at a random point of the ball, and after 10 and after 100 steps of PGD from
            there. white_box, square: images left robust by gradient attacks, and by Square after them.
        signs: what points to masking, in words; empty without any.
    """

    model: str
    threat_model: str
    n: int
    clean: tuple[int, int] = (0, 0)
    zero_gradients: int = 0
    loss: tuple[float, float, float] = (0.0, 0.0, 0.0)
    white_box: int = 0
    square: int = 0
    signs: list[str] = field(default_factory=list)

    def text(self) -> str:
        """For people, several lines, no final newline."""
        start, few, many = self.loss
        lines = [
            f"{self.model} under {self.threat_model}, {self.n} images",
            f"clean correct, counted twice              {self.clean[0]}, {self.clean[1]}",
            f"gradient zero everywhere                  {self.zero_gradients} images",
            f"mean loss at random, after {_FEW}, {_MANY} steps     {start:.4g}, {few:.4g}, {many:.4g}",
            f"robust after {WHITE_BOX}, then after Square    {self.white_box}, {self.square}",
            "",
        ]
        if not self.clean[0]:
            lines.append("no image is classified correctly, so there was nothing to try")
        elif self.signs:
            lines += [f"sign: {sign}" for sign in self.signs]
        else:
            lines.append(
                "no sign of gradient masking in these experiments. That is no proof of its absence: an "
                "attack made for this model may still do better"
            )
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """The same for machines."""
        return {"schema": "robustzoo.masking/1", **vars(self)}


def probe_masking(
    model: nn.Module,
    data: Any,
    threat_model: Any = None,
    *,
    n: int | None = 100,
    seed: int = 0,
    workers: int = 1,
    name: str | None = None,
    progress: bool | Callable[[dict], None] = True,
    **options: Any,
) -> MaskingProbe:
    """Look for signs of gradient masking.

    Args:
        model, data, threat_model, n, seed, workers, progress: as `evaluate`.
        name: what the result calls the model.
        options: device, micro_batch_size, data_root, as `evaluate`.

    Raises:
        RobustzooError, ...: as `evaluate`.
    """
    asked = ask(model, threat_model, WHITE_BOX, n=n, at_most=True, seed=seed, **options)
    identity = identify(model, name)
    with Reporter(progress) as reporter, prepare(model, data, asked, reporter, identity.sha256) as ready:
        ready = ready.sized(asked.micro_batch_size)
        correct = ready.correct()
        found = MaskingProbe(identity.name, str(asked.threat_model), len(ready.subset))
        found.clean = (len(correct), _count_again(ready))
        if correct:
            _gradients(ready, correct, found)
            left, _ = attacked(ready, correct, workers, reporter)
            still = attacked(ready.attacking("square"), left, workers, reporter)[0] if left else []
            found.white_box, found.square = len(left), len(still)
        found.signs = list(_signs(found))
    return found


def _count_again(ready: Prepared) -> int:
    """Correct images at another batch shape and in the reverse order: the same, for a model that looks at
    each image alone and draws nothing."""
    size = max(ready.work.micro_batch_size // 2, 1)
    ids, count = ready.subset.indices[::-1], 0
    for start in range(0, len(ids), size):
        pairs = [ready.dataset[i] for i in ids[start : start + size]]
        found = margins(
            ready.model,
            torch.stack([x for x, _ in pairs]),
            [int(label) for _, label in pairs],
            size,
            ready.asked.device,
        )
        count += int((found < 0).sum())
    return count


def _gradients(ready: Prepared, correct: list[int], found: MaskingProbe) -> None:
    """Zero gradients at the clean image, and the mean loss before and after searching."""
    threat_model = ready.asked.threat_model
    totals = torch.zeros(3, dtype=torch.float64)
    for ids, x, y in ready.batches(correct):

        def loss(logits: Tensor, y: Tensor = y) -> Tensor:
            return functional.cross_entropy(logits, y, reduction="none")

        with torch.enable_grad():
            pixels = x.clone().requires_grad_(True)
            (gradient,) = torch.autograd.grad(loss(ready.model(pixels)).sum(), pixels)
        found.zero_gradients += int((gradient == 0).flatten(1).all(1).sum())
        keys = torch.tensor(ids, device=x.device)
        start = uniform_start(x, threat_model, seed=ready.asked.seed, ids=keys, purpose="masking probe")
        for row, steps in enumerate((0, _FEW, _MANY)):
            point = pgd(
                ready.model,
                x,
                loss,
                threat_model=threat_model,
                steps=steps,
                step_size=_STEP * threat_model.eps / max(steps, 1),
                x_start=start,
            )
            with torch.no_grad():
                totals[row] += loss(ready.model(point)).double().sum().cpu()
    found.loss = tuple((totals / len(correct)).tolist())


def _signs(found: MaskingProbe) -> Iterator[str]:
    if found.clean[0] != found.clean[1]:
        yield (
            f"the clean accuracy changes between runs ({found.clean[0]} and {found.clean[1]} of {found.n}): "
            "the model is random, or an image's answer depends on its batch"
        )
    attacked = found.clean[0]
    if found.zero_gradients > _SHARE * attacked:
        yield (
            f"the gradient of the loss is zero at every pixel of {found.zero_gradients} of {attacked} "
            "images: look for rounding, detach, or saturated outputs (logits so far apart that the softmax "
            "is 0 and 1 in float32)"
        )
    start, few, many = found.loss
    if attacked and few <= start * (1 + _SAME):
        yield (
            f"{_FEW} gradient steps do not raise the loss above that of random points ({start:.4g} to "
            f"{few:.4g}): the gradient does not point to where the loss rises"
        )
    elif many < few * (1 - _SAME):
        yield (
            f"more steps find less: the loss is {few:.4g} after {_FEW} steps and {many:.4g} after {_MANY}. "
            "The loss is too rough for small steps, or its gradient is noise"
        )
    square = square_sign(found.white_box - found.square, found.n)
    if square is not None:
        yield square
