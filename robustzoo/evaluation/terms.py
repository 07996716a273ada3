"""What an evaluation is: its terms, and what differs between two."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import robustzoo
from robustzoo.cards.evidence import Evidence
from robustzoo.data import ImageDataset, Subset
from robustzoo.evaluation.engine import Work
from robustzoo.evaluation.guards import GuardError
from robustzoo.evaluation.ledger import Broken, Carried, Ledger
from robustzoo.evaluation.micro_batch import bounded
from robustzoo.evaluation.shards import Shard
from robustzoo.evaluation.witnessing import BORDERLINE, leads
from robustzoo.registry import ThreatModel


def terms_of(
    model: dict[str, Any],
    work: Work,
    subset: Subset,
    weights: str,
    shard: Shard | None,
    smaller: Evidence | None,
) -> dict[str, Any]:
    """Which evaluation this is, as Evidence states it: known before the attack.

    Args:
        model: {"name", "sha256"}. weights: digest of the weights in memory, for a shard.
        smaller: the Evidence that is carried over from a smaller epsilon.
    """
    dataset = work.dataset
    terms: dict[str, Any] = {
        "model": model,
        "threat_model": {"norm": work.threat_model.norm, "epsilon": work.threat_model.epsilon_text},
        "protocol": work.protocol.to_json(),
        "dataset": {
            "id": dataset.key,
            "split": dataset.split,
            "subset": subset.id,
            "num_classes": work.num_classes,
            "image_shape": list(dataset.image_shape),
            "indices": subset.indices,
            "digest": subset.digest,
            **({} if dataset.transform is None else {"transform": dataset.transform}),
        },
        "seed": work.seed,
        "micro_batch_size": work.micro_batch_size,
    }
    if work.precision != "float32" or work.compiled:
        terms["search"] = {"precision": work.precision, "compiled": work.compiled}
    if smaller is not None:
        before = smaller.doc.get("smaller_epsilons", [])
        terms["smaller_epsilons"] = [*before, smaller.doc["threat_model"]["epsilon"]]
    if shard is not None:
        terms["shard"] = {"index": shard.index, "count": shard.count, "weights": weights}
    return terms


def journal_key(terms: dict[str, Any], weights: str, fingerprint: dict[str, Any]) -> dict[str, Any]:
    """What must be equal for an evaluation to go on from a journal: all that its result may depend on."""
    optional = dict.fromkeys(("search", "smaller_epsilons", "shard"))
    return {
        **optional,
        **terms,
        "weights": weights,
        "fingerprint": fingerprint,
        "robustzoo": robustzoo.__version__,
    }


def evidence_of(terms: dict[str, Any], ledger: Ledger, run: dict[str, Any]) -> Evidence:
    """The document of a finished ledger, which hands its points over; they are in memory alone."""
    threat = terms["threat_model"]
    evidence = Evidence.build(
        **{**terms, "threat_model": f"{threat['norm']}:{threat['epsilon']}"},
        samples=ledger.samples(),
        passes=ledger.passes,
        run=run,
    )
    evidence.witness_set = ledger.hand_over_witnesses(terms["dataset"]["image_shape"])
    return evidence


def carried_from(smaller: Evidence | None, threat_model: ThreatModel) -> dict[int, Carried]:
    """Sample id -> what broke it at the smaller epsilon of `smaller`, and so breaks it at this one.

    Raises:
        GuardError: another norm, an epsilon that is not smaller, or an Evidence without its witnesses.
    """
    if smaller is None:
        return {}
    there = smaller.threat_model
    if there.norm != threat_model.norm or there.epsilon >= threat_model.epsilon:
        raise GuardError(
            f"the smaller threat model is {there}; expected {threat_model.norm} below {threat_model}"
        )
    witnesses = smaller.witness_set
    rows = {} if witnesses is None else {int(i): row for row, i in enumerate(witnesses.ids)}
    carried = {}
    for verdict in smaller.verdicts:
        by = verdict.broken_by
        if by is None:
            continue
        if witnesses is None or verdict.id not in rows:
            raise GuardError(
                f"the Evidence for {there} has no witness for sample {verdict.id}, which it calls broken; "
                "expected its witness file beside it: measure it again"
            )
        row = rows[verdict.id]
        found = Broken(
            by.target, by.restart, by.iteration, witnesses.stored(row), float(witnesses.margins[row])
        )
        carried[verdict.id] = Carried(by.attack, found, by.epsilon or there.epsilon_text)
    return carried


def require_same_but_epsilon(smaller: Evidence, terms: dict[str, Any]) -> None:
    """Raise GuardError unless `smaller` differs from the evaluation of `terms` in its epsilon alone."""
    there = smaller.key()
    for term in ("model", "protocol", "dataset", "seed", "micro_batch_size", "search", "shard"):
        if there.get(term) != terms.get(term):
            raise GuardError(
                f"the evaluation at {smaller.threat_model} differs from this one in its "
                f"{term.replace('_', ' ')}; expected all but epsilon to be equal along a curve"
            )


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
