"""The command `robustzoo`: each subcommand is a function of a file here, imported when it is called.

This is the one lazy place: a command's file imports at its top what it needs. Only what is refused, listed or
shown before torch would have loaded keeps the slow imports inside its functions, and says so.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from robustzoo.cli.output import message_of, passes_through, report_error, say_error
from robustzoo.streams import keep_messages_from_failing, printable

INTERRUPTED = 128 + 2  # the signal's number is 2

# Subcommand -> module of this package that holds a click command of the same name, and its first sentence.
# That stands here too, so that help and completion import none of them: some load torch.
_COMMANDS = {
    "ls": ("listing", "List the models that can be loaded, with their numbers."),
    "show": ("zoo", "Show one entry: what it is, its weights, its numbers, and how to train it."),
    "recipe": (
        "zoo",
        "Print a recipe: every value with its source, the paper's result, and what training it costs.",
    ),
    "train": ("train", "Train a recipe with DeepSpeed and export its model (`robustzoo train --help`)."),
    "data": (
        "data",
        "Describe images of your own, so that other commands can train on them and measure on them.",
    ),
    "evaluate": ("evaluate", "Attack MODEL and write Evidence."),
    "import": (
        "importing",
        "Make a model folder from FILE, weights that others trained (.safetensors, .pt, .pth or .ckpt).",
    ),
    "export": ("exporting", "Write MODEL for other programs, or its numbers for other leaderboards."),
    "evidence": ("evidence", "Work with the Evidence files of evaluations."),
    "verify": ("verify", "Verify the claims of each MODEL (registry names or model folders)."),
    "report": ("evidence", "Report on EVIDENCE, a file, or a model whose main evidence is meant."),
    "compare": (
        "evidence",
        "Compare A and B, each an Evidence file or a model with Evidence, on the same images.",
    ),
    "crosscheck": (
        "evaluate",
        "Compare our attacks with another package's, one by one, on MODEL (named as for `evaluate`).",
    ),
    "diagnose": (
        "diagnose",
        "Hessian, PAC-Bayes bound, gradient masking, and the studies of the paper.",
    ),
    "leaderboard": ("leaderboard", "Make a static web page of models and their numbers."),
    "plot": (
        "train",
        "Draw the loss terms, accuracies and robust generalisation gap of the training in RUN.",
    ),
    "doctor": (
        "doctor",
        "Report what this machine can run: compiler, CUDA, DeepSpeed's operations, memory, versions.",
    ),
    "card": (
        "publish",
        "Write FOLDER/README.md, the card, and its pictures, from the folder's recipe and evidence.",
    ),
    "publish": (
        "publish",
        "Publish FOLDER: to the Hub with --repo, or bundled with this checkout (at most 6 MB).",
    ),
    "download": (
        "download",
        "Fetch a model: its weights, compared with the pinned hash, its card and its evidence.",
    ),
    "ci": (
        "ci",
        "Check model folders: the card, the hashes, and a replay of its claims, with a summary in Markdown.",
    ),
}
_FUNCTIONS = {"import": "import_"}  # a word of Python's own
# What other tools call it -> what it is called here.
_MEANT = {
    **dict.fromkeys(("list", "models", "search"), "ls"),
    **dict.fromkeys(("info", "describe", "cat"), "show"),
    **dict.fromkeys(("eval", "attack", "benchmark", "test", "autoattack"), "evaluate"),
    **dict.fromkeys(("check", "replay", "reproduce"), "verify"),
    **dict.fromkeys(("config", "recipes"), "recipe"),
    **dict.fromkeys(("diff",), "compare"),
    **dict.fromkeys(("upload", "push"), "publish"),
    **dict.fromkeys(("pull", "fetch", "get"), "download"),
}


class _LazyGroup(click.Group):
    """Imports a subcommand's module when it is asked for, so that `robustzoo ls` answers at once."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """As click, but that no sentence is cut off."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, sentence) for name, (_, sentence) in _COMMANDS.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """As click, without the commands' modules."""
        found = [
            CompletionItem(name, help=sentence)
            for name, (_, sentence) in _COMMANDS.items()
            if name.startswith(incomplete)
        ]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        meant = _MEANT.get(args[0].lower()) if args else None
        if meant is not None and args[0] not in _COMMANDS:
            ctx.fail(f"no such command {args[0]!r}; did you mean `robustzoo {meant}`?")
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        module = importlib.import_module(f"robustzoo.cli.{_COMMANDS[name][0]}")
        return getattr(module, _FUNCTIONS.get(name, name))

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        try:
            _refuse_empty(args)
        except click.UsageError as error:
            if "--json" in args:
                report_error(error)
            raise
        return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """As click, but that Ctrl-C ends with the shells' 130, and a closed standard input as any error that
        nobody foresaw: click's 1 is "refuted" here."""
        try:
            return super().invoke(ctx)
        except click.ClickException as error:
            error.message = printable(error.message)  # arguments may be names that a shell found
            raise
        except EOFError as error:
            raise RuntimeError("the standard input has ended") from error
        except KeyboardInterrupt:
            say_error("interrupted")
            sys.exit(INTERRUPTED)


def _refuse_empty(args: list[str]) -> None:
    """Raise click.UsageError for an empty value, such as an unset variable of a shell leaves: as a path it
    would mean the current folder, and as a name nothing. No command has a use for one."""
    for before, value in zip(["", *args], args, strict=False):
        option, equals, text = value.partition("=")
        if value and not (option.startswith("--") and equals and not text):
            continue
        named = option if value else before
        what = f"{named} has an empty value" if named.startswith("-") else "an argument is empty"
        raise click.UsageError(f"{what}; give one, or leave it away (is a variable of the shell unset?)")


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
# The deepspeed launcher passes it before all else; the environment says the same.
@click.option("--local_rank", hidden=True, expose_value=False)
@click.version_option(package_name="robustzoo", prog_name="robustzoo")
def group() -> None:
    """Robust vision models whose clean and AutoAttack numbers anyone can re-check."""


def main() -> None:
    """Run the command line; an error becomes one readable message and exit code 2, whatever it is."""
    keep_messages_from_failing()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Names of folders may hold bytes that are no text, or letters that this locale has not.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        group(prog_name="robustzoo")
    except Exception as error:
        if passes_through(error):
            raise
        say_error(_of_stdout(error) or message_of(error))
        sys.exit(2)


def _of_stdout(error: Exception) -> str | None:
    """What to say where the standard output cannot be written; None for any other error."""
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    if not isinstance(error, OSError) or at is None or at.tb_frame.f_globals["__name__"] != "click.utils":
        return None
    sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 - so that nothing is flushed again at the exit
    return f"the standard output cannot be written: {error.strerror or error}"
