"""`robustzoo ci`: the cards of a repository, checked where they changed, for continuous integration."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

import click

from robustzoo.cards.render import table
from robustzoo.cli.output import say
from robustzoo.hub.inspection import (
    GOOD,
    MODES,
    Inspection,
    changed_folders,
    has_commit,
    inspect,
    named_folders,
)
from robustzoo.streams import one_line

_LONGEST = 2000  # characters of one reason


@click.command()
@click.argument("paths", nargs=-1, type=click.Path(exists=True, path_type=Path), metavar="[PATH]...")
@click.option(
    "--since", metavar="COMMIT", help="Only folders with a file that differs from this commit of git."
)
@click.option(
    "--mode",
    type=click.Choice(MODES),
    default="auto",
    show_default=True,
    help="auto: spot where there is a GPU, else replay; lint: card and hashes alone, without torch.",
)
@click.option(
    "--data-root",
    type=click.Path(path_type=Path),
    help="Folder of the datasets' files, where claims are about such.",
)
@click.option(
    "--summary", type=click.Path(dir_okay=False, path_type=Path), help="Append the Markdown to this file."
)
@click.option("--json", "as_json", type=click.Path(dir_okay=False, path_type=Path), help="Write JSON here.")
def ci(
    paths: tuple[Path, ...],
    since: str | None,
    mode: str,
    data_root: Path | None,
    summary: Path | None,
    as_json: Path | None,
) -> None:
    """Check model folders: the card, the hashes, and a replay of its claims, with a summary in Markdown.

    PATH is a model folder, a folder of such, or any file in one (others are passed over). Without it: all
    model folders of the git repository, with --since those that changed.

    Exit code: 0 all is well, 1 refuted, 2 a file is not as it must be, 3 inconclusive, 4 not comparable; of
    several, the worst: 2 before 1, 4 and 3.
    """
    if paths and since is not None:
        raise click.UsageError("--since chooses among all folders of the repository; leave the paths away")
    folders = sorted({folder for path in paths for folder in named_folders(path)})
    if not paths:
        if since is not None and not has_commit(since):  # a new branch, a forced push, too shallow a clone
            say(f"no commit {one_line(since)[:80]} in this clone: all model folders are checked", err=True)
            since = None
        folders = changed_folders(since)
    found = []
    for folder in folders:
        found.append(inspect(folder, mode, data_root=data_root, progress=False))
        say(f"{found[-1].outcome:<14} {one_line(str(folder))}", err=True)
    text = _markdown(found)
    say(text)
    if summary is not None:
        with summary.open("a", encoding="utf-8") as stream:
            stream.write(text + "\n")
    if as_json is not None:
        document = {"schema": "robustzoo.ci/1", "cards": [item.to_json() for item in found]}
        as_json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    codes = {item.exit_code for item in found}
    sys.exit(next((code for code in (2, 1, 4, 3) if code in codes), 0))


def _markdown(found: list[Inspection]) -> str:
    """One line a card, then the reasons of those that do not stand. Nothing of a file is Markdown or HTML."""
    if not found:
        return "### robustzoo: no card changed\n"
    counts = Counter(item.outcome for item in found)
    head = ", ".join(f"{count} {outcome}" for outcome, count in counts.most_common())
    rows = [["", "card", "model", "lint", "hash", "claims"]]
    for item in found:
        sign = "✅" if item.outcome in GOOD else "❌"
        tried = [f"{step}: {value}" for step, value in item.steps.items() if step not in ("lint", "hash")]
        steps = [item.steps["lint"], item.steps["hash"], *(tried or [""])]
        rows.append([sign, _code(item.folder), _code(item.name), *steps])
    parts = [f"### robustzoo: {len(found)} card{'s' * (len(found) != 1)} checked, {head}", table(rows)]
    for item in found:
        if item.outcome not in GOOD:
            parts.append(f"#### {_code(item.folder)}: {item.outcome}")
            # Set in by four blanks it is code, which no text of a file can end.
            lines = (line for reason in item.reasons for line in reason.splitlines() if line.strip())
            parts.append("\n".join(f"    {one_line(line)[:_LONGEST]}" for line in lines))
    return "\n\n".join(parts) + "\n"


def _code(value: object) -> str:
    """A name as code: without the one character that would end it."""
    return f"`{one_line(str(value)).replace('`', '?')[:200]}`"
