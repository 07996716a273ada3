"""The page as people use it, in headless Chromium: sorted, filtered, followed, narrow, of 300 models."""

from __future__ import annotations

from dataclasses import replace

import pytest

from robustzoo.leaderboard.lines import Line
from robustzoo.leaderboard.site import _verified_page
from tests.leaderboard.browser import CHROMIUM, DRIVER, Browser, axe_source

pytestmark = pytest.mark.skipif(
    DRIVER is None or CHROMIUM is None, reason="needs Debian's chromium and chromium-driver"
)
PAGES = (
    "index.html",
    "paper.html",
    "robustbench.html",
    "models/vit_micro2.digits_linf.trades_trh/index.html",
)
SHOWN = "return [...document.querySelectorAll('tbody tr')].filter(r => !r.hidden).map(r => r.cells[{}].{})"


@pytest.fixture(scope="module")
def browser():
    with Browser() as window:
        yield window


def column(browser, number: int, value: str = "textContent") -> list[str]:
    return browser.run(SHOWN.format(number, value))


def test_a_heading_sorts_by_click_and_by_keyboard(browser, site):
    browser.open(site / "robustbench.html")
    browser.click("th:nth-child(3) button")
    clean = [float(text) for text in column(browser, 2, "dataset.sort")]
    assert clean == sorted(clean, reverse=True) and len(clean) > 150
    assert browser.run("return document.querySelector('th:nth-child(3)').ariaSort") == "descending"
    browser.press("th:nth-child(3) button", "\ue007")
    assert [float(text) for text in column(browser, 2, "dataset.sort")] == sorted(clean)
    browser.click("th:nth-child(6) button")
    architectures = [text.lower() for text in column(browser, 6)]
    browser.click("th:nth-child(7) button")
    architectures = [text.lower() for text in column(browser, 6)]
    assert architectures == sorted(architectures)


def test_filters_hide_rows_and_points(browser, site):
    browser.open(site / "robustbench.html")
    everything = len(column(browser, 0))
    browser.press("select[name=dataset]", "imagenet")
    assert set(column(browser, 4)) == {"imagenet"}
    shown = len(column(browser, 0))
    assert browser.run("return document.querySelectorAll('svg a:not([hidden])').length") == shown < everything
    assert browser.run("return document.getElementById('count').textContent") == f"{shown} of {everything}"
    browser.press("input[type=search]", "vit")
    assert 0 < len(column(browser, 0)) < shown


def test_a_point_and_a_row_lead_to_the_model(browser, site):
    for link in ("svg a", "tbody th a"):
        browser.open(site / "index.html")
        browser.run(
            f"document.querySelector('{link}').dispatchEvent(new MouseEvent('click', {{bubbles: true}}))"
        )
        browser.wait_for("setTimeout(arguments[0], 300)")
        assert "/models/vit_micro2.digits_linf.trades_" in browser.url
        assert browser.run("return document.querySelector('h1').textContent").startswith("vit_micro2.digits")


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("place", PAGES)
def test_a_page_fits_its_window_and_axe_finds_nothing_serious(browser, site, place, width):
    browser.open(site / place, width)
    assert browser.run("return document.documentElement.scrollWidth") <= width
    axe = axe_source()
    if axe is None:
        pytest.skip("axe-core is not here: npm install axe-core, or AXE_CORE=axe.min.js")
    browser.run(axe)
    found = browser.wait_for(
        "const done = arguments[0]; axe.run().then(r => done(r.violations.map(v => [v.impact, v.id,"
        " v.nodes.slice(0, 3).map(n => n.html)])))"
    )
    assert [v for v in found if v[0] in ("serious", "critical")] == []


def test_300_models_scroll_and_sort_without_lag(browser, models, tmp_path):
    many = [replace(models[i % 2], name=f"model{i}.x", slug=f"m{i}") for i in range(300)]
    path = tmp_path / "many.html"
    path.write_text(_verified_page([Line(model, *model.documents[0]) for model in many]))
    browser.open(path)
    assert browser.run("return document.querySelectorAll('tbody tr').length") == 300
    assert len(column(browser, 0)) == 300
    taken = browser.wait_for(
        "const done = arguments[0], start = performance.now();"
        "document.querySelector('th:nth-child(2) button').click(); document.body.offsetHeight;"
        "const sorted = performance.now() - start; window.scrollTo(0, 5000);"
        "requestAnimationFrame(() => requestAnimationFrame(() => done([sorted, performance.now() - start])))"
    )
    print(f"300 models: sorted in {taken[0]:.0f} ms, scrolled and painted after {taken[1]:.0f} ms")
    assert browser.run("return window.scrollY") > 1000
