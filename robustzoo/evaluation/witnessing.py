"""Witnesses: for each broken image a point that fools the model, small to ship and cheap to re-check."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from robustzoo.attacks.geometry import in_ball
from robustzoo.registry import ThreatModel

# Leads (of the wrong class, in logits) below this may change sign on another processor or batch shape.
BORDERLINE = 1e-4
# Slack of the ball in pixel units: float32 rounding of x + delta, far below one grey level (3.9e-3).
BALL_TOLERANCE = 1e-6


@dataclass(frozen=True)
class Candidate:
    """A point (C, H, W), float32, that fooled the model during an attack on sample `id` of class `label`."""

    id: int
    label: int
    point: Tensor


@dataclass(frozen=True)
class Witness:
    """A point that fools the model.

    Attributes:
        lead: by how much the best wrong class leads in logits, the smaller of two batch shapes; positive
            fools. Below BORDERLINE the witness may not fool on another machine.
    """

    id: int
    point: Tensor
    lead: float

    @property
    def borderline(self) -> bool:
        return self.lead < BORDERLINE


def leads(
    model: nn.Module, x: Tensor, labels: Sequence[int], batch_size: int, device: torch.device
) -> Tensor:
    """By how much the best wrong class leads the label in logits at points `x: (N, C, H, W)`; > 0 fools. (N,)

    Batches always have `batch_size` rows (the last one is padded with its first row), so that a sample's
    result does not depend on how many others there are. A NaN among the logits is no correct answer and
    counts as fooled.
    """
    result = []
    for start in range(0, len(x), batch_size):
        batch = x[start : start + batch_size].to(device)
        count = len(batch)
        batch = torch.cat([batch, batch[:1].expand(batch_size - count, *batch.shape[1:])])
        with torch.no_grad():
            logits = model(batch)[:count].cpu()
        own = torch.tensor(list(labels[start : start + count])).unsqueeze(1)
        other = logits.scatter(1, own, -torch.inf).amax(1)
        result.append(
            (other - logits.gather(1, own).squeeze(1)).nan_to_num(nan=torch.finfo(torch.float32).max)
        )
    return torch.cat(result) if result else torch.empty(0)


def quantised_forms(point: Tensor, clean: Tensor, threat_model: ThreatModel) -> Iterator[Tensor]:
    """Points on the grid of 1/255 near `point: (C, H, W)`, inside ball and box, the nearest first.

    First every pixel is rounded to the nearest level (Linf: to the nearest one inside the ball); then
    towards the clean pixel, which stays within an L2 or L1 ball. Nothing is given where neither stays inside
    (an epsilon below half a level, for example).
    """
    levels, origin = point.double() * 255, clean.double() * 255
    toward = torch.where(levels >= origin, levels.floor(), levels.ceil())
    for rounded in (levels.round(), toward):
        if threat_model.norm == "linf":
            radius, slack = threat_model.eps * 255, 0.5 * BALL_TOLERANCE * 255
            rounded = rounded.maximum((origin - radius - slack).ceil()).minimum(
                (origin + radius + slack).floor()
            )
        # Divided in float32, as the reader of the stored bytes will.
        form = rounded.clamp(0, 255).to(torch.float32) / 255
        if inside(form[None], clean[None], threat_model)[0]:
            yield form


def inside(points: Tensor, clean: Tensor, threat_model: ThreatModel) -> Tensor:
    """Whether points (N, C, H, W) are in [0, 1] and in the ball around `clean`, as bool (N,)."""
    return in_ball(points, clean, threat_model.norm, threat_model.eps, BALL_TOLERANCE)


def make_witnesses(
    model: nn.Module,
    dataset: Any,
    candidates: Sequence[Candidate],
    threat_model: ThreatModel,
    batch_size: int,
    device: torch.device,
    progress: Callable[[int], None] | None = None,
) -> list[Witness]:
    """Turn the points that attacks found into witnesses: quantised where that still fools, re-checked at
    another shape.

    A verdict is decided inside the attack, in float32; what is reported must not differ when its output is
    evaluated again. So every point is evaluated twice by fresh forwards, in batches of `batch_size` and of
    another size, and the smaller lead is kept. A point that fools at one shape and not at the other stays
    (its verdict
    too: it did fool) and is recognisable as borderline by its lead.
    """
    other_size = batch_size // 2 if batch_size > 1 else 2

    def smaller_leads(points: Tensor, labels: list[int]) -> list[float]:
        return torch.minimum(
            *(leads(model, points, labels, size, device) for size in (batch_size, other_size))
        ).tolist()

    witnesses = []
    for start in range(0, len(candidates), batch_size):
        group = list(candidates[start : start + batch_size])
        forms = [[*quantised_forms(c.point, dataset[c.id][0], threat_model)] for c in group]
        chosen: dict[int, Witness] = {}
        for rank in range(2):
            trial = [i for i, form in enumerate(forms) if len(form) > rank and group[i].id not in chosen]
            if not trial:
                continue
            found = smaller_leads(
                torch.stack([forms[i][rank] for i in trial]), [group[i].label for i in trial]
            )
            for i, lead in zip(trial, found, strict=True):
                if lead >= BORDERLINE:
                    chosen[group[i].id] = Witness(group[i].id, forms[i][rank], lead)
        rest = [c for c in group if c.id not in chosen]
        if rest:
            found = smaller_leads(torch.stack([c.point for c in rest]), [c.label for c in rest])
            for c, lead in zip(rest, found, strict=True):
                chosen[c.id] = Witness(c.id, c.point, lead)
        witnesses += [chosen[c.id] for c in group]
        if progress is not None:
            progress(len(witnesses))
    return witnesses
