"""ThreatModel: what the adversary may do, a norm and an exact radius in pixel units of [0, 1]."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from robustzoo.errors import RobustzooError

NORMS = ("linf", "l2", "l1")
CORRUPTIONS = "corruptions"  # no norm: the fifteen common ones, whose epsilon is the highest severity
CORRUPTION_NAMES = (
    "gaussian_noise", "shot_noise", "impulse_noise",
    "defocus_blur", "glass_blur", "motion_blur", "zoom_blur",
    "snow", "frost", "fog", "brightness",
    "contrast", "elastic_transform", "pixelate", "jpeg_compression",
)  # fmt: skip
# A decimal, with or without an exponent of ten, or a fraction. The exponent is short: 10**999999999 would be
# computed before it is refused.
_EPSILON = re.compile(
    r"(?P<numerator>\d{1,40}(?:\.\d{1,40})?(?:[eE][+-]?\d{1,2})?)(?:/(?P<denominator>\d{1,40}))?", re.ASCII
)
# Numerators and denominators beyond this are slips, and no text of ours is longer than we read.
_MOST = 10**30
_FORMS = "expected NORM:EPSILON such as linf:8/255, linf:0.1, linf:1e-05 or l2:3"


@dataclass(frozen=True)
class ThreatModel:
    """All perturbations of at most `epsilon` in `norm` that keep every pixel in [0, 1]. Equality is exact.

    Attributes:
        norm: "linf", "l2" or "l1"; or "corruptions", whose epsilon is the highest severity, 1 to 5.
        epsilon: radius > 0 in pixel units of [0, 1], as an exact fraction; at most 1 for linf, where a larger
            ball holds every image.

    Raises:
        RobustzooError: another norm, or a radius that is not an exact number in that range.
    """

    norm: str
    epsilon: Fraction

    def __post_init__(self) -> None:
        if self.norm not in (*NORMS, CORRUPTIONS):
            raise RobustzooError(
                f"unknown norm {self.norm!r}: expected one of {', '.join((*NORMS, CORRUPTIONS))}"
            )
        if isinstance(self.epsilon, bool) or not isinstance(self.epsilon, (int, Fraction)):
            raise RobustzooError(
                f"epsilon {self.epsilon!r} is not exact: pass a Fraction, or text to ThreatModel.parse"
            )
        object.__setattr__(self, "epsilon", Fraction(self.epsilon))
        if max(abs(self.epsilon.numerator), self.epsilon.denominator) >= _MOST:
            raise RobustzooError("epsilon has more than 30 digits: give a shorter number, such as 8/255")
        if self.epsilon <= 0:
            raise RobustzooError(f"epsilon {self.epsilon} must be greater than 0")
        if self.norm == CORRUPTIONS and self.epsilon not in (1, 2, 3, 4, 5):
            raise RobustzooError(
                f"severity {self.epsilon} of corruptions: expected a whole number from 1 to 5"
            )
        if self.norm == "linf" and self.epsilon > 1:
            hint = f"; did you mean linf:{self.epsilon}/255?" if self.epsilon.denominator == 1 else ""
            raise RobustzooError(
                f"epsilon {self.epsilon} for linf is above 1, but pixels lie in [0, 1]{hint}"
            )

    @classmethod
    def parse(cls, text: str | ThreatModel) -> ThreatModel:
        """Read `linf:8/255`, `linf:0.1`, `linf:1e-05`, `l2:3.0` or `corruptions`; case does not matter.

        Exact: 0.1 is 1/10.

        Raises:
            RobustzooError: anything else, naming the text and the forms that work.
        """
        if isinstance(text, cls):
            return text
        if not isinstance(text, str):
            raise RobustzooError(f"{text!r} ({type(text).__name__}) is not a threat model: {_FORMS}")
        if text.strip().lower() == CORRUPTIONS:
            return cls(CORRUPTIONS, Fraction(5))
        norm, colon, radius = text.strip().partition(":")
        if not colon:
            raise RobustzooError(f"{text!r} is not a threat model: {_FORMS}")
        match = _EPSILON.fullmatch(radius)
        if match is None:
            raise RobustzooError(f"epsilon {radius!r} in {text!r} is not a positive number: {_FORMS}")
        denominator = Fraction(match["denominator"] or 1)
        if denominator == 0:
            raise RobustzooError(f"epsilon {radius!r} in {text!r} divides by zero: {_FORMS}")
        return cls(norm.lower(), Fraction(match["numerator"]) / denominator)

    @property
    def epsilon_text(self) -> str:
        """The one text of this radius: "8/255", "3/255", "1/10", "3"; in 255ths where no decimal is exact."""
        levels = 255 * self.epsilon
        if levels.denominator == 1 and not _has_finite_decimal(self.epsilon):
            return f"{levels.numerator}/255"
        return str(self.epsilon)

    @property
    def eps(self) -> float:
        """The radius as the nearest float, for computing."""
        return float(self.epsilon)

    def __str__(self) -> str:
        return f"{self.norm}:{self.epsilon_text}"


def _has_finite_decimal(value: Fraction) -> bool:
    rest = value.denominator
    for prime in (2, 5):
        while rest % prime == 0:
            rest //= prime
    return rest == 1


def cell(corruption: str, severity: int) -> str:
    """What the member of a protocol is called: "gaussian-noise-3"."""
    return f"{corruption.replace('_', '-')}-{severity}"
