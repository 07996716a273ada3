"""`robustzoo card` and `publish`: claims of a model folder, to the zoo or the Hub."""

from __future__ import annotations

from pathlib import Path

import click

from robustzoo.cli.output import say
from robustzoo.hub.publish import publish_bundled, write_card
from robustzoo.hub.push import look, prepare, push

_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


@click.command()
@click.argument("folder", type=_FOLDER)
@click.option(
    "--author", metavar="TEXT", help="Who made the model; kept in the card's notes, as the next two."
)
@click.option("--contact", metavar="TEXT", help="Whom to ask about it.")
@click.option("--citation", metavar="TEXT", help="What to cite, BibTeX for example.")
@click.option(
    "--licence",
    "--license",
    metavar="SPDX",
    help="Of the weights, as their author gives it, for example apache-2.0 or cc-by-4.0.",
)
@click.option(
    "--data-root",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The images, to draw six of them before and after an attack (digits need none).",
)
def card(folder: Path, licence: str | None, data_root: Path | None, **said: str | None) -> None:
    """Write FOLDER/README.md, the card, and its pictures, from the folder's recipe and evidence."""
    given = {key: text for key, text in said.items() if text is not None}
    say(f"wrote {write_card(folder, licence=licence, said=given, data_root=data_root)}")


@click.command()
@click.argument("folder", type=_FOLDER)
@click.option("--repo", metavar="OWNER/NAME", help="Publish to this repository of the Hub.")
@click.option(
    "--dry-run", is_flag=True, help="With --repo: check all, say what would change, change nothing."
)
@click.option("--create-pr", is_flag=True, help="With --repo: propose it there, as who may not write.")
@click.option("--private", is_flag=True, help="With --repo: of a repository that does not exist yet.")
@click.option(
    "--data-root",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="With --repo: the images, to replay the claims on before they are published.",
)
def publish(
    folder: Path,
    repo: str | None,
    dry_run: bool,
    create_pr: bool,
    private: bool,
    data_root: Path | None,
) -> None:
    """Publish FOLDER: to the Hub with --repo, or bundled with this checkout (at most 6 MB).

    To the Hub it goes as one commit and a tag, which is fetched again and compared. Interrupted anywhere, the
    same command goes on.
    """
    if repo is None:
        if dry_run or create_pr or private or data_root:
            raise click.UsageError("--dry-run, --create-pr, --private and --data-root need --repo OWNER/NAME")
        item = publish_bundled(folder)
        say(f"published {item.name} as bundled weights, sha256 {item.weights.sha256}")
        return
    publication = prepare(folder, repo, lock=not (create_pr or private), data_root=data_root)
    state, difference = look(publication)
    say(f"{repo}: {'a new repository' if state is None else 'at commit ' + state['head']}")
    say("\n".join(difference.lines()) or "nothing differs")
    if dry_run:
        say("nothing was changed (--dry-run)")
        return
    done = push(publication, propose=create_pr, private=private)
    if done.pull is not None:
        say(f"proposed: {done.pull}")
    say(f"commit {done.commit}{'' if done.tag is None else ', tag ' + done.tag}: fetched again, and the same")
    if done.entry is not None:
        say(f"locked as {done.entry.name}; commit weights.lock.json and model_cards/{done.entry.name}.md")
    say(f'robustzoo.load("{done.reference}")')
