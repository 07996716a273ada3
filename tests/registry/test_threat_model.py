"""ThreatModel: exact, one text per value, and clear about what it refuses."""

from __future__ import annotations

import pickle
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from robustzoo.errors import RobustzooError
from robustzoo.registry import ThreatModel

ACCEPTED = [
    ("corruptions", "corruptions", 5, "corruptions:5"),
    ("Corruptions:2", "corruptions", 2, "corruptions:2"),
    ("linf:8/255", "linf", Fraction(8, 255), "linf:8/255"),
    ("Linf:8/255", "linf", Fraction(8, 255), "linf:8/255"),
    ("LINF:3/255", "linf", Fraction(1, 85), "linf:3/255"),
    ("linf:1/85", "linf", Fraction(1, 85), "linf:3/255"),
    ("linf:0.1", "linf", Fraction(1, 10), "linf:1/10"),
    ("linf:1/10", "linf", Fraction(1, 10), "linf:1/10"),
    ("linf:51/255", "linf", Fraction(1, 5), "linf:1/5"),
    ("linf:85/255", "linf", Fraction(1, 3), "linf:85/255"),
    ("linf:1", "linf", Fraction(1), "linf:1"),
    ("linf:0.5/255", "linf", Fraction(1, 510), "linf:1/510"),
    ("linf:1/7", "linf", Fraction(1, 7), "linf:1/7"),
    ("linf:0.031", "linf", Fraction(31, 1000), "linf:31/1000"),
    ("l2:3.0", "l2", Fraction(3), "l2:3"),
    ("L2:3", "l2", Fraction(3), "l2:3"),
    ("l2:128/255", "l2", Fraction(128, 255), "l2:128/255"),
    ("linf:1e-3", "linf", Fraction(1, 1000), "linf:1/1000"),
    (f"linf:{0.00001}", "linf", Fraction(1, 100_000), "linf:1/100000"),  # Python's text of it: 1e-05
    ("linf:2.5E-2", "linf", Fraction(1, 40), "linf:1/40"),
    ("l2:1.5e+1", "l2", Fraction(15), "l2:15"),
    ("linf:8e0/255", "linf", Fraction(8, 255), "linf:8/255"),
    (" l1:12 ", "l1", Fraction(12), "l1:12"),
]
REFUSED = [
    ("", "NORM:EPSILON"),
    ("linf", "NORM:EPSILON"),
    ("8/255", "NORM:EPSILON"),
    ("linf:", "not a positive number"),
    ("linf:-8/255", "not a positive number"),
    ("linf:+8/255", "not a positive number"),
    ("linf:8 / 255", "not a positive number"),
    ("linf:8/255/2", "not a positive number"),
    ("linf:1e", "not a positive number"),
    ("linf:e-3", "not a positive number"),
    ("linf:1e-3.0", "not a positive number"),
    ("linf:-1e-3", "not a positive number"),
    ("linf:8/255e0", "not a positive number"),
    ("linf:1e999999999", "not a positive number"),
    ("linf:1e-999999999", "not a positive number"),
    ("linf:1e-30", "more than 30 digits"),
    ("l2:1e99", "more than 30 digits"),
    ("linf:0e-9", "greater than 0"),
    ("linf:1e1", "above 1"),
    ("linf:nan", "not a positive number"),
    ("linf:inf", "not a positive number"),
    ("linf:٨/255", "not a positive number"),
    ("linf:" + "1" * 5000, "not a positive number"),
    ("linf:8/0", "divides by zero"),
    ("linf:1/1" + "0" * 30, "more than 30 digits"),
    ("l2:1" + "0" * 30, "more than 30 digits"),
    ("linf:0", "greater than 0"),
    ("linf:0/255", "greater than 0"),
    ("linf:8", "did you mean linf:8/255"),
    ("linf:1.5", "above 1"),
    ("corruptions:6", "1 to 5"),
    ("corruptions:1/2", "1 to 5"),
    ("l3:1", "unknown norm 'l3'"),
    ("l_inf:8/255", "unknown norm"),
    (None, "not a threat model"),
    (0.1, "not a threat model"),
    (("linf", "8/255"), "not a threat model"),
]


@pytest.mark.parametrize(("text", "norm", "epsilon", "canonical"), ACCEPTED)
def test_accepted_texts(text, norm, epsilon, canonical):
    threat_model = ThreatModel.parse(text)
    assert (threat_model.norm, threat_model.epsilon) == (norm, epsilon)
    assert str(threat_model) == canonical
    assert ThreatModel.parse(threat_model) is threat_model


@pytest.mark.parametrize(("text", "problem"), REFUSED)
def test_refused_texts_say_why(text, problem):
    with pytest.raises(RobustzooError, match=problem):
        ThreatModel.parse(text)


@pytest.mark.parametrize("epsilon", [0.1, "8/255", None, True])
def test_inexact_radii_are_refused(epsilon):
    with pytest.raises(RobustzooError, match="not exact"):
        ThreatModel("linf", epsilon)


def test_equality_is_exact():
    assert ThreatModel.parse("linf:0.1") == ThreatModel("linf", Fraction(1, 10))
    assert ThreatModel.parse("linf:0.031") != ThreatModel.parse("linf:8/255")
    assert ThreatModel.parse("linf:1/2") != ThreatModel.parse("l2:1/2")
    assert ThreatModel.parse("linf:8/255").eps == 8 / 255
    assert len({ThreatModel.parse("linf:0.1"), ThreatModel.parse("linf:1/10")}) == 1
    assert pickle.loads(pickle.dumps(ThreatModel.parse("l2:3"))) == ThreatModel("l2", 3)


@given(st.sampled_from(["linf", "l2", "l1"]), st.integers(1, 10**30 - 1), st.integers(1, 10**30 - 1))
def test_text_round_trips(norm, numerator, denominator):
    epsilon = Fraction(numerator, denominator)
    threat_model = ThreatModel(norm, min(epsilon, Fraction(1)) if norm == "linf" else epsilon)
    assert ThreatModel.parse(str(threat_model)) == threat_model
    assert str(ThreatModel.parse(str(threat_model))) == str(threat_model)


@given(st.text(max_size=30))
def test_parse_is_total(text):
    try:
        threat_model = ThreatModel.parse(text)
    except RobustzooError:
        return
    assert ThreatModel.parse(str(threat_model)) == threat_model


@given(st.integers(1, 254))
def test_pixel_levels_are_written_in_255ths_unless_a_decimal_is_exact(level):
    text = ThreatModel("linf", Fraction(level, 255)).epsilon_text
    assert text == (f"{level}/255" if level % 51 else str(Fraction(level, 255)))


@given(st.floats(1e-12, 1.0))
def test_the_text_that_python_gives_a_float_is_read_exactly(epsilon):
    """f"linf:{epsilon}" has an exponent below 1e-4; the decimal is meant, not the nearest binary number."""
    threat_model = ThreatModel.parse(f"linf:{epsilon}")
    assert threat_model.epsilon == Fraction(str(epsilon)) and threat_model.eps == epsilon
