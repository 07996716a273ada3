"""Pinned downloads through the real client: good and corrupt, fresh and cached, offline, refused."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hub_cache import COMMIT, NAME, REPO, make_cache
from huggingface_hub import constants

import robustzoo
from robustzoo.errors import RobustzooError
from robustzoo.hub.fetch import OfflineMiss, fetch_folder
from robustzoo.hub.references import split_reference
from robustzoo.models import read_folder
from robustzoo.registry import Entry, recipe
from robustzoo.registry.digests import sha256_file

REFERENCE = f"hf-hub:{REPO}@{COMMIT}"
OTHER = "f" * 40
PIXELS = torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(2))


def damage(path: Path) -> bytes:
    """Flip one bit of the last tensor, keeping the size; returns the damaged bytes."""
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.resolve().write_bytes(data)
    return bytes(data)


# --- cached: no request at all ---


def test_a_pinned_name_loads_from_a_hand_made_cache_without_a_request(pinned, cache, published, no_request):
    model = robustzoo.load(NAME, cache_dir=cache)
    assert torch.equal(model(PIXELS), read_folder(published)(PIXELS))
    assert (model.name, model.card) == (NAME, "# a card\n")
    assert COMMIT in str(model.folder) and (model.folder / "evidence").is_dir()
    assert not no_request


def test_a_reference_loads_from_a_hand_made_cache_without_a_request(cache, no_request):
    assert robustzoo.load(REFERENCE, cache_dir=cache).name == NAME
    assert not no_request


def test_the_cache_of_the_environment_is_used(pinned, cache, no_request, monkeypatch):
    """HF_HOME and HF_HUB_CACHE decide where it is; the client reads them into this constant."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    assert robustzoo.load(NAME).folder.is_relative_to(cache)
    assert not no_request


# --- the hash matrix: good and corrupt, fresh and cached ---


@pytest.mark.parametrize("name", [NAME, REFERENCE])
def test_fresh_and_good(pinned, hub, tmp_path, published, name, capsys, quick_client):
    model = robustzoo.load(name, cache_dir=tmp_path / "cache", token="hf_secret")
    assert torch.equal(model(PIXELS), read_folder(published)(PIXELS))
    assert model.card == "# a card\n"
    fetched = {path.name for path in model.folder.rglob("*") if path.is_file()}
    assert {"model.safetensors", "config.json", "README.md", "aa-standard.test500.json"} <= fetched
    assert "training_state.bin" not in fetched
    assert set(hub.tokens) == {"Bearer hf_secret"} and not hub.leaked
    assert f"Fetching {REPO} at {COMMIT[:12]}" in capsys.readouterr().err
    hub.requests.clear()
    robustzoo.load(name, cache_dir=tmp_path / "cache")
    assert not hub.requests


@pytest.mark.parametrize("name", [NAME, REFERENCE])
def test_fresh_and_corrupt(pinned, hub, tmp_path, published, name, quick_client):
    hub.corrupt.add("model.safetensors")
    with pytest.raises(RobustzooError) as caught:
        robustzoo.load(name, cache_dir=tmp_path / "cache")
    assert sha256_file(published / "model.safetensors") in str(caught.value)
    command = f"hf download {REPO} --revision {COMMIT} --cache-dir {tmp_path / 'cache'} --force-download"
    assert command in str(caught.value)


@pytest.mark.parametrize("name", [NAME, REFERENCE])
def test_cached_and_corrupt(pinned, cache, published, name, no_request):
    (weights,) = cache.glob("models--*/snapshots/*/model.safetensors")
    damaged = damage(weights)
    with pytest.raises(RobustzooError) as caught:
        robustzoo.load(name, cache_dir=cache)
    advice = f"delete the cached file {weights.resolve()} and download it again:\n  hf download {REPO}"
    hashes = sha256_file(published / "model.safetensors"), sha256_file(weights)
    for word in (*hashes, f"{len(damaged)} bytes", advice):
        assert word in str(caught.value)
    assert weights.read_bytes() == damaged  # reported, never silently deleted
    assert not no_request


def test_a_pin_of_other_weights_is_refused(lock, cache):
    lock(sha256="ab" * 32, bytes=999)
    with pytest.raises(RobustzooError, match=r"expected sha256 (ab){32} \(999 bytes\)"):
        robustzoo.load(NAME, cache_dir=cache)


def test_a_pin_of_another_model_is_refused(lock, published, tmp_path, monkeypatch):
    from robustzoo.hub import references

    lock(sha256=sha256_file(published / "model.safetensors"), bytes=1)  # the name is looked at first
    other = "vit_micro2.digits_linf.at_base"
    pin = Entry(other, recipe(other), references.entry(NAME).weights)
    monkeypatch.setattr(references, "entry", lambda name: pin)
    make_cache(tmp_path / "cache", published)
    with pytest.raises(RobustzooError, match=f"pinned as {other} but holds {NAME}"):
        robustzoo.load(other, cache_dir=tmp_path / "cache")


# --- incomplete caches ---


def test_the_rest_of_an_incomplete_cache_is_fetched(pinned, hub, tmp_path, published, quick_client):
    make_cache(tmp_path / "cache", published, ["config.json", "model.safetensors"])
    assert robustzoo.load(NAME, cache_dir=tmp_path / "cache").card == "# a card\n"
    assert not any(
        "safetensors" in line and line.startswith("GET") and "witness" not in line for line in hub.requests
    )


def test_offline_weights_without_a_card_are_enough(pinned, tmp_path, published, no_request):
    make_cache(tmp_path / "cache", published, ["config.json", "model.safetensors"])
    assert robustzoo.load(NAME, cache_dir=tmp_path / "cache", local_files_only=True).card is None
    assert not no_request


@pytest.mark.parametrize("names", [[], ["config.json"], ["model.safetensors", "README.md"]])
def test_an_offline_miss_names_the_command(pinned, tmp_path, published, no_request, names):
    make_cache(tmp_path / "cache", published, names)
    with pytest.raises(OfflineMiss) as caught:
        robustzoo.load(NAME, cache_dir=tmp_path / "cache", local_files_only=True)
    line = f"hf download {REPO} --revision {COMMIT} --cache-dir {tmp_path / 'cache'}"
    for word in (line, "local_files_only", "HF_HUB_OFFLINE", "HF_HOME"):
        assert word in str(caught.value)
    assert isinstance(caught.value, FileNotFoundError)
    assert not no_request


def test_the_command_has_no_cache_where_the_default_one_is_meant(pinned, tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "default"))
    with pytest.raises(RobustzooError) as caught:
        robustzoo.load(NAME, local_files_only=True)
    assert f"  hf download {REPO} --revision {COMMIT}\n" in str(caught.value)
    assert str(tmp_path / "default") in str(caught.value)


# --- the Hub does not answer, or says no ---


@pytest.mark.parametrize("limit", [3, pytest.param(60, marks=pytest.mark.slow)])
def test_no_connection(pinned, tmp_path, point_client_at, capsys, monkeypatch, limit):
    """The client tries again for about 20 s before it says why."""
    monkeypatch.setenv("ROBUSTZOO_HUB_TIMEOUT", str(limit))
    point_client_at("http://127.0.0.1:9")
    why = r"Connect\w*Error.*" if limit == 60 else "it did not answer for 3 s.*"
    with pytest.raises(
        RobustzooError, match=rf"http://127.0.0.1:9 cannot be reached \({why}\)(.|\n)*hf download"
    ):
        robustzoo.load(NAME, cache_dir=tmp_path / "cache")
    assert "about 20 s; HF_HUB_OFFLINE=1 fails at once" in capsys.readouterr().err


def test_a_cache_that_can_be_no_folder(no_request):
    with pytest.raises(RobustzooError, match=r"the cache 'a.*' cannot be read: embedded null byte"):
        fetch_folder(REPO, COMMIT, cache_dir="a\0b", local_files_only=True)
    assert not no_request


def test_no_such_repository(hub, tmp_path, quick_client):
    with pytest.raises(RobustzooError, match=r"has no repository someone/else(.|\n)*HF_TOKEN"):
        fetch_folder("someone/else", COMMIT, cache_dir=tmp_path)


def test_no_such_commit(hub, tmp_path, quick_client):
    with pytest.raises(RobustzooError, match=f"has no commit {OTHER}"):
        fetch_folder(REPO, OTHER, cache_dir=tmp_path)


def test_gated(hub, tmp_path, quick_client):
    hub.gated = True
    with pytest.raises(RobustzooError, match="is gated: ask for access"):
        fetch_folder(REPO, COMMIT, cache_dir=tmp_path)


def test_a_disk_that_takes_nothing(hub, tmp_path, quick_client):
    (tmp_path / "cache" / f"models--{REPO.replace('/', '--')}").mkdir(parents=True)
    (tmp_path / "cache" / f"models--{REPO.replace('/', '--')}" / "blobs").touch()
    with pytest.raises(RobustzooError, match=r"failed: .*(blobs|directory)(.|\n)*Next: hf download"):
        fetch_folder(REPO, COMMIT, cache_dir=tmp_path / "cache")


NO_PROGRESS = "for 2 s, and the limit is 2 s without progress"
TO_WAIT = "it asks to wait for 360[01] s, and the limit is 60 s"


@pytest.mark.parametrize(
    ("fault", "limit", "words"),
    [
        ("file stall", 2, NO_PROGRESS),
        ("trickle", 2, NO_PROGRESS),
        ("busy", 60, TO_WAIT),
        pytest.param("stall", 2, NO_PROGRESS, marks=pytest.mark.slow),
        pytest.param("file trickle", 2, NO_PROGRESS, marks=pytest.mark.slow),
        pytest.param("file busy", 60, TO_WAIT, marks=pytest.mark.slow),
    ],
)
def test_a_hub_that_makes_no_progress_ends_in_words(hub, tmp_path, monkeypatch, fault, limit, words):
    """The client alone waits for ever, or for an hour."""
    monkeypatch.setenv("ROBUSTZOO_HUB_TIMEOUT", str(limit))
    hub.fault = fault
    with pytest.raises(
        RobustzooError, match=rf"{words}(.|\n)*ROBUSTZOO_HUB_TIMEOUT=SECONDS(.|\n)*hf download"
    ):
        fetch_folder(REPO, COMMIT, cache_dir=tmp_path)


def test_a_page_in_place_of_an_answer(hub, tmp_path, quick_client):
    hub.fault = "html"
    with pytest.raises(RobustzooError, match="does not answer as a Hub does"):
        fetch_folder(REPO, COMMIT, cache_dir=tmp_path)


@pytest.mark.parametrize("seconds", ["soon", "0", "-1", "inf", "nan"])
def test_a_limit_that_is_none(hub, tmp_path, monkeypatch, seconds):
    monkeypatch.setenv("ROBUSTZOO_HUB_TIMEOUT", seconds)
    with pytest.raises(
        RobustzooError, match=f"ROBUSTZOO_HUB_TIMEOUT={seconds}; expected a number of seconds"
    ):
        fetch_folder(REPO, COMMIT, cache_dir=tmp_path)


# --- references ---


def test_a_reference_is_a_repository_and_a_revision():
    assert split_reference(f"hf-hub:{REPO}@{COMMIT}") == (REPO, COMMIT)
    assert split_reference(f"{REPO}@v1.0") == (REPO, "v1.0") and split_reference(REPO) == (REPO, "")


@pytest.mark.parametrize("revision", ["@v1", "@main", ""], ids=["tag", "branch", "none"])
def test_a_tag_is_resolved_once_and_its_commit_printed(hub, tmp_path, capsys, revision, quick_client):
    model = robustzoo.load(f"hf-hub:{REPO}{revision}", cache_dir=tmp_path, token="hf_secret")
    assert model.name == NAME and COMMIT in str(model.folder)
    assert f"hf-hub:{REPO}{revision} is commit {COMMIT} today" in capsys.readouterr().err
    resolved = [
        line for line in hub.requests if line.startswith(f"GET /api/models/{REPO}") and "/tree" not in line
    ]
    asked = [line for line in resolved if COMMIT not in line]
    assert len(asked) == 1 and set(hub.tokens) == {"Bearer hf_secret"}
    hub.requests.clear()
    robustzoo.load(f"hf-hub:{REPO}@{COMMIT}", cache_dir=tmp_path)
    assert not hub.requests
    with pytest.raises(RobustzooError, match=r"names no commit.*local_files_only is set.*@COMMIT"):
        robustzoo.load(f"hf-hub:{REPO}{revision}", cache_dir=tmp_path, local_files_only=True)


def test_a_repository_that_moved_is_followed(hub, tmp_path, quick_client):
    hub.moved["someone/former"] = REPO
    assert robustzoo.load(f"hf-hub:someone/former@{COMMIT}", cache_dir=tmp_path).name == NAME


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        (f"{REPO}@", "'' is no commit, tag or branch"),
        (f"{REPO}@a b", "is no commit, tag or branch"),
        (f"{REPO}@-x", "is no commit, tag or branch"),
        (f"{REPO}@{'v' * 5000}", "is no commit, tag or branch"),
        (f"model@{COMMIT}", "no Hub repository"),
        (f"a/b/c@{COMMIT}", "no Hub repository"),
        (f"a/../b@{COMMIT}", "no Hub repository"),
        (f"../b@{COMMIT}", "no Hub repository"),
        (f"a/b\n@{COMMIT}", "no Hub repository"),
        (f"a/b--c@{COMMIT}", "no Hub repository"),
        (f"a/{'b' * 5000}@{COMMIT}", "no Hub repository"),
        (f"@{COMMIT}", "no Hub repository"),
        ("", "no Hub repository"),
    ],
)
def test_anything_else_is_refused_in_words(reference, words, no_request):
    with pytest.raises(RobustzooError, match=words):
        robustzoo.load(f"hf-hub:{reference}")
    assert not no_request


# --- many at once, and cut ones ---

_MANY = """
import os, sys
import robustzoo
from robustzoo.models import read_folder  # everything slow, once
cache, reference, number = sys.argv[1:]
def one():
    try:
        model = robustzoo.load(reference, cache_dir=cache)
        os._exit(0 if model.name else 1)
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        os._exit(2)
children = [os.fork() or one() for _ in range(int(number))]
print(sorted({os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children}))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("number", [5, pytest.param(20, marks=pytest.mark.slow)])
def test_many_processes_load_one_uncached_model_with_one_download(hub, tmp_path, number):
    done = subprocess.run(
        [sys.executable, "-c", _MANY, str(tmp_path), REFERENCE, str(number)],
        env=os.environ
        | {"PYTHONPATH": str(Path(robustzoo.__file__).parents[1]), "HF_ENDPOINT": hub.endpoint},
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert done.stdout.strip() == "[0]", done.stderr
    fetched = [line for line in hub.requests if line.startswith("GET") and line.endswith("model.safetensors")]
    assert len([line for line in fetched if "/blobs/" in line]) == 1
    assert done.stderr.count("Fetching someone") == 1 and "another process is fetching" in done.stderr


@pytest.mark.parametrize("fault", ["cut", "lost", "file cut"])
def test_a_connection_that_breaks_ends_in_words_and_the_next_try_succeeds(hub, tmp_path, quick_client, fault):
    hub.fail(fault)
    with pytest.raises(RobustzooError, match=r"cannot be reached|the connection to .* broke|Consistency"):
        robustzoo.load(REFERENCE, cache_dir=tmp_path)
    hub.fail("")
    assert robustzoo.load(REFERENCE, cache_dir=tmp_path).name == NAME


# --- the environment variables of the client, in processes of their own ---


def fetch_in_a_process(commit: str, **environment: str) -> subprocess.CompletedProcess:
    code = f"from robustzoo.hub.fetch import fetch_folder; print(fetch_folder({REPO!r}, {commit!r}))"
    return subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(Path(robustzoo.__file__).parents[1])} | environment,
        capture_output=True,
        text=True,
        timeout=1200,
    )


def test_environment_variables_of_the_client(hub, tmp_path):
    """HF_ENDPOINT, HF_HOME and HF_TOKEN fetch; HF_HUB_OFFLINE then finds it, and misses at once."""
    environment = {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(tmp_path), "HF_TOKEN": "hf_of_environment"}
    fresh = fetch_in_a_process(COMMIT, **environment)
    folder = Path(fresh.stdout.strip())
    assert fresh.returncode == 0 and folder.is_relative_to(tmp_path / "hub"), fresh.stderr
    assert read_folder(folder).name == NAME
    assert "Bearer hf_of_environment" in hub.tokens and not hub.leaked
    hub.requests.clear()
    cached = fetch_in_a_process(COMMIT, HF_HUB_OFFLINE="1", **environment)
    assert cached.stdout == fresh.stdout
    missed = fetch_in_a_process(OTHER, HF_HUB_OFFLINE="1", **environment)
    assert re.search(rf"OfflineMiss: .*HF_HUB_OFFLINE is set(.|\n)*--revision {OTHER}", missed.stderr)
    assert not hub.requests
