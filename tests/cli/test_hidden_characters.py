"""What files of strangers hold, as commands print it: no cursor moves, no line begins as an outcome."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from robustzoo.cli import group
from robustzoo.cli.output import message_of, say_error
from robustzoo.registry import entry

NAME = "vit_micro2.digits_linf.at_base"
FORGED = "\nvit_micro2: CONFIRMED by full"
# One of each kind; tests/test_printable.py and tests/cards/test_evidence_from_strangers.py have every one.
HIDDEN = ["\x1b[2A\x1b[2K", "\r\x7f\x9b2K", "\u202e\u200b\u2028", FORGED]


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "model"
    shutil.copytree(entry(NAME).weights.folder, place)
    return place


def run(*arguments):
    """The command's exit code and all that it printed, as `main` would."""
    done = CliRunner().invoke(group, list(map(str, arguments)))
    printed = done.output
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        assert type(done.exception).__module__.startswith("robustzoo"), repr(done.exception)
        with CliRunner().isolation() as streams:
            say_error(message_of(done.exception))
            printed += "".join(stream.getvalue().decode() for stream in streams[:2])
        return 2, printed
    return done.exit_code, printed


def assert_harmless(printed):
    """No hidden character is left, and no line begins with an outcome."""
    rest = printed.replace("\n", "").replace("\t", "")
    assert not re.search("[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\ufeff]", rest), ascii(printed)
    assert not re.search(r"(?m)^\S*:? ?CONFIRMED", printed), printed


def edit(path, change):
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


PLACES = {
    "fingerprint": lambda d, text: d["run"]["fingerprint"].update(processor=text),
    "device": lambda d, text: d["run"].update(device=text),
    "name": lambda d, text: d["model"].update(name=text),
    "dataset": lambda d, text: d["dataset"].update(id=text),
    "key": lambda d, text: d["run"]["fingerprint"].update({text: "x"}),
    "top": lambda d, text: d.update({text: "x"}),
}
COMMANDS = {
    "verify": ("verify", "FOLDER"),
    "report": ("report", "FILE"),
    "report json": ("report", "FILE", "--json"),
    "compare": ("compare", "FILE", "FILE"),
    "card": ("card", "FOLDER"),
    "publish": ("publish", "FOLDER"),
    "merge": ("evidence", "merge", "FOLDER", "--out", "OUT"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_texts_of_evidence_are_harmless_in_every_command(folder, tmp_path, command):
    (path,) = (folder / "evidence").glob("*.json")
    original = path.read_text()
    places = {"FOLDER": folder, "FILE": path, "OUT": tmp_path / "out"}
    for put, hidden in zip(PLACES.values(), itertools.cycle(HIDDEN), strict=False):
        path.write_text(original)
        edit(path, lambda document, put=put, hidden=hidden: put(document, f"x{hidden}y"))
        code, printed = run(*(places.get(word, word) for word in COMMANDS[command]))
        assert code == 2
        assert_harmless(printed)


@pytest.mark.parametrize("hidden", [HIDDEN[0], FORGED], ids=ascii)
def test_texts_of_cards_configs_and_names_are_harmless(folder, hidden):
    card, config = folder / "README.md", folder / "config.json"
    text, settings = card.read_text(), config.read_text()
    for forged in (
        text.replace(f"# {NAME}", f"# x{hidden}y"),
        text.replace("type: digits", f'type: "x{json.dumps(hidden)[1:-1]}y"'),
        text.replace("epsilon: ", f'epsilon: "{json.dumps(hidden)[1:-1]}'),
        f"---\na: [{hidden}\n---\n",
        f"{text}\n## Notes by the author\n\n## Results{hidden}\n\n| x{hidden} | 500 / 500 |\n",
    ):
        card.write_text(forged)
        code, printed = run("verify", folder)
        assert code == 2 or hidden not in FORGED
        assert_harmless(printed)
    card.write_text(text)
    edit(config, lambda document: document["robustzoo"]["recipe"].update(init=f"file:{hidden}"))
    for command in ("verify", "card", "publish"):
        code, printed = run(command, folder)
        assert code == 2
        assert_harmless(printed)
    config.write_text(settings)
    if os.name != "nt":
        (path,) = (folder / "evidence").glob("*.json")
        path.rename(path.with_name(f"x{hidden}y.json"))
        for command in ("verify", "card", "report"):
            code, printed = run(command, folder)
            assert code == 2
            assert_harmless(printed)


@pytest.mark.parametrize("hidden", HIDDEN, ids=ascii)
@pytest.mark.parametrize("command", ["verify", "report", "recipe", "show", "ls", "card", "evaluate", "plot"])
def test_names_that_a_shell_found_are_harmless(tmp_path, monkeypatch, command, hidden):
    monkeypatch.chdir(tmp_path)
    code, printed = run(command, f"x{hidden}y")
    assert code == (1 if command == "ls" else 2)
    assert_harmless(printed)


def test_pictures_and_pages_of_evidence_are_harmless(folder, tmp_path, monkeypatch):
    """Even where the schema lets a text pass, as it does with bytes of a name that are no text."""
    (path,) = (folder / "evidence").glob("*.json")
    edit(path, lambda document: document["dataset"].update(id="folder:\udce9 $x$ <b>"))
    page = tmp_path / "r.html"
    code, printed = run("report", path, "--html", page, "--pictures", 0)
    assert code == 0 and "\\udce9" in printed
    text = Path(page).read_text(encoding="utf-8")
    assert "<b>" not in text and "&lt;b&gt;" in text and "\\udce9" in text
