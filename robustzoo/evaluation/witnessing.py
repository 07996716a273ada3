"""Witnesses: for each broken image a point that fools the model, small to ship and cheap to re-check."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from robustzoo.attacks.geometry import in_ball
from robustzoo.cards.evidence import Evidence
from robustzoo.cards.witnesses import compact
from robustzoo.data import ImageDataset
from robustzoo.errors import RobustzooError
from robustzoo.evaluation.ledger import CLEAN, Finding, Success
from robustzoo.evaluation.micro_batch import bounded_micro_batch
from robustzoo.registry import ThreatModel

# Margins (of the wrong class, in logits) below this may change sign on another processor or batch shape.
BORDERLINE = 1e-4
# Slack of the ball in pixel units: float32 rounding of x + delta, far below one grey level (3.9e-3).
BALL_TOLERANCE = 1e-6


def margins(
    model: nn.Module, x: Tensor, labels: Sequence[int], micro_batch_size: int, device: torch.device
) -> Tensor:
    """By how much the best wrong class leads the label in logits at points `x: (N, C, H, W)`; > 0 fools. (N,)

    Batches always have `micro_batch_size` rows (the last one is padded with its first row), so that a
    sample's result does not depend on how many others there are. A NaN among the logits is no correct answer
    and counts as fooled.
    """
    result = []
    for start in range(0, len(x), micro_batch_size):
        batch = x[start : start + micro_batch_size].to(device)
        count = len(batch)
        batch = torch.cat([batch, batch[:1].expand(micro_batch_size - count, *batch.shape[1:])])
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
    model: Callable[[Tensor], Tensor],
    dataset: ImageDataset,
    found: Sequence[Finding],
    threat_model: ThreatModel,
    micro_batch_size: int,
    device: torch.device,
) -> list[Finding]:
    """Turn the points that attacks found into witnesses: quantised where that still fools, re-checked at
    another shape.

    A verdict is decided inside the attack, in float32; what is reported must not differ when its output is
    evaluated again. So every point is evaluated twice by fresh forwards, in batches of `micro_batch_size` and
    of another size, and the smaller margin is kept. A point that fools at one shape and not at the other
    stays (its verdict too: it did fool) and is recognisable as borderline by its margin.

    Args:
        found: of samples that broke, with the points of the attacks.
    """
    other_size = micro_batch_size // 2 if micro_batch_size > 1 else 2

    def smaller_margins(points: list[Tensor], labels: list[int]) -> list[float]:
        x = torch.stack(points)
        return torch.minimum(
            *(margins(model, x, labels, size, device) for size in (micro_batch_size, other_size))
        ).tolist()

    done = []
    for start in range(0, len(found), micro_batch_size):
        group = found[start : start + micro_batch_size]
        images, labels = zip(*(dataset[one.id] for one in group), strict=True)
        labels = [int(label) for label in labels]
        points = [one.success.point for one in group]
        forms = [[*quantised_forms(*pair, threat_model)] for pair in zip(points, images, strict=True)]
        chosen: dict[int, tuple[Tensor, float]] = {}
        for rank in range(2):
            trial = [i for i, form in enumerate(forms) if len(form) > rank and i not in chosen]
            if trial:
                tried = [forms[i][rank] for i in trial]
                ahead = smaller_margins(tried, [labels[i] for i in trial])
                found_at = zip(trial, tried, ahead, strict=True)
                chosen |= {i: (form, margin) for i, form, margin in found_at if margin >= BORDERLINE}
        rest = [i for i in range(len(group)) if i not in chosen]
        if rest:
            ahead = smaller_margins([points[i] for i in rest], [labels[i] for i in rest])
            chosen |= {i: (points[i], margin) for i, margin in zip(rest, ahead, strict=True)}
        for i, one in enumerate(group):
            point, margin = chosen[i]
            success = replace(one.success, point=compact(point.numpy()), margin=margin)
            done.append(replace(one, success=success))
    return done


def require_same_answers(
    evidence: Evidence, model: nn.Module, dataset: ImageDataset, device: torch.device
) -> None:
    """Raise RobustzooError unless the model answers the images of an Evidence, and its witnesses, as it did.

    One forward an image and one a witness. Answers within BORDERLINE of a tie may be either.

    Args:
        evidence: with its witness set, of this dataset. model: frozen, on the device.
    """
    verdicts, witnesses = evidence.verdicts, evidence.witness_set
    size = bounded_micro_batch(evidence.doc["micro_batch_size"], len(verdicts))
    for start in range(0, len(verdicts), size):
        part = verdicts[start : start + size]
        images = torch.stack([dataset[v.id][0] for v in part])
        found = margins(model, images, [v.label for v in part], size, device)
        for verdict, margin in zip(part, found.tolist(), strict=True):
            if abs(margin) > BORDERLINE and (margin < 0) != verdict.clean_correct:
                raise _other(evidence, f"image {verdict.id}")
    labels = {verdict.id: verdict.label for verdict in verdicts}
    for start in range(0, 0 if witnesses is None else len(witnesses), size):
        rows = range(start, min(start + size, len(witnesses)))
        ids = [int(witnesses.ids[row]) for row in rows]
        points = torch.from_numpy(witnesses.points(rows))
        found = margins(model, points, [labels[i] for i in ids], size, device)
        for i, margin in zip(ids, found.tolist(), strict=True):
            if margin < -BORDERLINE:
                raise _other(evidence, f"the stored witness of image {i}")


def _other(evidence: Evidence, what: str) -> RobustzooError:
    return RobustzooError(
        f"the Evidence for {evidence.threat_model} that is there was measured on a model that answers {what} "
        "otherwise than this one, whose weights are the same: was its code changed? Expected the model as it "
        "was: measure again with restart=True (on the command line --restart), or in another folder"
    )


def successes_of(smaller: Evidence | None, threat_model: ThreatModel) -> dict[int, Success]:
    """Sample id -> what broke it at the smaller epsilon of `smaller`, and so breaks it at this one.

    Raises:
        RobustzooError: another norm, an epsilon that is not smaller, or an Evidence without its witnesses.
    """
    if smaller is None:
        return {}
    there = smaller.threat_model
    if there.norm != threat_model.norm or there.epsilon >= threat_model.epsilon:
        raise RobustzooError(
            f"the smaller threat model is {there}; expected {threat_model.norm} below {threat_model}"
        )
    witnesses = smaller.witness_set
    rows = {} if witnesses is None else {int(i): row for row, i in enumerate(witnesses.ids)}
    attacks = [member["attack"] for member in smaller.doc["protocol"]["members"]]
    found = {}
    for verdict in smaller.verdicts:
        by = verdict.broken_by
        if by is None:
            continue
        if witnesses is None or verdict.id not in rows:
            raise RobustzooError(
                f"the Evidence for {there} has no witness for sample {verdict.id}, which it calls broken; "
                "expected its witness file beside it: measure it again"
            )
        row = rows[verdict.id]
        found[verdict.id] = Success(
            CLEAN + 1 + attacks.index(by.attack),
            by.target,
            by.restart,
            by.iteration,
            witnesses.stored(row),
            float(witnesses.margins[row]),
            by.epsilon or there.epsilon_text,
        )
    return found
