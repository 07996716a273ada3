"""Publishing to the Hub through the real client: whole or not at all, whatever breaks."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import timm
import torch
from click.testing import CliRunner
from hub_server import READER, WRITER
from huggingface_hub import constants
from torch import nn

import robustzoo
from robustzoo.cards.claims import CardError
from robustzoo.cli import group
from robustzoo.data import open_data
from robustzoo.errors import RobustzooError
from robustzoo.hub import publish
from robustzoo.hub.push import look, prepare, push
from robustzoo.leaderboard.lines import read_model
from robustzoo.models import pixel_model, read_folder, write_folder
from robustzoo.models.importing import import_checkpoint
from robustzoo.registry import entries, recipe
from robustzoo.registry.digests import sha256_file

NAME = "vit_micro2.digits_linf.at_base"
REPO = "acme/at_base"
PIXELS = torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(2))
pytestmark = pytest.mark.filterwarnings("ignore:.*does not hold the published weights")


def made(folder, overrides=None, seed=0):
    wanted = recipe(NAME, overrides)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        write_folder(folder, pixel_model(wanted), wanted)
    model = robustzoo.load(f"local-dir:{folder}")
    robustzoo.evaluate(model, "digits", protocol="pgd-1", n=8, out=folder, progress=False)
    return folder


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return made(tmp_path_factory.mktemp("source") / "model")


@pytest.fixture
def folder(source, tmp_path):
    copy = shutil.copytree(source, tmp_path / "model")
    publish.write_card(copy, licence="apache-2.0", said={"author": "Ada", "contact": "ada@example.org"})
    return copy


@pytest.fixture
def writer(hub, quick_client, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", WRITER)
    return hub


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout of its own, whose lock file is empty."""
    package = tmp_path / "checkout" / "robustzoo"
    (package.parent / "model_cards").mkdir(parents=True)
    package.mkdir()
    (package / "weights.lock.json").write_text('{"schema": 1, "models": []}')
    monkeypatch.setattr(publish, "_PACKAGE", package)
    monkeypatch.setattr(entries, "LOCK_FILE", package / "weights.lock.json")
    return package


def here(publication):
    return {name: path.read_bytes() for name, path in publication.files.items()} | publication.made


def there(server, repo=REPO, revision="main"):
    repository = server.repositories[repo]
    return {
        name: data for name, data in repository.files(repository.resolve(revision)).items() if name[0] != "."
    }


def test_publish_then_load_by_name_in_another_cache_and_verify(
    folder, writer, checkout, tmp_path, monkeypatch
):
    publication = prepare(folder, REPO)
    state, difference = look(publication)
    assert state is None and difference.new == sorted(publication.ids) and not difference.changed
    done = push(publication)
    assert there(writer) == here(publication)
    assert done.tag == "v1" and writer.repositories[REPO].tags == {"v1": done.commit}
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "another"))
    model = robustzoo.load(NAME)
    assert torch.equal(model(PIXELS), read_folder(folder)(PIXELS)) and done.commit in str(model.folder)
    assert robustzoo.verify(NAME, progress=False).outcome == "consistent"
    kept = (checkout.parent / "model_cards" / f"{NAME}.md").read_text()
    assert f"![Accuracy after each attack]({writer.endpoint}/{REPO}/resolve/{done.commit}/evidence/" in kept
    assert kept.replace(f"{writer.endpoint}/{REPO}/resolve/{done.commit}/", "") == model.card
    assert "- Author: Ada" in model.card and "license: apache-2.0" in model.card
    assert robustzoo.load(f"hf-hub:{REPO}@v1").name == NAME
    assert not writer.leaked and f"Bearer {WRITER}" not in str(writer.requests)
    again = push(prepare(folder, REPO))
    assert again.commit == done.commit and len(writer.repositories[REPO].commits) == 2


def test_results_for_the_hubs_leaderboards_go_along(folder, writer, checkout, monkeypatch):
    monkeypatch.setattr("robustzoo.hub.push.eval_results", lambda documents, repo: f"- {repo}\n")
    done = push(prepare(folder, REPO, lock=False))
    repository = writer.repositories[REPO]
    assert repository.files(done.commit)[".eval_results/robustzoo.yaml"] == f"- {REPO}\n".encode()
    repository.commits[done.commit][".eval_results/theirs.yaml"] = b"[]"
    # Where the folder makes none any more, what was said there goes.
    monkeypatch.setattr("robustzoo.hub.push.eval_results", lambda documents, repo: None)
    publication = prepare(folder, REPO, lock=False)
    assert look(publication)[1].lines() == ["- .eval_results/robustzoo.yaml"]
    assert {*repository.files(push(publication).commit)} == {
        *publication.ids,
        ".gitattributes",
        ".eval_results/theirs.yaml",
    }


def test_less_is_not_published_over_more_of_the_same_weights(folder, writer, checkout, tmp_path):
    more = shutil.copytree(folder, tmp_path / "more")
    model = robustzoo.load(f"local-dir:{more}")
    robustzoo.evaluate(model, "digits", protocol="pgd-1", n=9, out=more, progress=False)
    first = push(prepare(more, REPO, lock=False))
    for arguments in ([], ["--create-pr"]):
        done = CliRunner().invoke(group, ["publish", str(folder), "--repo", REPO, *arguments])
        assert isinstance(done.exception, CardError), done.output
        assert re.search(
            r"replace pgd-1 at linf:1/10 on 9 images .* by less: pgd-1 .* on 8 images.*evaluate "
            rf"{folder}` so, or delete it there first \(hf repos delete-files {REPO} evidence/\S*9\S*json\)",
            str(done.exception),
        )
    assert writer.repositories[REPO].commit == first.commit and not writer.repositories[REPO].pulls
    gone = [name for name in there(writer) if name.startswith("evidence/") and "9" in name]
    for name in gone:  # the way out
        del writer.repositories[REPO].commits[first.commit][name]
    assert push(prepare(folder, REPO, lock=False)).tag == "v2"
    # More of them may replace it, and what other weights had is only listed.
    shutil.rmtree(folder / "evidence")
    model = robustzoo.load(f"local-dir:{folder}")
    robustzoo.evaluate(model, "digits", protocol="pgd-1", n=10, out=folder, progress=False)
    other = made(tmp_path / "other", seed=1)
    publish.write_card(other, licence="apache-2.0")
    for place in (folder, other):
        publication = prepare(place, REPO, lock=False)
        gone = {name for name in there(writer) if re.fullmatch(r"evidence/pgd.*json", name)}
        assert len(gone) == 1 and {f"- {name}" for name in gone} < {*look(publication)[1].lines()}
        push(publication)
        assert there(writer) == here(publication)


def test_what_changes_is_one_commit_with_its_parent(folder, writer, checkout):
    first = push(prepare(folder, REPO, lock=False))
    repository = writer.repositories[REPO]
    repository.commits[first.commit]["evidence/older.json"] = b"{}"
    repository.commits[first.commit]["notes.txt"] = b"theirs"
    publish.write_card(folder, said={"author": "Ada Lovelace"})
    publication = prepare(folder, REPO, lock=False)
    assert look(publication)[1].lines() == ["~ README.md", "- evidence/older.json"]
    second = push(publication)
    assert second.tag == "v2" and there(writer) == {**here(publication), "notes.txt": b"theirs"}
    assert "Author: Ada Lovelace" in publication.card and publication.card.count("Author:") == 1
    publish.write_card(folder, said={"author": "Ada"})
    writer.uploads.race = lambda found: setattr(found, "commit", found._add({"README.md": b"another's"}))
    with pytest.raises(RobustzooError, match=f"someone changed {REPO} meanwhile"):
        push(prepare(folder, REPO, lock=False))
    assert there(writer) == {"README.md": b"another's"}
    assert push(prepare(folder, REPO, lock=False)).tag == "v3"


EVERY = range(100)  # of fewer requests


@pytest.mark.parametrize(
    ("fault", "places"),
    [
        ("cut", (0, 8)),
        ("lost", (5, 10)),
        ("403", (2, 9)),
        *(pytest.param(fault, EVERY, marks=pytest.mark.slow) for fault in ("cut", "lost", "403", "503")),
    ],
    ids=lambda value: "at every request" if value == EVERY else str(value),
)
def test_whatever_breaks_leaves_nothing_or_a_whole_commit_and_the_second_try_finishes(
    folder, writer, checkout, tmp_path, monkeypatch, fault, places
):
    """At a request, from it on."""
    publication = prepare(folder, REPO)
    whole, caches = here(publication), 0
    for after in places:
        writer.repositories.pop(REPO, None)
        writer.uploads.large.clear()
        entries.write_lock([])
        writer.fail(fault, after)
        try:
            push(publication)
        except RobustzooError as error:
            assert str(error).strip()
        else:
            break
        writer.fail("")
        if REPO in writer.repositories:
            assert there(writer) in ({}, whole), after
        assert not entries.read_lock(), after  # so no name loads
        done = push(publication)
        assert there(writer) == whole and writer.repositories[REPO].tags == {"v1": done.commit}
        assert len(writer.repositories[REPO].commits) == 2, "one commit beside the Hub's own first"
    writer.fail("")
    assert (after > 10 or places != EVERY) and not writer.leaked
    for after in places:  # and fetching it
        caches += 1
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / f"cache{caches}"))
        writer.fail(fault, after)
        try:
            model = robustzoo.load(NAME)
        except RobustzooError:
            writer.fail("")
            model = robustzoo.load(NAME)
        else:
            caches = 0
        assert sha256_file(model.folder / "model.safetensors") == publication.folder.sha256
        assert model.card == publication.card or fault != "403"
        if caches == 0:
            break
    assert after > 3 or places != EVERY


@pytest.mark.slow
def test_a_hub_that_stalls_at_any_request_ends_and_the_second_try_finishes(
    folder, hub, checkout, monkeypatch
):
    monkeypatch.setenv("HF_TOKEN", WRITER)
    monkeypatch.setenv("ROBUSTZOO_HUB_TIMEOUT", "2")
    publication = prepare(folder, REPO)
    for after in range(100):
        hub.repositories.pop(REPO, None)
        hub.uploads.large.clear()
        entries.write_lock([])
        hub.fail("stall", after)
        try:
            push(publication)
            break
        except RobustzooError as error:
            assert "ROBUSTZOO_HUB_TIMEOUT" in str(error) or "cannot be reached" in str(error)
        hub.fail("")
        assert REPO not in hub.repositories or there(hub) in ({}, here(publication))
        assert not entries.read_lock()
        push(publication)
        assert there(hub) == here(publication)
    assert after > 10


def test_an_upload_that_stalls_ends_in_words_and_the_second_try_finishes(folder, hub, checkout, monkeypatch):
    """In the process of its own, which has a limit that the client has not."""
    monkeypatch.setenv("HF_TOKEN", WRITER)
    monkeypatch.setenv("ROBUSTZOO_HUB_TIMEOUT", "2")
    publication = prepare(folder, REPO)
    hub.fail("file stall")
    with pytest.raises(
        RobustzooError, match=r"stopped, uploading: .*2 s without progress(.|\n)*the same command"
    ):
        push(publication)
    assert there(hub) == {}
    hub.fail("")
    monkeypatch.setenv("ROBUSTZOO_HUB_TIMEOUT", "60")
    push(publication)
    assert there(hub) == here(publication)


def test_large_files_go_in_parts(folder, writer, checkout):
    writer.uploads.part_size = 50_000
    push(prepare(folder, REPO))
    assert len([line for line in writer.requests if line.startswith("PUT")]) > 4
    assert not writer.leaked


@pytest.mark.parametrize(
    ("token", "words"),
    [(READER, "may not write there.*--create-pr"), ("hf_wrong", "does not know this account")],
)
def test_who_may_not_write_is_told_and_nothing_is_there(folder, writer, checkout, monkeypatch, token, words):
    monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(RobustzooError, match=words):
        push(prepare(folder, REPO))
    assert REPO not in writer.repositories


def test_the_command(folder, writer, checkout):
    def run(*arguments):
        return CliRunner().invoke(group, ["publish", str(folder), "--repo", REPO, *arguments])

    dry = run("--dry-run")
    assert dry.exit_code == 0 and "a new repository" in dry.stdout and "+ model.safetensors" in dry.stdout
    assert "nothing was changed" in dry.stdout and REPO not in writer.repositories
    done = run("--private")
    commit = writer.repositories[REPO].commit
    assert done.exit_code == 0 and f'robustzoo.load("hf-hub:{REPO}@{commit}")' in done.stdout
    assert writer.repositories[REPO].private and not entries.read_lock(), "a private one is not locked"
    publish.write_card(folder, said={"citation": "@misc{x}"})
    for _ in range(2):  # the second finds the first's proposal
        proposed = run("--create-pr")
        assert f"proposed: {writer.endpoint}/{REPO}/discussions/1" in proposed.stdout, proposed.output
    assert len(writer.repositories[REPO].pulls) == 1 and writer.repositories[REPO].commit == commit
    assert CliRunner().invoke(group, ["publish", str(folder), "--private"]).exit_code == 2


def test_changed_recipes_go_by_their_own_names(tmp_path, writer, checkout):
    folder = made(tmp_path / "changed", {"base_lr": 0.5})
    publish.write_card(folder, licence="cc-by-4.0")
    done = push(prepare(folder, REPO))
    assert done.entry is None and not entries.read_lock()
    model = robustzoo.load(done.reference, cache_dir=tmp_path / "cache")
    assert model.name.startswith(f"{NAME}+") and "license: cc-by-4.0" in model.card


def test_a_registry_name_is_not_for_other_weights_outside_the_zoo(folder, writer):
    """The bundled model of that name is another one."""
    publication = prepare(folder, REPO)
    assert (
        not publication.locked and f"# {NAME} (weights {publication.folder.sha256[:12]})" in publication.card
    )


def imported(tmp_path, architecture):
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    if architecture.startswith("timm:"):
        network = timm.create_model(architecture.removeprefix("timm:"), num_classes=10, in_chans=1)
    torch.save(network.state_dict(), tmp_path / "a.pth")
    out, one = tmp_path / "imported", {"threat_model": "linf:1/10", "mean": (0.5,), "std": (0.5,)}
    more = {"model_args": {"in_chans": 1}} if architecture.startswith("timm:") else {}
    digits = open_data("digits")
    import_checkpoint(tmp_path / "a.pth", architecture, out, **one, **more, license="mit", data=digits)
    return out


def test_an_imported_model_of_timm_is_published_and_loads(tmp_path, writer, checkout):
    folder = imported(tmp_path, "timm:resnet10t")
    robustzoo.evaluate(robustzoo.load(folder), "digits", protocol="pgd-1", n=8, out=folder, progress=False)
    done = push(prepare(folder, REPO))
    assert done.entry is None and not entries.read_lock()
    assert robustzoo.load(done.reference, cache_dir=tmp_path / "cache").name == "import:a"


def test_code_of_an_imported_model_is_not_published(tmp_path, writer, checkout):
    (tmp_path / "net.py").write_text(
        "from torch import nn\ndef net(): return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))\n"
    )
    folder = imported(tmp_path, f"{tmp_path / 'net.py'}:net")
    with pytest.raises(CardError, match="code in network_"):
        prepare(folder, REPO)
    with pytest.raises(CardError, match="was imported"):
        publish.publish_bundled(folder)
    with pytest.raises(RobustzooError, match="was imported"):
        read_model(folder)


def damage(folder, change):
    (path,) = (folder / "evidence").glob("*.json")
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


BAD = {
    "no evidence": (lambda f: shutil.rmtree(f / "evidence"), "no evidence"),
    "no witnesses": (lambda f: without_witnesses(f), "is missing"),
    "other weights": (
        lambda f: damage(f, lambda d: d["model"].update(sha256="0" * 64)),
        "about weights 0000",
    ),
    "other images": (
        lambda f: damage(f, lambda d: d["dataset"].update(digest="0" * 64)),
        "not about the images",
    ),
    "no licence": (lambda f: unlicensed(f), "has not licensed these weights.*--licence"),
}


def without_witnesses(folder):
    """Of a model that has some."""
    shutil.rmtree(folder)
    shutil.copytree(Path(robustzoo.__file__).parent / "bundled" / NAME, folder)
    (path,) = (folder / "evidence").glob("*.safetensors")
    path.unlink()


def unlicensed(folder):
    text = (folder / "config.json").read_text()
    (folder / "config.json").write_text(text.replace('"license": "apache-2.0"', '"license": "unknown"'))


@pytest.mark.parametrize("bad", BAD)
def test_what_nobody_could_check_or_use_is_not_published(folder, writer, checkout, bad):
    change, words = BAD[bad]
    change(folder)
    with pytest.raises((CardError, RobustzooError), match=words):
        prepare(folder, REPO)
    assert not writer.requests


def test_download_to_a_folder_for_a_machine_without_a_network(folder, writer, checkout, tmp_path, no_request):
    target = tmp_path / "carried"
    done = CliRunner().invoke(group, ["download", str(folder), "--to", str(target)])
    assert done.exit_code == 0 and f"local-dir:{target}" in done.stdout, done.output
    names = {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}
    assert {path.relative_to(target) for path in target.rglob("*") if path.is_file()} == names
    assert CliRunner().invoke(group, ["download", str(folder), "--to", str(target)]).exit_code == 0
    (target / "config.json").write_text("{}")
    refused = CliRunner().invoke(group, ["download", str(folder), "--to", str(target)])
    assert refused.exit_code != 0 and "holds something else" in str(refused.exception)
    assert (target / "config.json").read_text() == "{}" and not no_request
