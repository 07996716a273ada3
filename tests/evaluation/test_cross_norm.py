"""The table of several threat models."""

from robustzoo.cards.statistics import Accuracy
from robustzoo.evaluation.series import _table


def test_a_long_threat_model_does_not_run_into_its_accuracy() -> None:
    name, accuracy = "linf:0.0313725490196", Accuracy.of(3, 4)
    head, clean, long = _table([("clean", accuracy), (name, accuracy)])
    assert head == "threat model" + " " * 10 + "accuracy"
    assert clean == "clean" + " " * 17 + str(accuracy)
    assert long == f"{name}  {accuracy}"
