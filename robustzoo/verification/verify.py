"""verify(): is what a model's card claims true of these weights, and how much of it was tested."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from robustzoo.attacks.frozen import frozen
from robustzoo.attacks.protocols import RANDOM_MODELS
from robustzoo.cards.check import require_rendered, require_same
from robustzoo.cards.claims import Claim, default_tolerance
from robustzoo.cards.evidence import Evidence
from robustzoo.cards.metadata import weights_sha256
from robustzoo.cards.notes import split_notes
from robustzoo.cards.signs import masking_signs
from robustzoo.cards.witnesses import Witnesses
from robustzoo.data import ImageDataset
from robustzoo.evaluation import machine, micro_batch
from robustzoo.evaluation.arguments import check_seed, check_whole
from robustzoo.evaluation.engine import Work
from robustzoo.evaluation.evaluate import evaluate
from robustzoo.evaluation.forward_guards import check_forward, check_micro_batch
from robustzoo.evaluation.guards import probe_images, read_probe
from robustzoo.evaluation.progress import Reporter
from robustzoo.models.folder import read_folder, verify_sha256
from robustzoo.registry.digests import sha256_file
from robustzoo.registry.entries import public_name
from robustzoo.verification.comparable import (
    card_differences,
    card_text,
    check_witness_file,
    closest,
    data_differences,
    evidence_documents,
    load_witnesses,
    open_stated,
    refuse_unread,
)
from robustzoo.verification.judging import (
    judge_clean,
    judge_full,
    judge_replay,
    judge_spot,
    note_evidence,
    spot_bounds,
)
from robustzoo.verification.replay import Replay, replay, replay_cost
from robustzoo.verification.report import (
    NOT_TESTED,
    ClaimReport,
    VerificationError,
    VerificationReport,
    append_to,
    check_log,
)
from robustzoo.verification.spot import spot

MODES = ("replay", "spot", "full")
# Fresh seeds are below this: whole numbers in any JSON reader, and too many for an author to try them all.
_SEEDS = 2**53
_OTHER_WEIGHTS = (
    "put the published file back (a fresh copy of the model folder has it). Only if you changed the weights "
    "on purpose: they are another model, so write a folder of their own with "
    "robustzoo.models.write_folder(FOLDER, model, model.recipe), then `robustzoo evaluate` and `robustzoo "
    "card` that"
)


def verify(
    folder: str | Path,
    *,
    card: str | Path | None = None,
    mode: str = "replay",
    sha256: str | None = None,
    data: Any = None,
    data_root: str | Path | None = None,
    classes: str | Path | None = None,
    tolerance: int | None = None,
    seed: int | None = None,
    same_seed: bool = False,
    workers: int = 1,
    device: str | torch.device | None = None,
    require: str | None = None,
    log: str | Path | None = None,
    progress: bool | Callable[[dict], None] = True,
) -> VerificationReport:
    """Check every claim of a model's card against its weights, its Evidence and the data.

    `replay` classifies the clean images and every witness: one forward each. It can show that the model is at
    most as robust as claimed ("consistent"), never that it is at least so. `spot` attacks all images with the
    cheap part of the protocol and then randomly drawn survivors with all of it, until the claim is decided
    with an error of at most 5 %. `full` runs the whole protocol again on all images. Both use fresh
    randomness and say "confirmed" or "refuted". What it will cost here is said first.

    Args:
        folder: a model folder: weights, card (README.md), evidence/*.json and witnesses.
        card: another card than the folder's own.
        sha256: what the weights must hash to, beside what the Evidence says (for example the lock file's).
        data: the images, as `evaluate` takes them, where the Evidence is not about a dataset of the catalog.
        data_root: folder of a named dataset's files.
        classes: a file of class names in order, for a folder with one folder per class.
        tolerance: images that a count may be off, at most the larger of 1 % and 3; default: the card's own.
        seed: of the attacks; default: drawn from system entropy, since a draw that the author can predict
            proves nothing. Recorded in the report. (Which survivors a spot check draws is always the
            system's choice.)
        same_seed: use the Evidence's seed for the attacks: in a full run equal counts on an equal machine.
        workers, device, progress: as in `evaluate`, for attacks.
        require: "confirmed" makes "consistent" exit with 3.
        log: append one JSON line to this file, in a folder that exists.

    Raises:
        HashMismatch: the weights are not those that `sha256`, the card or the Evidence names, or the witness
            file is not the one that the Evidence names. (A missing witness file is noted: replay then cannot
            test that the model is at most as robust as claimed.)
        CardError: no card, one without claims, one whose text states other numbers than its metadata, or one
            that says anything else than the folder's recipe and evidence give (the author's notes excepted).
        FolderError, EvidenceError, WitnessError: a file of the folder is missing, damaged or contradicts
            itself.
        DataError, MissingData: the images cannot be had.
        VerificationError: a wrong argument, no Evidence in the folder, or a log that cannot be written (the
            error's `report` is then what would have been returned).
    """
    folder = Path(folder)
    if mode not in MODES:
        raise VerificationError(f"mode is {mode!r}; expected one of {', '.join(MODES)}")
    if require not in (None, "confirmed"):
        raise VerificationError(f'require is {require!r}; expected "confirmed" or None')
    check_whole("tolerance", tolerance, 0, error=VerificationError)
    check_seed(seed, error=VerificationError)
    check_whole("workers", workers, 1, optional=False, error=VerificationError)
    if seed is not None and same_seed:
        raise VerificationError(f"seed {seed} and same_seed were both given; expected one of them")
    if mode == "replay" and (seed is not None or same_seed):
        raise VerificationError(
            'seed and same_seed are about attacks, a replay draws nothing: use mode "spot" or "full" (--mode '
            "full) or leave them out"
        )
    if log is not None:
        check_log(Path(log))
    text = card_text(folder, card)
    claims = Claim.from_card(text)
    _check_tolerance(tolerance, claims)
    require_same(text, claims)
    documents = evidence_documents(folder)
    weights = folder / "model.safetensors"
    pairs = [(claim, *closest(claim, documents)) for claim in claims]
    refuse_unread(data, (evidence for _, evidence, _ in pairs))
    for expected in (
        sha256,
        weights_sha256(text),
        *(evidence.doc["model"]["sha256"] for _, evidence, _ in pairs),
    ):
        if expected is not None:
            verify_sha256(weights, expected, next_step=_OTHER_WEIGHTS)
    for _, evidence, path in pairs:
        check_witness_file(evidence, path)
    found = sha256_file(weights)
    model = read_folder(folder, found)
    differences = [card_differences(claim, evidence, model) for claim, evidence, _ in pairs]
    if not any(differences):
        stated = [(claim, evidence) for claim, evidence, _ in pairs]
        require_rendered(text, model.recipe, stated, model.license)
    run = {"workers": workers, "device": device, "progress": progress}
    reports = []
    for (claim, evidence, path), differing in zip(pairs, differences, strict=True):
        allowed = claim.tolerance if tolerance is None else tolerance
        report = ClaimReport(
            claim, allowed, "not comparable", dict.fromkeys(("clean", "upper", "lower"), NOT_TESTED)
        )
        report.differences = differing
        if not report.differences:
            dataset = open_stated(evidence, data, data_root, classes)
            report.differences = data_differences(evidence, dataset, report.notes)
            if report.differences:
                report.notes += dataset.notes
        if not report.differences:
            drawn = evidence.seed if same_seed else secrets.randbelow(_SEEDS) if seed is None else seed
            witnesses = load_witnesses(evidence, path, report.notes)
            _check(report, evidence, model, dataset, witnesses, mode, {**run, "seed": drawn})
        reports.append(report)
    name = public_name(model.name, found)
    notes = []
    if name != model.name:
        notes.append(
            f"{model.name} is a published model, and these are other weights than its own: robustzoo.load("
            f"{model.name!r}) has those"
        )
    unstated = len(documents) - len({path for _, _, path in pairs})
    if unstated:
        notes.append(f"{unstated} more of the folder's Evidence is not stated by the card, and not checked")
    if split_notes(text)[1]:
        notes.append("the author's notes, at the end of the card, are not checked")
    result = VerificationReport(name, str(folder), found, mode, reports, require, notes)
    if log is not None:
        append_to(Path(log), result)
    return result


def _check(
    report: ClaimReport,
    evidence: Evidence,
    model: nn.Module,
    dataset: ImageDataset,
    witnesses: Witnesses | None,
    mode: str,
    run: dict[str, Any],
) -> None:
    """Replay, then attack again as `mode` and `run` (seed, workers, device, progress) say; fills in the
    report."""
    claim, counts, indices = report.claim, evidence.doc["counts"], evidence.doc["dataset"]["indices"]
    device = machine.find_device(run["device"] or "cpu")
    with (
        Reporter(run["progress"]) as reporter,
        machine.strict_arithmetic(device),
        machine.placed(model, device),
        frozen(model),
    ):
        size = _micro_batch(report, evidence, model, dataset, mode, run["workers"], device)
        reporter.say(replay_cost(model, dataset, len(indices), witnesses, size, device), "cost")
        found = replay(model, dataset, indices, witnesses, claim.threat_model, size, device)
        here = machine.fingerprint(device, size)
    there = evidence.doc["run"]["fingerprint"]
    report.fingerprint = {
        key: (there.get(key), here.get(key))
        for key in sorted({*there, *here})
        if there.get(key) != here.get(key)
    }
    report.numbers = {
        "n": claim.n,
        "tolerance": report.tolerance,
        "clean_claimed": claim.clean_correct,
        "clean_found": len(found.clean_correct),
        "clean_difference": len(found.clean_correct) - claim.clean_correct,
        "clean_in_evidence": counts["clean_correct"],
        "robust_claimed": claim.robust_correct,
        "robust_in_evidence": counts["robust_correct"],
        "robust_at_most": found.robust_at_most,
        "witnesses_valid": len(found.valid),
        "witnesses_needed": max(len(found.clean_correct) - claim.robust_correct - report.tolerance, 0),
    }
    _note_witnesses(report, found)
    judge_clean(report)
    note_evidence(report)
    if mode == "replay":
        report.masking = masking_signs(evidence)
        judge_replay(report)
        return
    report.seed = run["seed"]
    if mode == "spot":
        _spot_check(report, evidence, model, dataset, size, device, run)
        return
    fresh = evaluate(
        model,
        dataset,
        claim.threat_model,
        claim.protocol,
        indices=indices,
        micro_batch_size=size,
        name=claim.model_name,
        **run,
    )
    report.masking = masking_signs(fresh)
    report.numbers["robust_found"] = fresh.robust_accuracy.correct
    _compare_verdicts(report, evidence, fresh, found)
    judge_full(report)


def _spot_check(
    report: ClaimReport,
    evidence: Evidence,
    model: nn.Module,
    dataset: ImageDataset,
    size: int,
    device: torch.device,
    run: dict[str, Any],
) -> None:
    """Attack what a spot check attacks, unless the replay has refuted the claim already, and judge."""
    bounds, claim = spot_bounds(report), report.claim
    found = None
    if bounds is not None:
        indices = evidence.doc["dataset"]["indices"]
        with (
            Reporter(run["progress"]) as reporter,
            machine.strict_arithmetic(device),
            machine.placed(model, device),
            frozen(model),
        ):
            probe = probe_images(read_probe(dataset)).to(device)
            asks = {"gradients": claim.protocol != "square", "random": claim.protocol == RANDOM_MODELS}
            num_classes = check_forward(model, probe, **asks)
            first = [dataset[i][0] for i in indices[:size]]
            check_micro_batch(model, first, size, device, **asks)
            work = Work(
                dataset, claim.protocol, claim.threat_model, num_classes, run["seed"], size, str(device)
            )
            found = spot(model, work, indices, bounds, min(run["workers"], len(indices)), reporter)
        report.entropy = found.entropy
        report.masking = [] if found.masking is None else [found.masking]
    judge_spot(report, found)


def _micro_batch(
    report: ClaimReport,
    evidence: Evidence,
    model: nn.Module,
    dataset: ImageDataset,
    mode: str,
    workers: int,
    device: torch.device,
) -> int:
    """The Evidence's micro-batch, so that equal runs give equal bits, as far as it is no more than padding
    and fits into memory; a smaller one is noted."""
    stated, claim = evidence.doc["micro_batch_size"], report.claim
    size = micro_batch.bounded(stated, claim.n)
    x = dataset[evidence.doc["dataset"]["indices"][0]][0]
    gradients = mode != "replay" and claim.protocol != "square"
    size = micro_batch.within_memory(model, x, size, device, workers, gradients=gradients)
    size, _ = micro_batch.fit(model, x, size, device, gradients=gradients)
    if size < stated:
        report.notes.append(
            f"the Evidence states a micro-batch of {stated}; {size} is used here, as much as {claim.n} "
            f"images fill and the memory of {device} holds"
        )
    return size


def _note_witnesses(report: ClaimReport, found: Replay) -> None:
    for ids, what in (
        (found.borderline, "do not fool the model here, within 1e-4 of a tie: unreplayable on this machine"),
        (found.failing, "do not fool the model and prove nothing"),
        (found.outside, f"are outside {report.claim.threat_model} or [0, 1] and prove nothing"),
        (found.foreign, "are not about images of this subset and prove nothing"),
    ):
        if ids:
            shown = ", ".join(map(str, ids[:8])) + (", ..." if len(ids) > 8 else "")
            report.notes.append(f"{len(ids)} of {found.witnesses} witnesses {what} (ids {shown})")


def _compare_verdicts(report: ClaimReport, evidence: Evidence, fresh: Evidence, found: Replay) -> None:
    before = {verdict.id: verdict.robust for verdict in evidence.verdicts}
    changed = [verdict.id for verdict in fresh.verdicts if verdict.robust != before[verdict.id]]
    report.numbers["verdicts_changed"] = len(changed)
    if changed:
        report.notes.append(
            f"{len(changed)} images have another verdict than in the Evidence (ids {changed[:8]})"
        )
        if fresh.seed == evidence.seed and not report.fingerprint:
            report.notes.append(
                "with this seed on this fingerprint they should be equal: the Evidence was changed"
            )
    known = set(found.valid)
    missed = sum(verdict.robust and verdict.id in known for verdict in fresh.verdicts)
    if missed:
        report.notes.append(f"{missed} images that this run left robust are broken by a stored witness")


def _check_tolerance(tolerance: int | None, claims: list[Claim]) -> None:
    """Refuse more than the default: with enough tolerance, any claim holds."""
    most = min(default_tolerance(claim.n) for claim in claims)
    if tolerance is not None and tolerance > most:
        raise VerificationError(
            f"tolerance is {tolerance}; expected at most {most} images for a claim about "
            f"{min(claim.n for claim in claims)} (the larger of 1 % and 3): with more, it would prove nothing"
        )
