"""`robustzoo ci`, the Action, the hook and the workflows, as far as a shell can run them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from robustzoo.cards import Evidence
from robustzoo.cli import group
from robustzoo.registry import entry, list_models

ROOT = Path(__file__).resolve().parents[2]
NAME = "vit_micro2.digits_linf.at_base"
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
GIT = {f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}


def shell(command: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess:
    """As a runner's `shell: bash`, with this checkout's `robustzoo`."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    variables = os.environ | GIT | {"PATH": path, "PYTHONPATH": str(ROOT)} | environment
    return subprocess.run(
        ["bash", "-eo", "pipefail", "-c", command], cwd=cwd, env=variables, capture_output=True, text=True
    )


def rewrite(path: Path, before: str, after: str) -> None:
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))


def forge(folder: Path) -> None:
    """Evidence that calls a broken image robust, which the card and the counts follow."""
    (path,) = (folder / "evidence").glob("*.json")
    true = Evidence.load(path)
    for sample in [s for s in true.doc["samples"] if s["broken_by"] is not None][:40]:
        sample.update(robust=True, broken_by=None)
    rest = ("model", "protocol", "dataset", "seed", "micro_batch_size", "passes", "run", "samples")
    forged = Evidence.build(threat_model=true.threat_model, **{name: true.doc[name] for name in rest})
    forged.doc["witnesses"] = true.doc["witnesses"]
    from robustzoo.cards import render_card
    from robustzoo.models import read_recipe

    text = render_card(read_recipe(folder), forged, forged.doc["model"]["sha256"], "apache-2.0")
    (folder / "README.md").write_text(text)


@pytest.fixture(scope="module")
def repository(tmp_path_factory) -> Path:
    """Four model folders; in the second commit one has notes, one is forged, one edited."""
    top = tmp_path_factory.mktemp("cards")
    for name in ("good", "forged", "changed", "untouched"):
        shutil.copytree(entry(NAME).weights.folder, top / "models" / name)
    (top / "notes.txt").write_text("no card\n")
    assert shell("git init -q . && git add . && git commit -qm one", top).returncode == 0
    with (top / "models" / "good" / "README.md").open("a") as card:
        card.write("\n## Notes by the author\n\n- Contact: ada@example.org\n")
    forge(top / "models" / "forged")
    rewrite(top / "models" / "changed" / "README.md", "**98.2 %**", "**99.9 %**")
    (top / "notes.txt").write_text("changed, and no card\n")
    assert shell("git add . && git commit -qm two", top).returncode == 0
    return top


def steps_of(given: dict[str, str]):
    """The `run:` steps of the action with their environment, as a runner fills in the inputs."""
    values = {key: given.get(key, item["default"]) for key, item in ACTION["inputs"].items()}
    values = {key: "" if text.startswith("${{") else text for key, text in values.items()}  # of no event
    for step in ACTION["runs"]["steps"]:
        if "run" in step:
            variables = {
                key: re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda found: values[found[1]], text)
                for key, text in step["env"].items()
            }
            assert "${{" not in step["run"] + "".join(variables.values()) and step["shell"] == "bash"
            yield step["name"], step["run"], variables


def act(repository: Path, folder: Path, **given: str):
    """The action's steps in a shell: (exit code of the check, its summary, its JSON, what pip was told)."""
    programs = folder / "bin"
    programs.mkdir(parents=True)
    (programs / "pip").write_text(f'#!/bin/sh\necho "$@" >> {folder}/pip\n')
    (programs / "pip").chmod(0o755)
    variables = {
        "GITHUB_ACTION_PATH": str(ROOT),
        "GITHUB_STEP_SUMMARY": str(folder / "summary.md"),
        "PATH": f"{programs}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    for name, command, own in steps_of({key.replace("_", "-"): value for key, value in given.items()}):
        done = shell(command, repository, **variables | own)
        if name == "Install":
            assert done.returncode == 0, done.stderr
    summary = folder / "summary.md"
    document = repository / "robustzoo-cards.json"
    found = json.loads(document.read_text()) if document.exists() else None
    document.unlink(missing_ok=True)
    return done, summary.read_text() if summary.exists() else "", found, (folder / "pip").read_text()


def test_the_action_names_each_changed_card_and_the_reason(repository, tmp_path):
    done, summary, document, pip = act(repository, tmp_path, since="HEAD~1", mode="replay")
    assert done.returncode == 2, done.stderr
    found = {Path(card["folder"]).name: card for card in document["cards"]}
    assert sorted(found) == ["changed", "forged", "good"]
    assert {name: card["outcome"] for name, card in found.items()} == {
        "good": "consistent",
        "forged": "refuted",
        "changed": "bad",
    }
    assert {name: card["exit_code"] for name, card in found.items()} == {"good": 0, "forged": 1, "changed": 2}
    lines = summary.splitlines()
    assert lines[0].startswith("### robustzoo: 3 cards checked")
    (row,) = [line for line in lines if line.startswith("| ✅")]
    assert "`models/good`" in row and "ok | ok | replay: consistent" in row
    (why,) = [i for i, line in enumerate(lines) if line.startswith("#### `models/forged`: refuted")]
    assert any("witness" in line or "fooled" in line for line in lines[why:]), summary
    (why,) = [i for i, line in enumerate(lines) if line.startswith("#### `models/changed`: bad")]
    assert any("99.9" in line for line in lines[why:]), summary
    assert str(ROOT) in pip


def test_a_good_change_passes_and_no_change_is_said(repository, tmp_path):
    done, summary, document, _ = act(repository, tmp_path / "a", paths="models/good\n", mode="lint")
    assert (done.returncode, len(document["cards"])) == (0, 1), done.stderr
    done, summary, document, _ = act(repository, tmp_path / "b", since="HEAD")
    assert (done.returncode, document["cards"]) == (0, []) and "no card changed" in summary
    # After a forced push the commit of before may be nowhere.
    done, _, document, _ = act(repository, tmp_path / "c", since="f" * 40, mode="lint")
    assert done.returncode == 2 and "all model folders are checked" in done.stderr
    assert len(document["cards"]) == 4


def test_a_named_folder_is_searched_for_model_folders(repository, tmp_path):
    done, _, document, _ = act(repository, tmp_path / "a", paths="models\n", mode="lint")
    assert done.returncode == 2 and len(document["cards"]) == 4
    (repository / "empty").mkdir()
    done, *_ = act(repository, tmp_path / "b", paths="empty\n", mode="lint")
    assert done.returncode == 2 and "no model folder in it" in done.stderr


def test_the_hook_checks_the_folders_of_the_files_it_is_given(repository):
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    files = subprocess.run(["git", "ls-files"], cwd=repository, capture_output=True, text=True).stdout.split()
    given = [name for name in files if re.search(hook["files"], name)]
    assert {Path(name).parts[1] for name in given} == {"good", "forged", "changed", "untouched"}
    done = shell(f"{hook['entry']} {' '.join(given)}", repository)
    assert done.returncode == 2
    assert [line.split()[0] for line in done.stderr.splitlines()] == ["bad", "bad", "well", "well"], (
        done.stderr
    )
    good = [name for name in given if "forged" not in name and "changed" not in name]
    assert shell(f"{hook['entry']} {' '.join(good)} notes.txt", repository).returncode == 0


def lint(folder: Path):
    done = CliRunner().invoke(group, ["ci", "--mode", "lint", str(folder)], catch_exceptions=False)
    return done.exit_code, done.stdout


DAMAGES = {
    "weights": (lambda f: (f / "model.safetensors").write_bytes(b"<!doctype html>"), "page of a web site"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "model.safetensors is not there"),
    "no card": (lambda f: (f / "README.md").unlink(), "README.md: No such file"),
    "no config": (lambda f: (f / "config.json").unlink(), "config.json"),
    "no evidence": (lambda f: shutil.rmtree(f / "evidence"), "no evidence"),
    "no witnesses": (lambda f: next((f / "evidence").glob("*.safetensors")).unlink(), "which is not there"),
    "block": (lambda f: (f / "config.json").write_text('{"robustzoo": {"recipe": 3}}'), "recipe is invalid"),
    "hash": (lambda f: flip(f / "model.safetensors"), "is about weights"),
    "witnesses": (lambda f: flip(next((f / "evidence").glob("*.safetensors"))), "another file than"),
}


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_wrong_with_a_folder_stands_in_the_summary(tmp_path, damage):
    folder = shutil.copytree(entry(NAME).weights.folder, tmp_path / "a`<b>|c")
    change, words = DAMAGES[damage]
    change(folder)
    code, text = lint(folder)
    assert code == 2 and words in text, text
    table = text.split("####")[0]
    assert "a?&lt;b&gt;\\|c`" in table and table.count("`") % 2 == 0


def test_workflows_run_what_exists():
    """Every `run:` is a target of make, every `uses: ./` gives inputs that the action has."""
    assert [path.name for path in WORKFLOWS] == ["checks.yml", "replay.yml"]
    seen = []
    for path in [*WORKFLOWS, ROOT / "examples" / "cards.yml"]:
        workflow = yaml.safe_load(path.read_text())
        assert workflow["permissions"] == {"contents": "read"}
        for job in workflow["jobs"].values():
            for step in job["steps"]:
                if "run" in step:
                    assert step["run"].startswith("make ")
                    assert shell(f"{step['run']} --dry-run", ROOT).returncode == 0
                    seen.append(step["run"])
                elif step["uses"] == "./":
                    assert set(step.get("with", {})) <= set(ACTION["inputs"])
                else:
                    assert re.fullmatch(r"(actions|OWNER)/[\w-]+@\w+", step["uses"])
    assert seen == ["make lint", "make test"]


def test_the_weekly_replay_covers_every_bundled_model():
    done = shell("robustzoo ci --mode lint", ROOT)
    assert done.returncode == 0 and all(name in done.stdout for name in list_models(published_only=True))
