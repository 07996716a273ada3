"""Repositories in timm's layout, through the real client: pinned, named by commit, normalised inside."""

from __future__ import annotations

import json
import shutil

import pytest
import timm
import torch
from hub_cache import COMMIT, NAME, REPO
from hub_server import HubServer
from timm.models import save_for_hf

from robustzoo.cli.models import open_model
from robustzoo.errors import RobustzooError
from robustzoo.evaluation.prepare import identify
from robustzoo.hub.fetch import pin
from robustzoo.hub.load import load_repository
from robustzoo.models.timm_models import fold, timm_folder, timm_model

TIMM_REPO, ARCHITECTURE = "someone/a-robust-network", "test_resnet"


@pytest.fixture(scope="module")
def network():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return timm.create_model(ARCHITECTURE, num_classes=7).eval()


@pytest.fixture(scope="module")
def repository(network, tmp_path_factory):
    folder = tmp_path_factory.mktemp("repository") / "timm"
    save_for_hf(network, str(folder), model_config={"num_classes": 7}, safe_serialization=True)
    (folder / "README.md").write_text("# not ours\n")
    return folder


@pytest.fixture
def server(repository, point_client_at, tmp_path, monkeypatch):
    copy = shutil.copytree(repository, tmp_path / "repository")
    cache = str(tmp_path / "cache")
    for module in ("huggingface_hub.constants", "huggingface_hub.file_download"):
        monkeypatch.setattr(f"{module}.HF_HUB_CACHE", cache, raising=False)
    monkeypatch.setattr("huggingface_hub._snapshot_download.constants.HF_HUB_CACHE", cache)
    with HubServer(TIMM_REPO, COMMIT, copy) as running:
        point_client_at(running.endpoint)
        yield running


def test_a_repository_loads_with_its_normalisation(server, network, capsys):
    model = load_repository(f"hf-hub:{TIMM_REPO}")
    assert f"is commit {COMMIT} today" in capsys.readouterr().err
    x = torch.rand(2, 3, 160, 160, generator=torch.Generator().manual_seed(1))
    cfg = network.pretrained_cfg
    mean, std = (torch.tensor(cfg[key]).view(3, 1, 1) for key in ("mean", "std"))
    with torch.no_grad():
        assert torch.allclose(model(x), network((x - mean) / std), atol=1e-6)
    assert model.input_shape == tuple(cfg["input_size"]) and not model.training
    assert identify(model).name == f"hf-hub:{TIMM_REPO}@{COMMIT}"
    with pytest.raises(RobustzooError, match=r"expected \(B, 3, 160, 160\)"):
        model(torch.rand(2, 3, 32, 32))
    with pytest.raises(RobustzooError, match="normalises by itself"):
        model((x - mean) / std)
    asked = len(server.requests)
    assert load_repository(f"hf-hub:{TIMM_REPO}@{COMMIT}").name == model.name
    assert len(server.requests) == asked, "a commit that is cached costs no request"


def test_our_own_repositories_are_recognised(hub, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub._snapshot_download.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    model = load_repository(f"hf-hub:{REPO}@{COMMIT}")
    assert model.name == NAME and model.recipe is not None


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("hf-hub:someone/absent", "does not give hf-hub:someone/absent"),
        (f"hf-hub:{TIMM_REPO}@nowhere", "does not give"),
        ("hf-hub:no-owner", "no Hub repository"),
    ],
)
def test_what_the_hub_does_not_have(server, reference, words):
    with pytest.raises(RobustzooError, match=words):
        pin(reference)


def test_what_is_no_folder_of_timm(server):
    config = server.folder / "config.json"
    stated = json.loads(config.read_text())
    config.write_text(json.dumps({**stated, "architecture": "no_such_network"}))
    with pytest.raises(RobustzooError, match="no_such_network"):
        load_repository(f"hf-hub:{TIMM_REPO}@{COMMIT}")


def test_a_repository_without_safetensors(server):
    (server.folder / "model.safetensors").rename(server.folder / "pytorch_model.bin")
    with pytest.raises(RobustzooError, match=r"has no model.safetensors; expected .* timm's layout"):
        load_repository(f"hf-hub:{TIMM_REPO}@{COMMIT}")


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        (
            "config.json",
            {"model_type": "vit", "architectures": ["ViTForImageClassification"]},
            "of transformers",
        ),
        ("open_clip_config.json", {"model_cfg": {}}, "of open_clip"),
        ("config.json", {"a": 1}, "names no architecture of timm"),
    ],
    ids=["transformers", "open_clip", "other"],
)
def test_layouts_of_other_libraries_are_named(tmp_path, file, content, words):
    (tmp_path / file).write_text(json.dumps(content))
    with pytest.raises(RobustzooError, match=f"x .*{words}.*FILE.py:FUNCTION"):
        timm_folder(tmp_path, "x")


def test_models_of_timm_by_name():
    model = timm_model(ARCHITECTURE, pretrained=False)
    assert model.name == f"timm:{ARCHITECTURE}" and model.input_shape == (3, 160, 160)
    with pytest.raises(
        RobustzooError, match=r"timm cannot make resnet18x: .*Did you mean resnet18.*Expected a name"
    ):
        timm_model("resnet18x")
    with pytest.raises(RobustzooError, match="has no classifier"):
        fold(timm.create_model(ARCHITECTURE, num_classes=0), "x")
    bare = timm.create_model(ARCHITECTURE)
    bare.pretrained_cfg = {}
    with pytest.raises(RobustzooError, match=r"does not say how it wants its pixels.*FILE.py:FUNCTION"):
        fold(bare, "x")


# --- names of timm ---


@pytest.fixture
def kept_by_timm(server, network, monkeypatch):
    """A name of timm whose weights lie in the repository of `server`."""
    tag = timm.models.get_pretrained_cfg(ARCHITECTURE).tag
    cfg = timm.models._registry._model_pretrained_cfgs[f"{ARCHITECTURE}.{tag}"]
    monkeypatch.setattr(cfg, "hf_hub_id", TIMM_REPO)
    monkeypatch.setattr(cfg, "num_classes", 7)
    return f"timm:{ARCHITECTURE}"


def test_weights_of_timm_are_fetched_once(kept_by_timm, server, network):
    model = open_model(kept_by_timm).module
    assert model.name == kept_by_timm
    assert all(
        torch.equal(a, b) for a, b in zip(model.network.parameters(), network.parameters(), strict=True)
    )
    asked = len(server.requests)
    open_model(kept_by_timm)
    assert len(server.requests) == asked


@pytest.mark.parametrize("fault", ["stall", "file trickle", "html"])
def test_a_hub_that_does_not_give_weights_of_timm_ends_in_words(kept_by_timm, server, monkeypatch, fault):
    """The client of timm alone waits for ever."""
    monkeypatch.setenv("ROBUSTZOO_HUB_TIMEOUT", "2")
    server.fault = fault
    with pytest.raises(RobustzooError, match=f"does not give the weights of timm's model .{TIMM_REPO}"):
        open_model(kept_by_timm)
