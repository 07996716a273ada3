"""Gradient masking: signs in an Evidence that its gradient attacks searched badly, in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from robustzoo.cards.evidence import Evidence

# Square uses no gradient, so it should find next to nothing after attacks that do: 0.2 points at most.
SQUARE_SHARE = 0.002
# Share of the attacked images beyond which zero gradients are no accident.
_FEW = 0.01


def masking_signs(evidence: Evidence, others: Iterable[Evidence] = ()) -> list[str]:
    """Every sign of gradient masking that the Evidence shows; empty without any.

    Args:
        others: more Evidence of the same model; of those on the same images the clean counts are compared.
    """
    counts, n = evidence.doc["counts"], evidence.doc["counts"]["n"]
    signs = []
    sign = square_sign(counts["broken_by"].get("square", 0), n)
    if sign is not None and len(evidence.doc["protocol"]["members"]) > 1:
        signs.append(sign)
    blind = masking_warning(evidence.doc["run"].get("zero_gradients", {}), counts["clean_correct"])
    if blind is not None:
        signs.append(blind)
    same = [other for other in others if _same_images(evidence, other)]
    found = sorted({e.doc["counts"]["clean_correct"] for e in (evidence, *same)})
    if len(found) > 1:
        signs.append(
            f"the clean accuracy changes between evaluations of the same weights on the same images "
            f"({', '.join(map(str, found))} of {n}): the model is random, or was run on processors that "
            "round differently. A random model needs a protocol that averages over draws"
        )
    return signs


def masking_warning(blind: Mapping[str, int], attacked: int) -> str | None:
    """What to say of gradients that were zero throughout; None where that is no more than a few images.

    Args:
        blind: attack -> images for which every gradient it asked for was zero.
        attacked: images that were classified correctly, and so attacked.
    """
    many = {attack: count for attack, count in blind.items() if count > _FEW * attacked}
    if not many:
        return None
    counts = ", ".join(f"{attack} on {count} of {attacked} images" for attack, count in many.items())
    return (
        f"gradient masking suspected: every gradient was zero for {counts}, so these attacks could not "
        "search and the robust accuracy may be overestimated. Look for rounding, detach or saturated "
        "outputs in the model, and evaluate it without them or with a protocol that includes `square`"
    )


def square_sign(broken: int, n: int) -> str | None:
    """What to say where Square broke `broken` of `n` images after attacks that use gradients."""
    if broken <= SQUARE_SHARE * n:
        return None
    return (
        f"Square, which uses no gradient, broke {broken} of {n} images that every gradient attack left: "
        f"beyond {100 * SQUARE_SHARE:g} %, gradients may be masked, and the robust accuracy overestimated"
    )


def _same_images(one: Evidence, other: Evidence) -> bool:
    a, b = one.doc, other.doc
    return a["dataset"]["digest"] == b["dataset"]["digest"] and a["model"] == b["model"]
