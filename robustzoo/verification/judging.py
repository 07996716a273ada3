"""What the counts that were found say about a claim: each part's outcome, with its reason in numbers."""

from __future__ import annotations

from robustzoo.cards.evidence import Evidence
from robustzoo.verification.replay import Replay
from robustzoo.verification.report import HOLDS, NOT_TESTED, REFUTED, ClaimReport, plural
from robustzoo.verification.spot import Bounds, Spot


def count(report: ClaimReport, evidence: Evidence, found: Replay) -> None:
    """Enter what was claimed, what the Evidence counts, and what the replay found."""
    claim, counts = report.claim, evidence.doc["counts"]
    clean = len(found.clean_correct)
    report.numbers = {
        "n": claim.n,
        "tolerance": report.tolerance,
        "clean_claimed": claim.clean_correct,
        "clean_found": clean,
        "clean_difference": clean - claim.clean_correct,
        "clean_in_evidence": counts["clean_correct"],
        "robust_claimed": claim.robust_correct,
        "robust_in_evidence": counts["robust_correct"],
        "robust_at_most": found.robust_at_most,
        "witnesses_valid": len(found.valid),
        "witnesses_needed": max(clean - claim.robust_correct - report.tolerance, 0),
    }


def judge_clean(report: ClaimReport) -> None:
    """The clean part: a recount, compared with the claim."""
    claimed, found = report.numbers["clean_claimed"], report.numbers["clean_found"]
    report.parts["clean"] = HOLDS if abs(found - claimed) <= report.tolerance else REFUTED
    report.reasons["clean"] = f"claimed {claimed}, found {found} ({_off(found - claimed, report)})"
    _void(report, "clean", found - claimed)


def judge_replay(report: ClaimReport) -> None:
    """Witnesses bound the robust images from above: they can prove the upper part and refute the lower.

    A card that is further from its own Evidence than the tolerance is refuted by it, in the part concerned.
    """
    bound, claimed = report.numbers["robust_at_most"], report.numbers["robust_claimed"]
    high, low = claimed + report.tolerance, claimed - report.tolerance
    valid = report.numbers["witnesses_valid"]
    proof = (
        f"{plural(valid, 'witness', 'es')} {'fools' if valid == 1 else 'fool'} the model, so at most {bound}"
    )
    proof += " is robust" if bound == 1 else " are robust"
    if bound <= high:
        report.parts["upper"], report.reasons["upper"] = HOLDS, f"claimed {claimed}, {proof}"
        _void(report, "upper", bound - claimed)
    else:
        report.reasons["upper"] = (
            f"claimed {claimed}, {proof}: {plural(bound - high, 'more witness', 'es')} would be needed to "
            f"show at most {high}"
        )
    if bound < low:
        report.parts["lower"] = REFUTED
        report.reasons["lower"] = f"claimed {claimed}, {proof} ({_off(bound - claimed, report)})"
    elif low <= 0:
        report.reasons["lower"] = f"claimed {claimed}, tolerance {report.tolerance}: nothing to test"
    else:
        report.reasons["lower"] = (
            f"only attacking again can show that at least {low} {'is' if low == 1 else 'are'} robust: use "
            "mode spot, or mode full"
        )
    for part, reason in _contradictions(report).items():
        report.parts[part], report.reasons[part] = REFUTED, f"{report.reasons[part]}; {reason}"
    if REFUTED in report.parts.values():
        report.outcome = "refuted"
    elif report.parts["upper"] == report.parts["clean"] == HOLDS:
        report.outcome = "consistent"
    else:
        report.outcome = "inconclusive"


def judge_full(report: ClaimReport) -> None:
    """Upper and lower part: the whole protocol run again, compared with the claim."""
    found, claimed = report.numbers["robust_found"], report.numbers["robust_claimed"]
    off = report.numbers["robust_difference"] = found - claimed
    for part, fails in (("upper", off > report.tolerance), ("lower", -off > report.tolerance)):
        report.parts[part] = REFUTED if fails else HOLDS
        report.reasons[part] = (
            f"claimed {claimed}, the whole protocol left {found} robust ({_off(off, report)})"
        )
        _void(report, part, off)
    _conclude(report)


def spot_bounds(report: ClaimReport) -> Bounds | None:
    """What a spot check has to decide; None where clean images or witnesses refute the claim already."""
    claimed, bound = report.numbers["robust_claimed"], report.numbers["robust_at_most"]
    least, most = claimed - report.tolerance, claimed + report.tolerance
    if report.parts["clean"] == REFUTED or bound < least:
        return None
    return Bounds(least, None if bound <= most else most)


def judge_spot(report: ClaimReport, found: Spot | None) -> None:
    """Upper and lower part: a sample of the images, and the witnesses where they say more.

    Args:
        found: None where `spot_bounds` is.
    """
    claimed, bound = report.numbers["robust_claimed"], report.numbers["robust_at_most"]
    least, most = claimed - report.tolerance, claimed + report.tolerance
    witnessed = f"witnesses leave at most {bound} robust"
    for part in ("upper", "lower"):
        report.reasons[part] = f"claimed {claimed}; not tested, since the clean count refutes the claim"
    if bound <= most:
        report.parts["upper"], report.reasons["upper"] = HOLDS, f"claimed {claimed}, {witnessed}"
        _void(report, "upper", bound - claimed)
    if found is None:
        if bound < least:
            report.parts["lower"] = REFUTED
            report.reasons["lower"] = f"claimed {claimed}, {witnessed} ({_off(bound - claimed, report)})"
        report.outcome = "refuted"
        return
    report.numbers |= {
        "survivors": found.survivors,
        "drawn": found.drawn,
        "drawn_broken": found.failures,
        "robust_least": found.least,
        "robust_most": found.most,
    }
    exact = found.low == found.high
    off = found.most - claimed if exact else 1  # 1 for what is not known to be the very count claimed
    if exact:
        report.numbers["robust_difference"] = off
    shown = f"claimed {claimed}, {_sampled(found)}"
    if found.least >= least:
        report.parts["lower"] = HOLDS
    elif found.most < least:
        report.parts["lower"] = REFUTED
    report.reasons["lower"] = shown
    _void(report, "lower", off)
    if bound > most:
        if found.most <= most:
            report.parts["upper"] = HOLDS
        elif found.least > most:
            report.parts["upper"] = REFUTED
        report.reasons["upper"] = shown
        _void(report, "upper", off)
    _conclude(report)


def _sampled(found: Spot) -> str:
    """For people: what a spot check did, and what follows."""
    first = f"{found.survivors} survived the first tier"
    if not found.drawn:
        return f"{first}, so at most {found.survivors} are robust"
    if found.low == found.high:
        return f"{first}, and {found.least} the whole protocol"
    return (
        f"{first}; {found.drawn} of them, drawn at random, met the whole protocol, which broke "
        f"{found.failures}: {found.least} to {found.most} are robust (95 %)"
    )


def _conclude(report: ClaimReport) -> None:
    """The outcome of a verification that attacked, from its parts."""
    if REFUTED in report.parts.values():
        report.outcome = "refuted"
    else:
        report.outcome = "inconclusive" if NOT_TESTED in report.parts.values() else "confirmed"


def _void(report: ClaimReport, part: str, off: int) -> None:
    """Take back a part that holds only because no count could break it; equal counts need no tolerance."""
    n, tolerance = report.numbers["n"], report.tolerance
    claimed = report.numbers["clean_claimed" if part == "clean" else "robust_claimed"]
    most = n if part == "clean" else report.numbers["clean_found"]  # a robust image is classified correctly
    never_above, never_below = claimed + tolerance >= most, claimed <= tolerance
    cannot_fail = {
        "clean": never_above and never_below,
        "upper": never_above,
        "lower": never_below and claimed > 0,
    }[part]
    if off and cannot_fail and report.parts[part] == HOLDS:
        report.parts[part] = NOT_TESTED
        report.reasons[part] += f": a tolerance of {tolerance} of {most} images allows any count"


def _off(difference: int, report: ClaimReport) -> str:
    """For people: "+5, tolerance 3"."""
    return f"{difference:+d}, tolerance {report.tolerance}" if difference else "as claimed"


def _contradictions(report: ClaimReport) -> dict[str, str]:
    """Part -> reason, where card and Evidence disagree by more than the tolerance."""
    found = {}
    for quantity, above, below in (("clean", "clean", "clean"), ("robust", "upper", "lower")):
        claimed, counted = report.numbers[f"{quantity}_claimed"], report.numbers[f"{quantity}_in_evidence"]
        if abs(counted - claimed) > report.tolerance:
            found[above if counted > claimed else below] = (
                f"claimed {claimed}, the card's own Evidence counts {counted} "
                f"({_off(counted - claimed, report)})"
            )
    return found


def note_evidence(report: ClaimReport) -> None:
    """Note any disagreement of card and Evidence, within the tolerance too."""
    for quantity in ("clean", "robust"):
        claimed, counted = report.numbers[f"{quantity}_claimed"], report.numbers[f"{quantity}_in_evidence"]
        if claimed != counted:
            report.notes.append(
                f"the card states {quantity}_correct = {claimed}, its own Evidence counts {counted} "
                f"({_off(counted - claimed, report)})"
            )


def note_witnesses(report: ClaimReport, found: Replay) -> None:
    """Note the witnesses that prove nothing, and why."""
    for ids, what in (
        (found.borderline, "do not fool the model here, within 1e-4 of a tie: unreplayable on this machine"),
        (found.failing, "do not fool the model and prove nothing"),
        (found.outside, f"are outside {report.claim.threat_model} or [0, 1] and prove nothing"),
        (found.foreign, "are not about images of this subset and prove nothing"),
    ):
        if ids:
            shown = ", ".join(map(str, ids[:8])) + (", ..." if len(ids) > 8 else "")
            report.notes.append(f"{len(ids)} of {found.witnesses} witnesses {what} (ids {shown})")


def note_verdicts(report: ClaimReport, evidence: Evidence, fresh: Evidence, found: Replay) -> None:
    """Count the robust images, and those whose verdict is another than in the Evidence, or than a witness
    says, which are noted."""
    report.numbers["robust_found"] = fresh.robust_accuracy.correct
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
