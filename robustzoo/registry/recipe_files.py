"""Recipes as JSON documents and files: which keys they have, and what a file changes."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from robustzoo.errors import RobustzooError
from robustzoo.registry.fields import FIELDS, unknown_field
from robustzoo.registry.overrides import ALIASES
from robustzoo.untrusted_files import read_text

SCHEMA = "robustzoo.recipe/1"
_LARGEST_FILE = 2**20  # bytes; ours have about 10,000
# What is left where a text that is cut off stops being JSON: nothing, or the beginning of a word, a number's
# fraction or exponent, an escape, or a text without its closing quote.
_WORDS = ("true", "false", "null", "NaN", "Infinity", "-Infinity")
_CUT_OFF = re.compile(r"[.eE][+-]?|\\?u?[0-9a-fA-F]{0,4}")
_OPEN = "Unterminated string"
_LONGEST_SOURCE = 1000  # a change of a change names the sources before it


def read_recipe_file(path: Path) -> tuple[str, dict[str, Any], dict[str, str]]:
    """The registry name that a recipe file changes, its changes (`epochs` and `data_range` too), and sources.

    Raises:
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
        if document.get("name", base_name).partition("+")[0] != base_name:
            raise RobustzooError(
                f"name {document['name']!r} is not of base_name {base_name!r}: leave name out, since "
                "base_name and the values give it"
            )
    except RobustzooError as error:
        raise RobustzooError(f"{path}: {error}") from error
    changes = {key: value for key, value in document.items() if key in FIELDS or key in ALIASES}
    return base_name, changes, dict(document.get("sources", {}))


def check_keys(document: Mapping[str, Any], more: tuple[str, ...] = ()) -> None:
    """Refuse a recipe document with unknown keys, another schema, or sources that are not texts of fields.

    Args:
        more: keys that are allowed beside the fields.

    Raises:
        RobustzooError: naming the key, and the nearest right one.
    """
    if not isinstance(document, Mapping):
        raise RobustzooError(
            f"a recipe is a JSON object, not {type(document).__name__}: see `robustzoo recipe NAME --json`"
        )
    known = dict.fromkeys(("schema", "name", "base_name", *FIELDS, *more, "sources"))
    for key in document:
        if key not in known:
            raise unknown_field(key, "in the recipe", known)
    if document.get("schema", SCHEMA) != SCHEMA:
        raise RobustzooError(
            f"schema {document['schema']!r} is not {SCHEMA!r}, so another version of robustzoo made it: "
            "write it again with `robustzoo recipe NAME --json`"
        )
    for key in ("name", "base_name"):
        if not isinstance(document.get(key, ""), str):
            raise RobustzooError(f"{key}: {document[key]!r} is not a text: expected a model name")
    sources = document.get("sources", {})
    if not isinstance(sources, Mapping):
        raise RobustzooError("sources must be an object, field -> text: see `robustzoo recipe NAME --json`")
    for key, text in sources.items():
        if key not in FIELDS:
            raise unknown_field(key, "in sources")
        check_source(key, text)


def check_source(key: str, text: object) -> None:
    """Refuse a source that is not one printable line: cards and tables print it beside the value.

    Raises:
        RobustzooError: naming the field.
    """
    if not isinstance(text, str) or not text.isprintable() or len(text) > _LONGEST_SOURCE:
        shown = f"{text!r}"[:80]
        raise RobustzooError(
            f"sources: {key} has {shown}; expected one line of at most {_LONGEST_SOURCE} printable characters"
        )


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
