"""What benchmarks/training.py makes of its measurements."""

from __future__ import annotations

import pytest

from benchmarks import training as benchmark


@pytest.fixture
def measured():
    """Three rounds on a machine that is twice as slow in the second: F 1, F + B 2, T 3 seconds."""
    slow = (1.0, 2.0, 1.0)
    methods = [f"{loss}_{defence}" for loss in benchmark.LOSSES for defence in benchmark.DEFENCES]
    seconds = {"F": 1.0, "F + B": 2.0, "T": 3.0} | dict.fromkeys(methods, 30.0)
    seconds |= {f"{loss} {benchmark.BY_HAND}": 45.0 for loss in benchmark.LOSSES}
    times = {name: [value * factor for factor in slow] for name, value in seconds.items()}
    memory = dict.fromkeys(seconds, 10**8)
    machine = {"processor": "test", "micro_batch_size": 16}
    return {"seconds": times, "memory": memory, "machine": machine, "versions": {"torch": "2"}}


@pytest.mark.parametrize(
    ("method", "passes"),
    [
        ("at_base", 23),
        ("at_trh", 23),
        ("at_s2o", 26),
        ("at_awp", 26),
        ("trades_base", 27),
        ("trades_awp", 33),
    ],
)
def test_the_limit_is_the_methods_own_passes(measured, method, passes):
    assert benchmark.limits(method, measured["seconds"]) == [passes, 2 * passes, passes]


def test_the_table(measured):
    rows = {row["method"]: row for row in benchmark.table(measured, 16)}
    assert rows["at_base"]["over_its_limit"] == pytest.approx(30 / 23)
    assert rows["at_trh"]["time_over_base"] == 1 and rows["at by hand"]["time_over_base"] == 1.5
    assert rows["at_swa"]["images_per_second"] == pytest.approx(16 / 30)
    report = benchmark.markdown(list(rows.values()), measured, "python benchmarks/training.py")
    assert "| trades_trh | 0.53 | 1.111 | 1.000 | 100 | 1.000 | F + 10 (F + B) + 2 T |" in report
    assert "AT: 1.50 times the images per second of the loop by hand." in report
    assert "Median F 1000 ms, F + B 2000 ms, T 3000 ms" in report
