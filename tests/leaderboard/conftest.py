from __future__ import annotations

import pytest

from robustzoo.leaderboard.lines import models_of
from robustzoo.leaderboard.site import build
from robustzoo.registry import entry, list_models


@pytest.fixture(scope="session")
def models():
    """Two of the bundled models: reading and drawing takes seconds each."""
    return models_of([entry(name) for name in list_models("*.trades_*", published_only=True)], [])


@pytest.fixture(scope="session")
def site(models, tmp_path_factory):
    out = tmp_path_factory.mktemp("leaderboard") / "site"
    build(models, out)
    return out
