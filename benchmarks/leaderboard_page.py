"""The leaderboard of many models in headless Chromium: sorting and scrolling times, numbers against evidence.

    python benchmarks/leaderboard_page.py --models 300 --shots DIR

Needs Debian's chromium and chromium-driver. The rows are the bundled models again and again,
under other names.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from dataclasses import replace
from pathlib import Path

from robustzoo.cards.evidence import Evidence
from robustzoo.cards.statistics import Accuracy
from robustzoo.leaderboard.lines import Line, models_of
from robustzoo.leaderboard.site import _verified_page, build
from robustzoo.registry import entry, list_models
from tests.leaderboard.browser import Browser

_SORT = (
    "const done = arguments[0], start = performance.now();"
    "document.querySelector('th:nth-child({}) button').click(); document.body.offsetHeight;"
    "const sorted = performance.now() - start; requestAnimationFrame(() => requestAnimationFrame("
    "() => done([sorted, performance.now() - start])))"
)
# Milliseconds between the frames of a scroll through the whole page, in steps of 400 pixels.
_SCROLL = (
    "const done = arguments[0], times = []; let last = performance.now(), y = 0;"
    "const step = now => { times.push(now - last); last = now; y += 400; window.scrollTo(0, y);"
    "if (y < document.body.scrollHeight) requestAnimationFrame(step); else done(times.slice(1)); };"
    "requestAnimationFrame(step)"
)
_ROWS = (
    "return [...document.querySelectorAll('tbody tr')].map(r => [r.querySelector('th a').getAttribute("
    "'href'), [...r.cells].map(c => c.textContent.trim())])"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=300)
    parser.add_argument("--shots", type=Path, help="Write screenshots at 1280 and 390 pixels here.")
    asked = parser.parse_args()
    models = models_of([entry(name) for name in list_models(published_only=True)], [])
    with tempfile.TemporaryDirectory() as place, Browser() as browser:
        site, many = Path(place, "site"), Path(place, "many.html")
        build(models, site)
        again = [
            replace(models[i % len(models)], name=f"model{i}.x", slug=f"m{i}") for i in range(asked.models)
        ]
        many.write_text(_verified_page([Line(model, *model.documents[0]) for model in again]))
        browser.open(many)
        sorts = [browser.wait_for(_SORT.format(column)) for column in (2, 3, 4, 2, 3)]
        frames = browser.wait_for(_SCROLL)
        report = {
            "models": asked.models,
            "page_bytes": many.stat().st_size,
            "sorted_and_laid_out_ms": [round(value) for value, _ in sorts],
            "and_painted_ms": [round(value) for _, value in sorts],
            "scroll_frames": len(frames),
            "scroll_frame_ms": {
                "median": round(statistics.median(frames), 1),
                "largest": round(max(frames), 1),
            },
            "rows_equal_to_evidence": _compare(browser, site),
        }
        if asked.shots is not None:
            asked.shots.mkdir(parents=True, exist_ok=True)
            for width, height in ((1280, 1000), (390, 844)):
                for name in ("index.html", "robustbench.html", f"models/{models[0].slug}/index.html"):
                    browser.open(site / name, width, height)
                    file = f"{name.replace('/', '-').removesuffix('.html')}-{width}.png"
                    (asked.shots / file).write_bytes(browser.screenshot())
    print(json.dumps(report, indent=1))


def _compare(browser: Browser, site: Path) -> int:
    """Rows of the verified table whose every number is that of the Evidence beside it; fails at another."""
    browser.open(site / "index.html")
    rows = browser.run(_ROWS)
    for href, cells in rows:
        folder = (site / href).parent
        documents = [Evidence.load(path) for path in (folder / "evidence").glob("*.json")]
        expected = [
            [_cell(e.robust_accuracy), _cell(e.clean_accuracy), f"{e.doc['counts']['n']:,} images"]
            for e in documents
        ]
        found = [" ".join(cells[1].split()), " ".join(cells[2].split()), " ".join(cells[3].split()[1:])]
        assert found in expected, f"{href}: {found} is none of its evidence's: {expected}"
    return len(rows)


def _cell(accuracy: Accuracy) -> str:
    return f"{accuracy.percent} {accuracy.interval}".replace(" %", "")


if __name__ == "__main__":
    main()
