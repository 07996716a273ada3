"""An interrupted evaluation goes on from its journal and ends in the bytes of one that was not."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from robustzoo.attacks.clean_pass import Clean
from robustzoo.cards import Evidence
from robustzoo.errors import RobustzooError
from robustzoo.evaluation.evaluate import evaluate
from robustzoo.evaluation.journal import _MAGIC, Journal, _framed, stored_key
from robustzoo.evaluation.ledger import Finding, Success
from robustzoo.hub.load import load

KEY = {"seed": 0, "model": {"name": "a", "sha256": None}, "dataset": {"indices": [0, 1]}}
FINDINGS = [
    Finding(0, 0, 4, 1, clean=Clean(0, 3, 3, (1, 2))),
    Finding(1, 0, 4, 1, clean=Clean(1, 2, 0, (0, 1))),
    Finding(0, 1, 2, 8, 7, True),
    Finding(0, 2, 4, 3, 2, success=Success(2, 2, 0, 5, np.arange(12, dtype=np.uint8).reshape(3, 2, 2), 0.1)),
    Finding(2, 1, 4, 3, 2, success=Success(1, None, 0, 0, np.full((1, 1, 2), 0.3, np.float32), 1e-5)),
]


def same(one: Finding, other: Finding) -> bool:
    points = [None if f.success is None else f.success.point for f in (one, other)]
    if points[0] is None or points[1] is None:
        return one == other
    texts = [(replace(f, success=None), replace(f.success, point=None)) for f in (one, other)]
    return texts[0] == texts[1] and points[0].dtype == points[1].dtype and np.array_equal(*points)


def written(path, batches) -> None:
    with Journal(path, KEY) as journal:
        for batch in batches:
            journal.append(batch)


def test_what_was_appended_is_read_back(tmp_path):
    path = tmp_path / "new" / "j"
    written(path, [FINDINGS[:2]])
    written(path, [FINDINGS[2:4], FINDINGS[4:]])
    with Journal(path, KEY) as journal:
        assert len(journal.findings) == 5 and all(map(same, journal.findings, FINDINGS))
        assert journal.sessions == 2 and journal.elapsed >= 0
        journal.remove()
    assert not path.exists() and stored_key(path) is None


def test_a_journal_that_holds_nothing_leaves_no_file(tmp_path):
    with Journal(tmp_path / "j", KEY) as journal:
        journal.append([])
    with Journal(None, KEY) as journal:
        journal.append(FINDINGS)
        journal.remove()
    assert not list(tmp_path.iterdir())


def test_a_torn_tail_is_dropped_wherever_it_was_cut(tmp_path):
    path = tmp_path / "j"
    ends = [0]
    for batch in (FINDINGS[:2], FINDINGS[2:4], FINDINGS[4:]):
        written(path, [batch])
        ends.append(path.stat().st_size)
    content = path.read_bytes()
    near = {end + offset for end in ends for offset in range(-9, 10)}
    for cut in sorted(cut for cut in near | set(range(0, len(content), 97)) if 0 <= cut < len(content)):
        path.write_bytes(content[:cut])
        whole = sum(end <= cut for end in ends[1:])
        with Journal(path, KEY) as journal:
            assert len(journal.findings) == [0, 2, 4, 5][whole]
            journal.append(FINDINGS[4:])
        with Journal(path, KEY) as journal:
            assert same(journal.findings[-1], FINDINGS[4]) and len(journal.findings) == [1, 3, 5][whole]


def test_a_changed_byte_is_noticed(tmp_path):
    path = tmp_path / "j"
    written(path, [FINDINGS[:2], FINDINGS[2:]])
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with Journal(path, KEY) as journal:
        assert len(journal.findings) == 2


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> tuple[Path, bytes, list[int]]:
    """A place for a journal, the bytes of one of three batches, and where each batch ends."""
    path, ends = tmp_path_factory.mktemp("journal") / "j", []
    for batch in (FINDINGS[:2], FINDINGS[2:4], FINDINGS[4:]):
        written(path, [batch])
        ends.append(path.stat().st_size)
    return path, path.read_bytes(), ends


def goes_on(path, content: bytes, batches: int) -> None:
    """The journal with this content gives its first batches, takes another behind them, and gives it back."""
    path.write_bytes(content)
    findings = FINDINGS[: [0, 2, 4, 5][batches]]
    with Journal(path, KEY) as journal:
        assert len(journal.findings) == len(findings) and all(map(same, journal.findings, findings))
        assert journal.sessions == batches
        journal.append(FINDINGS[4:])
    with Journal(path, KEY) as journal:
        assert len(journal.findings) == len(findings) + 1 and same(journal.findings[-1], FINDINGS[4])


def refuses(path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(RobustzooError, match=r"would be continued, but.*--restart"):
        Journal(path, KEY)
    assert path.read_bytes() == content  # what findings there are stay until someone says otherwise


@given(st.data())
@settings(max_examples=40)
def test_any_torn_tail_is_cut_off(whole, data):
    """Whatever a crash leaves: nothing, zeros (8 of them once passed as a frame), or any other bytes."""
    path, content, ends = whole
    cut = data.draw(st.integers(0, len(content)))
    zeros = bytes(data.draw(st.sampled_from([0, 1, 7, 8, 9, 16, 4096])))
    batches = sum(end <= cut for end in ends)
    goes_on(path, content[:cut] + zeros, batches)
    if batches:
        goes_on(path, content[:cut] + data.draw(st.binary(max_size=64)), batches)


@given(st.data())
@settings(max_examples=40)
def test_a_flipped_bit_ends_what_is_read_or_refuses_the_journal(whole, data):
    path, content, ends = whole
    at = data.draw(st.integers(0, len(content) - 1))
    flipped = bytearray(content)
    flipped[at] ^= 1 << data.draw(st.integers(0, 7))
    if at < head_end(content):
        refuses(path, bytes(flipped))
    else:
        goes_on(path, bytes(flipped), sum(end <= at for end in ends))


def head_end(content: bytes) -> int:
    """Where the key ends, and the first batch begins."""
    length = int.from_bytes(content[20:24], "little")
    return 28 + length


@pytest.mark.parametrize(
    "frame",
    [
        b"x",
        b"\xff" * 40,
        b"\x02\0\0\0{}",
        b'\x0f\0\0\0{"findings":[]}',
        b'\x10\0\0\0{"findings":[1]}',
        b"[" * 10**5,
    ],
    ids=range(6),
)
def test_a_whole_frame_that_we_did_not_write_is_the_end(whole, frame):
    path, content, ends = whole
    goes_on(path, content[: ends[1]] + _framed(frame), 2)


@pytest.mark.parametrize("key", [b"1", b"no json", b"[" * 10**5, b'{"threat_model": {}}'], ids=range(4))
def test_a_key_that_is_none_is_refused(whole, key):
    refuses(whole[0], _MAGIC + _framed(key) + whole[1][head_end(whole[1]) :])


def test_what_is_no_file_is_refused_at_once(tmp_path):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("folder", "pipe"):
        with pytest.raises(RobustzooError, match="it is no file"):
            Journal(tmp_path / name, KEY)
        assert stored_key(tmp_path / name) is None


def test_another_evaluation_is_refused_until_it_may_be_discarded(tmp_path):
    path = tmp_path / "j"
    written(path, [FINDINGS[:2]])
    with pytest.raises(RobustzooError, match=r"another evaluation: seed 0 there, 1 here.*--restart"):
        Journal(path, {**KEY, "seed": 1})
    path.write_bytes(b"something else, and longer than a few bytes")
    with pytest.raises(RobustzooError, match=r"no journal of this version: start over.*--restart"):
        Journal(path, KEY)
    with Journal(path, KEY, restart=True) as journal:
        assert journal.findings == [] and not path.exists()


@contextlib.contextmanager
def files_of_at_most(size: int):
    """A disk that fills up: no file of this process grows beyond `size` bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("before", [0, 2])
def test_a_full_disk_names_the_journal_and_keeps_only_what_is_whole(tmp_path, before):
    path = tmp_path / "j"
    written(path, [FINDINGS[:before]])
    kept = path.read_bytes() if before else b""
    with files_of_at_most(len(kept) + 20), Journal(path, KEY) as journal:
        words = "what it holds stays valid" if before else "nothing was kept: make room there"
        with pytest.raises(RobustzooError, match=rf"the journal {path} cannot be written \(.*\); {words}"):
            journal.append(FINDINGS[2:])
        assert journal.keeps == bool(before)
    assert path.exists() == bool(before)
    with Journal(path, KEY) as journal:
        assert len(journal.findings) == before
        journal.append(FINDINGS[before:])
    with Journal(path, KEY) as journal:
        assert all(map(same, journal.findings, FINDINGS))


class Killed(Exception):
    """Stands for the end of the process."""


def stop_after(events: int):
    """A progress function that ends the evaluation at its so-manyth batch of findings."""
    left = [events]

    def listen(message: dict) -> None:
        if message["event"] == "progress":
            left[0] -= 1
            if not left[0]:
                raise Killed

    return listen


def run(model, out, progress=False, **options) -> Evidence:
    options = {"n": 24, "micro_batch_size": 4, "protocol": "apgd-ce", **options}
    return evaluate(model, "digits", "linf:1/20", out=out, progress=progress, **options)


def contents(folder) -> dict[str, bytes]:
    """What an evaluation wrote, without the Evidence's `run`."""
    return {
        path.name: Evidence.load(path).deterministic_bytes() if path.suffix == ".json" else path.read_bytes()
        for path in (folder / "evidence").iterdir()
    }


def test_an_interrupted_evaluation_goes_on_and_gives_the_same_bytes(linear, tmp_path):
    expected = run(linear, tmp_path / "once")
    out, interruptions = tmp_path / "again", 0
    events: list[dict] = []

    def listen_until(stop):
        return lambda message: (events.append(message), stop(message))

    while True:
        events.clear()
        try:
            found = run(linear, out, listen_until(stop_after(2)))
            break
        except Killed:
            interruptions += 1
            assert [path.suffix for path in (out / "evidence").iterdir()] == [".journal"]
            assert "the same command goes on from there" in events[-1]["text"]
    assert interruptions > 4
    assert any("going on from" in event.get("text", "") for event in events)
    assert contents(out) == contents(tmp_path / "once") and len(contents(out)) == 2
    assert found.doc["run"]["sessions"] == interruptions + 1
    assert "sessions" not in expected.doc["run"]


def test_a_finished_evaluation_is_read_and_not_computed_again(linear, tmp_path):
    first, events = run(linear, tmp_path), []
    before = {path: path.read_bytes() for path in (tmp_path / "evidence").iterdir()}
    for size in (4, None):
        again = run(linear, tmp_path, events.append, micro_batch_size=size)
        assert again.doc == first.doc and len(again.witness_set) == len(first.witness_set)
        assert "holds this evaluation already, and it was read; restart=True" in events[-1]["text"]
    assert {path: path.read_bytes() for path in (tmp_path / "evidence").iterdir()} == before
    events.clear()
    anew = run(linear, tmp_path, events.append, restart=True)
    assert anew.deterministic_bytes() == first.deterministic_bytes()
    assert any(event["event"] == "progress" for event in events)
    with pytest.raises(RobustzooError, match="another evaluation"):
        run(linear, tmp_path, seed=1)


def test_a_disk_that_is_full_at_once_leaves_nothing_and_promises_nothing(linear, tmp_path):
    events: list[dict] = []
    with (
        files_of_at_most(100),
        pytest.raises(RobustzooError, match=r"\.journal cannot be written .*nothing was kept"),
    ):
        run(linear, tmp_path, events.append)
    assert not any("is kept in" in event.get("text", "") for event in events)
    assert not list(tmp_path.iterdir())


def test_a_disk_that_is_full_at_the_end_keeps_the_journal_and_says_so(linear, tmp_path, monkeypatch):
    events: list[dict] = []
    save = Evidence.save

    def on_a_full_disk(evidence, path):
        with files_of_at_most(100):
            save(evidence, path)

    monkeypatch.setattr(Evidence, "save", on_a_full_disk)
    with pytest.raises(OSError, match=r"\.json"):
        run(linear, tmp_path, events.append)
    assert "the same command goes on from there" in events[-1]["text"]
    monkeypatch.undo()
    events.clear()
    run(linear, tmp_path, events.append)
    assert any("24 of 24 images done" in event.get("text", "") for event in events)


@pytest.mark.parametrize("out", [None, "here"])
def test_ctrl_c_before_anything_was_found_says_that_nothing_is_kept(linear, tmp_path, out):
    events: list[dict] = []

    def interrupt(message: dict) -> None:
        events.append(message)
        if message["event"] == "cost":
            raise KeyboardInterrupt

    place = None if out is None else tmp_path / out
    with pytest.raises(KeyboardInterrupt):
        run(linear, place, interrupt)
    assert "nothing was kept" in events[-1]["text"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"seed": 1}, "seed 0 there, 1 here"),
        ({"micro_batch_size": 8}, "micro batch size 4 there, 8 here"),
        ({"precision": "bf16"}, "search none there"),
        ({"name": "other"}, "model differs in name"),
    ],
    ids=str,
)
def test_a_journal_of_other_terms_is_refused(linear, tmp_path, options, words):
    with pytest.raises(Killed):
        run(linear, tmp_path, stop_after(3))
    with pytest.raises(RobustzooError, match=rf"another evaluation: {words}.*--restart"):
        run(linear, tmp_path, **options)
    assert run(linear, tmp_path, restart=True, **options).doc["counts"]["n"] == 24
    assert not list((tmp_path / "evidence").glob("*.journal"))


def test_other_weights_under_the_same_name_are_another_evaluation(linear, tmp_path):
    with pytest.raises(Killed):
        run(linear, tmp_path, stop_after(3))
    other = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).eval()
    other.load_state_dict(linear.state_dict())
    assert run(other, tmp_path / "b").doc["counts"]["n"] == 24
    with torch.no_grad():
        other[1].bias[0] += 1e-3
    with pytest.raises(RobustzooError, match="another evaluation: model differs in weights"):
        run(other, tmp_path)


def test_the_micro_batch_of_a_journal_is_kept_where_none_is_asked_for(linear, tmp_path):
    with pytest.raises(Killed):
        run(linear, tmp_path, stop_after(3))
    assert run(linear, tmp_path, micro_batch_size=None).doc["micro_batch_size"] == 4


NAME = "vit_micro2.digits_linf.at_base"
SCRIPT = """
import sys, robustzoo
if __name__ == "__main__":
    model = robustzoo.load("{name}")
    robustzoo.evaluate(
        model, "digits", None, "apgd-ce", n={n}, micro_batch_size=2, out=sys.argv[1], progress=False,
        workers=int(sys.argv[2]),
    )
"""


def kill_while_it_runs(tmp_path, kills: int, n: int, workers: int) -> None:
    """Kill -9 one evaluation `kills` times, each time after it has kept something, and let it end."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(n=n, name=NAME))

    def start(out, processes: int) -> subprocess.Popen:
        command = [sys.executable, str(script), str(out), str(processes)]
        return subprocess.Popen(command, start_new_session=True)

    options = {"n": n, "micro_batch_size": 2, "progress": False}
    evaluate(load(NAME), "digits", None, "apgd-ce", out=tmp_path / "once", **options)
    folder, killed = tmp_path / "again" / "evidence", 0
    while killed < kills:
        process = start(tmp_path / "again", workers)
        before = sum(path.stat().st_size for path in folder.glob("*.journal"))
        deadline = time.monotonic() + 1200
        while sum(path.stat().st_size for path in folder.glob("*.journal")) <= before:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.005)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        killed += 1
    evaluate(load(NAME), "digits", None, "apgd-ce", out=tmp_path / "again", workers=workers, **options)
    assert contents(tmp_path / "again") == contents(tmp_path / "once")
    (path,) = folder.glob("*.json")
    assert Evidence.load(path).doc["run"]["sessions"] == kills + 1


@pytest.mark.skipif(sys.platform == "win32", reason="no kill -9 there")
def test_a_killed_evaluation_goes_on(tmp_path):
    kill_while_it_runs(tmp_path, kills=1, n=6, workers=1)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no kill -9 there")
@pytest.mark.parametrize("workers", [1, 2])
def test_an_evaluation_that_is_killed_twenty_times_gives_the_same_bytes(tmp_path, workers):
    kill_while_it_runs(tmp_path, kills=20, n=80, workers=workers)
