"""Recipes from JSON files: `base_name` and what the file changes of its recipe."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

from robustzoo.errors import RobustzooError
from robustzoo.registry.fields import FIELDS
from robustzoo.registry.overrides import ALIASES
from robustzoo.registry.recipes import Recipe, changed, check_keys, named_after
from robustzoo.untrusted_files import read_text

_LARGEST_FILE = 2**20  # bytes; ours have about 10,000
# What is left where a text that is cut off stops being JSON: nothing, or the beginning of a word, a number's
# fraction or exponent, an escape, or a text without its closing quote.
_WORDS = ("true", "false", "null", "NaN", "Infinity", "-Infinity")
_CUT_OFF = re.compile(r"[.eE][+-]?|\\?u?[0-9a-fA-F]{0,4}")
_OPEN = "Unterminated string"


def from_file(path: Path) -> Recipe:
    """The recipe of a file: that of its `base_name`, with its changes (`epochs` and `data_range` too).

    Raises:
        UnknownName, IncompatibleName: base_name has no recipe.
        RobustzooError: naming the file; it cannot be read, repeats a key, or is no recipe.
    """
    try:
        # Some editors begin a file with a byte order mark; "-sig" reads both.
        document = json.loads(read_text(path, _LARGEST_FILE, "utf-8-sig"), object_pairs_hook=_unique)
    except FileNotFoundError as error:
        raise RobustzooError(
            f"no recipe file {str(path)!r}: make one with `robustzoo recipe NAME --json`"
        ) from error
    except RobustzooError as error:
        raise RobustzooError(f"{path}: {error}") from error
    except json.JSONDecodeError as error:
        raise RobustzooError(
            f"cannot read the recipe file {str(path)!r}: {_where_not_json(error)}; mend it there, or make it "
            "anew with `robustzoo recipe NAME --json`"
        ) from error
    except (OSError, ValueError, RecursionError) as error:  # text that is no UTF-8, endless numbers
        raise RobustzooError(
            f"cannot read the recipe file {str(path)[:120]!r}: {getattr(error, 'strerror', None) or error}; "
            "make one with `robustzoo recipe NAME --json`"
        ) from error
    try:
        check_keys(document, ALIASES)
        if "base_name" not in document:
            raise RobustzooError("base_name is missing: name the registry recipe that the file changes")
        base_name = document["base_name"]
        stem = named_after(base_name, str(document.get("dataset", "")))
        if document.get("name", base_name).partition("+")[0] not in (base_name, stem):
            raise RobustzooError(
                f"name {document['name']!r} is not of base_name {base_name!r}: leave name out, since "
                "base_name and the values give it"
            )
        changes = {key: value for key, value in document.items() if key in FIELDS or key in ALIASES}
        return changed(base_name, changes, "the recipe file", notes=document.get("sources"))
    except RobustzooError as error:
        raise type(error)(f"{path}: {error}") from error


def _where_not_json(error: json.JSONDecodeError) -> str:
    """What is wrong with a text that is no JSON, and where."""
    if not error.doc.strip():
        return "it is empty, which is no valid JSON"
    rest = error.doc[error.pos :].strip()
    if error.msg.startswith(_OPEN) or _CUT_OFF.fullmatch(rest) or any(w.startswith(rest) for w in _WORDS):
        last = len(error.doc.rstrip().splitlines())
        return f"no valid JSON: it is cut off at its end, in line {last}"
    return f"no valid JSON in line {error.lineno}, column {error.colno}: {error.msg}"


def _shown(names: list[str]) -> str:
    text = f"{names!r}"
    return text if len(text) <= 200 else f"{text[:197]}..."


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) < len(pairs):
        repeated = sorted(key for key, times in Counter(key for key, _ in pairs).items() if times > 1)
        raise RobustzooError(f"the recipe file repeats {_shown(repeated)}: keep one of each")
    return document
