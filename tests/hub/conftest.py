"""A published folder, a cache tree made by hand, a loopback Hub, and a lock file that pins them."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from huggingface_hub import constants, file_download

from robustzoo.hub import client, publish
from robustzoo.models import pixel_model, write_folder
from robustzoo.registry import Entry, Weights, entries, recipe
from robustzoo.registry.digests import sha256_file

sys.path.insert(0, str(Path(__file__).parent))  # --import-mode=importlib leaves sys.path alone
from hub_cache import COMMIT, NAME, REPO, make_cache
from hub_server import HubServer


@pytest.fixture(scope="session")
def published(tmp_path_factory) -> Path:
    """A model folder as it lies on the Hub: weights, configuration, card, evidence and a stray file."""
    wanted = recipe(NAME)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = pixel_model(wanted)
    folder = tmp_path_factory.mktemp("published") / "model"
    write_folder(folder, model, wanted)
    (folder / "README.md").write_text("# a card\n")
    (folder / "evidence").mkdir()
    (folder / "evidence" / "aa-standard.test500.json").write_text("{}\n")
    (folder / "evidence" / "aa-standard.test500.witness.safetensors").write_bytes(bytes(200))
    (folder / "training_state.bin").write_bytes(b"never fetched")
    return folder


@pytest.fixture
def lock(tmp_path, monkeypatch):
    """lock(source=..., path=..., sha256=...): pin NAME in a lock file of the test's own."""
    file = tmp_path / "weights.lock.json"
    monkeypatch.setattr(entries, "LOCK_FILE", file)

    def pin(**changes):
        place = {"source": "hub", "path": None, "repo": REPO, "commit": COMMIT}
        weights = Weights(**place | {"sha256": "0" * 64, "bytes": 1} | changes)
        entries.write_lock([Entry(NAME, recipe(NAME), weights)], file)

    return pin


@pytest.fixture
def pinned(lock, published):
    """NAME pinned to the published folder at REPO and COMMIT."""
    weights = published / "model.safetensors"
    lock(sha256=sha256_file(weights), bytes=weights.stat().st_size)


@pytest.fixture
def cache(tmp_path, published) -> Path:
    """A cache made by hand that holds the published folder."""
    make_cache(tmp_path / "cache", published)
    return tmp_path / "cache"


@pytest.fixture
def no_request(monkeypatch) -> list:
    """Refuse every connection, loopback too; the list of attempts must stay empty."""
    attempts = []

    def refuse(*args, **kwargs):
        attempts.append(args)
        raise ConnectionRefusedError("no request is allowed here")

    for name in ("connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, name, refuse)
    monkeypatch.setattr("robustzoo.hub.fetch.subprocess.run", refuse)  # which would make one
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    return attempts


@pytest.fixture
def point_client_at(monkeypatch):
    """point_client_at(endpoint): what HF_ENDPOINT does at the client's import."""

    def point(endpoint: str) -> None:
        monkeypatch.setattr(constants, "ENDPOINT", endpoint)
        template = endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        for module in (constants, file_download):  # older clients copy it on import
            monkeypatch.setattr(module, "HUGGINGFACE_CO_URL_TEMPLATE", template, raising=False)

    return point


@pytest.fixture
def quick_client(monkeypatch):
    """Requests in this process, by the real client, which waits for nothing between its tries."""

    def run(command, *, input, **options):
        answer = json.dumps(client.answer_to(json.loads(input)))
        return SimpleNamespace(stdout=answer.encode(), returncode=0)

    monkeypatch.setattr("robustzoo.hub.fetch.subprocess.run", run)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")


@pytest.fixture
def hub(published, point_client_at):
    """A running loopback Hub that has the published folder, and the client pointed at it."""
    with HubServer(REPO, COMMIT, published) as server:
        point_client_at(server.endpoint)
        yield server


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout of its own to publish into."""
    package = tmp_path / "checkout" / "robustzoo"
    (package / "bundled").mkdir(parents=True)
    (package.parent / "model_cards").mkdir()
    lock = package / "weights.lock.json"
    lock.write_text('{"schema": 1, "models": []}')
    monkeypatch.setattr(publish, "_PACKAGE", package)
    monkeypatch.setattr(entries, "_PACKAGE", package)
    monkeypatch.setattr(entries, "LOCK_FILE", lock)
    return package
