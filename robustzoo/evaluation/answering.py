"""Whether a model still answers as a finished Evidence says: its weights have a digest, its code has none."""

from __future__ import annotations

import torch
from torch import nn

from robustzoo.cards.evidence import Evidence
from robustzoo.data import ImageDataset
from robustzoo.evaluation.guards import GuardError
from robustzoo.evaluation.micro_batch import bounded
from robustzoo.evaluation.witnessing import BORDERLINE, leads


def require_same_answers(
    evidence: Evidence, model: nn.Module, dataset: ImageDataset, device: torch.device
) -> None:
    """Raise GuardError unless the model answers the images of an Evidence, and its witnesses, as it did.

    One forward an image and one a witness. Answers within BORDERLINE of a tie may be either.

    Args:
        evidence: with its witness set, of this dataset. model: frozen, on the device.
    """
    verdicts, witnesses = evidence.verdicts, evidence.witness_set
    size = bounded(evidence.doc["micro_batch_size"], len(verdicts))
    for start in range(0, len(verdicts), size):
        part = verdicts[start : start + size]
        ahead = leads(
            model, torch.stack([dataset[v.id][0] for v in part]), [v.label for v in part], size, device
        )
        for verdict, lead in zip(part, ahead.tolist(), strict=True):
            if abs(lead) > BORDERLINE and (lead < 0) != verdict.clean_correct:
                raise _other(evidence, f"image {verdict.id}")
    labels = {verdict.id: verdict.label for verdict in verdicts}
    for start in range(0, 0 if witnesses is None else len(witnesses), size):
        rows = range(start, min(start + size, len(witnesses)))
        ids = [int(witnesses.ids[row]) for row in rows]
        points = torch.from_numpy(witnesses.points(rows))
        ahead = leads(model, points, [labels[i] for i in ids], size, device)
        for i, lead in zip(ids, ahead.tolist(), strict=True):
            if lead < -BORDERLINE:
                raise _other(evidence, f"the stored witness of image {i}")


def _other(evidence: Evidence, what: str) -> GuardError:
    return GuardError(
        f"the Evidence for {evidence.threat_model} that is there was measured on a model that answers {what} "
        "otherwise than this one, whose weights are the same: was its code changed? Expected the model as it "
        "was: measure again with restart=True (on the command line --restart), or in another folder"
    )
