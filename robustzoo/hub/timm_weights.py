"""Weights that timm keeps on the Hub, fetched with a limit of our own: timm's client would wait for ever."""

from __future__ import annotations

import sys
from pathlib import Path

from huggingface_hub import constants, try_to_load_from_cache
from huggingface_hub.utils import are_progress_bars_disabled

from robustzoo.errors import RobustzooError
from robustzoo.hub.fetch import RequestFailed, ask
from robustzoo.models.timm_models import ForeignModel, timm_model, weights_on_hub


def load_timm(name: str) -> ForeignModel:
    """`timm_model(name)`, whose weights are fetched first where they are not in the cache.

    Raises:
        RobustzooError: as `timm_model`, or the Hub does not give the weights within the limit of
            `robustzoo.hub.fetch`.
    """
    place = weights_on_hub(name)
    return timm_model(name, weights=None if place is None else _fetched(*place))


def _fetched(repo: str, file: str) -> Path | None:
    """The file of the repository's default branch, from the cache where it is there; None where timm must
    look for itself: it is in another file, or this machine is told to be offline."""
    if isinstance(cached := try_to_load_from_cache(repo, file), str):
        return Path(cached)
    if constants.HF_HUB_OFFLINE:
        return None
    if not are_progress_bars_disabled():
        print(f"Fetching {repo} from {constants.ENDPOINT}", file=sys.stderr)
    try:
        found = Path(ask("snapshot", repo, None, patterns=[file]), file)
    except RequestFailed as error:
        raise RobustzooError(
            f"{constants.ENDPOINT} does not give the weights of timm's model ({repo}): {error}"
        ) from error
    return found if found.is_file() else None
