"""Shards, workers, ranks and interruptions leave no trace: their Evidence merges to a single run's bytes."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from robustzoo.cards import Evidence, EvidenceError
from robustzoo.cards.evidence import read_evidence
from robustzoo.cards.holdings import all_evidence
from robustzoo.errors import RobustzooError
from robustzoo.evaluation.evaluate import evaluate
from robustzoo.evaluation.shards import Rank, Shard, merge, shard_documents, this_rank
from robustzoo.reports.comparison import compare
from robustzoo.reports.text import report

N = 14


class Stop(Exception):
    """Stands for an interruption."""


def run(model, out, progress=False, **options) -> Evidence:
    options = {"n": N, "micro_batch_size": 3, "protocol": "apgd-ce+t", **options}
    return evaluate(model, "digits", "linf:1/10", out=out, progress=progress, **options)


def run_with_interruptions(model, out, batches: list[int], **options) -> None:
    """Stop after so many batches of findings, go on, and so forth; the last time without a stop."""
    for limit in batches:
        left = [limit]

        def listen(message, left=left):
            left[0] -= message["event"] == "progress"
            if left[0] < 1:
                raise Stop

        try:
            run(model, out, listen, **options)
            return
        except Stop:
            continue
    run(model, out, **options)


def contents(folder) -> dict[str, bytes]:
    return {
        path.name: Evidence.load(path).deterministic_bytes() if path.suffix == ".json" else path.read_bytes()
        for path in (folder / "evidence").iterdir()
    }


@pytest.fixture(scope="module")
def single(linear, tmp_path_factory) -> dict[str, bytes]:
    out = tmp_path_factory.mktemp("single")
    run(linear, out)
    found = contents(out)
    assert len(found) == 2  # some images are broken, so that there are witnesses
    return found


def assert_merges_to(single, model, out, count: int, batches: list[int], order, workers: int = 1) -> None:
    for index in order:
        run_with_interruptions(model, out, batches, shard=f"{index + 1}/{count}", workers=workers)
    folders = [Shard(index + 1, count).folder(out) for index in order]
    (path,) = merge(folders, out / "merged")
    assert contents(out / "merged") == single
    shards = Evidence.load(path).doc["run"]["shards"]
    assert len(shards) == count and all(shard["workers"] == workers for shard in shards)


@settings(max_examples=3, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    count=st.integers(1, 6),
    batches=st.lists(st.integers(1, 4), max_size=3),
    order=st.randoms(use_true_random=False),
)
def test_shards_and_interruptions_merge_to_the_bytes_of_a_single_run(
    single, linear, tmp_path_factory, count, batches, order
):
    shuffled = list(range(count))
    order.shuffle(shuffled)
    assert_merges_to(single, linear, tmp_path_factory.mktemp("shards"), count, batches, shuffled)


@pytest.mark.slow
def test_shards_of_two_workers_that_are_interrupted_merge_too(single, linear, tmp_path):
    assert_merges_to(single, linear, tmp_path, 2, [3], [1, 0], workers=2)


@pytest.fixture(scope="module")
def shards(linear, tmp_path_factory):
    out = tmp_path_factory.mktemp("shards")
    for i in (1, 2, 3):
        run(linear, out, shard=f"{i}/3")
    return out


def test_the_folder_of_all_shards_may_be_named_alone(shards, single, tmp_path):
    merge([shards], tmp_path)
    assert contents(tmp_path) == single


def test_missing_repeated_and_foreign_shards_are_named(shards, linear, tmp_path):
    one, two, three = (Shard(i, 3).folder(shards) for i in (1, 2, 3))
    with pytest.raises(RobustzooError, match=r"shard 2 of 3 is missing .*evaluate it with --shard 2/3"):
        merge([three, one], tmp_path / "out")
    with pytest.raises(RobustzooError, match=r"shard 2, 3 of 3 is missing"):
        merge([one], tmp_path / "out")
    with pytest.raises(
        RobustzooError, match=r"shard 1 of 3 is there more than once: .*shard-1-of-3.*shard-1-of-3"
    ):
        merge([one, two, three, one], tmp_path / "out")
    run(linear, tmp_path / "other", shard="2/3", seed=1)
    other = Shard(2, 3).folder(tmp_path / "other")
    with pytest.raises(RobustzooError, match=r"different evaluations: seed 0 there, 1 here"):
        merge([one, other, three], tmp_path / "out")
    run(linear, tmp_path / "strange", shard="2/3", protocol="pgd-2")
    with pytest.raises(RobustzooError, match=r"shard 2 of 3 is missing.*other evaluations: .*strange"):
        merge([one, three, tmp_path / "strange"], tmp_path / "out")
    run(linear, tmp_path / "halves", shard="2/2")
    with pytest.raises(RobustzooError, match=r"different evaluations: number of shards 3 there, 2 here"):
        merge([one, tmp_path / "halves", three], tmp_path / "out")
    with pytest.raises(RobustzooError, match=r"no shards in .*--shard i/n"):
        merge([tmp_path], tmp_path / "out")
    with pytest.raises(RobustzooError, match="is no folder"):
        merge([tmp_path / "absent"], tmp_path / "out")
    damaged = shutil.copytree(two, tmp_path / "damaged")
    next((damaged / "evidence").glob("*.safetensors")).unlink()
    with pytest.raises(RobustzooError, match="not beside it"):
        merge([one, damaged, three], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_shards_of_other_weights_do_not_merge(shards, linear, tmp_path):
    weight = linear[1].weight
    weight.data[0, 0] += 1e-3
    try:
        run(linear, tmp_path, shard="2/3")
    finally:
        weight.data[0, 0] -= 1e-3
    with pytest.raises(RobustzooError, match="different evaluations: model differs in weights"):
        merge([Shard(1, 3).folder(shards), tmp_path, Shard(3, 3).folder(shards)], tmp_path / "out")


def test_a_shard_is_never_taken_for_the_whole(shards):
    folder = Shard(1, 3).folder(shards)
    (path,) = (folder / "evidence").glob("*.json")
    with pytest.raises(EvidenceError, match="shard 1 of 3, a part of an evaluation and no result") as refused:
        all_evidence(folder)
    assert str(path) in str(refused.value) and "restore" not in str(refused.value)
    with pytest.raises(EvidenceError, match="part of an evaluation"):
        Evidence.load(path)
    assert read_evidence(path).doc["shard"].keys() == {"index", "count", "weights"}


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "a/b", "1/2/3", "", 0.5, "-1/2"])
def test_what_is_no_shard_is_refused(text, linear):
    with pytest.raises(RobustzooError, match="expected i/n"):
        run(linear, None, shard=text)


def test_more_shards_than_images_are_refused(linear):
    with pytest.raises(RobustzooError, match=r"15 shards .* would share 14 images"):
        run(linear, None, shard="15/15")


def test_ranks_are_read_from_the_launchers_environment():
    assert this_rank({}) is None and this_rank({"RANK": "0", "WORLD_SIZE": "1"}) is None
    assert this_rank({"RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}) == Rank(2, 4, 1)
    assert str(Rank(2, 4, 1).shard) == "3/4"
    for bad in ({"RANK": "4", "WORLD_SIZE": "4"}, {"RANK": "x", "WORLD_SIZE": "4"}):
        with pytest.raises(RobustzooError, match="0 <= RANK < WORLD_SIZE"):
            this_rank(bad)


LAUNCHERS = {
    "torchrun": [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"],
    "deepspeed": ["deepspeed", "--num_accelerators", "2"],
}


@pytest.mark.slow
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_ranks_share_an_evaluation_and_the_first_merges_it(launcher, tmp_path):
    if launcher == "deepspeed":
        pytest.importorskip("deepspeed")
    name = "vit_micro2.digits_linf.at_base"
    arguments = ["robustzoo", "evaluate", name, "--images", "8", "--protocol", "pgd-5", "--out"]
    subprocess.run([sys.executable, "-m", *arguments, str(tmp_path / "single")], check=True)
    for _ in range(2):  # the second time everything is there
        done = subprocess.run(
            [*LAUNCHERS[launcher], "--module", *arguments, str(tmp_path / "ranks")],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("robust accuracy") == 1
        assert contents(tmp_path / "ranks") == contents(tmp_path / "single")


def test_a_shard_is_compared_with_nothing_and_reported_as_a_part(shards):
    one, other = (read_evidence(path) for path in shard_documents(shards)[:2])
    for pair in (([one], [other]), ([other], [one])):
        with pytest.raises(EvidenceError, match=r"this is shard \d of 3"):
            compare(*pair)
    assert report(one).startswith("PART OF A RESULT: this is shard 1 of 3")
