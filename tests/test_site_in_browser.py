"""The built site in a browser: nothing is cut off, scrolls the page, is missing or hard to read.

Needs Chromium and ``pip install axe-playwright-python`` (which brings Playwright); skips without.
``SKUQ_SITE`` names a built site to look at; without it one is built, in about a minute.
"""

import os
import re
import shutil
import subprocess
import sys
from html import unescape
from pathlib import Path
from urllib.parse import unquote

import pytest

pytestmark = pytest.mark.slow
sync_api = pytest.importorskip("playwright.sync_api")
axe = pytest.importorskip("axe_playwright_python")

ROOT = Path(__file__).parents[1]
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)
WIDTHS = (1280, 400)
CASES = [(width, scheme) for width in WIDTHS for scheme in ("light", "dark")]
MOST_SCROLLING = 10

# What is cut off: text that ends right of its column and does not scroll in a box of its own,
# and boxes that hide a part of their text.
LOOK = """() => {
  const column = document.querySelector('.bd-article-container') || document.body;
  const right = Math.min(column.getBoundingClientRect().right, innerWidth) + 1;
  const boxes = 'pre, table, div.math, .highlight, .pst-scrollable-table-container';
  const shown = e => e.offsetParent !== null && getComputedStyle(e).visibility !== 'hidden';
  const says = e => e.tagName.toLowerCase() + ': ' + e.textContent.trim().slice(0, 50);
  const texts = 'h1,h2,h3,h4,p,li,dt,dd,a,.sig,.prev-next-title,img,math';
  const all = [...document.querySelectorAll('.bd-article-container *')].filter(
    e => e.matches(texts) && shown(e));
  const cut = all.filter(e => !e.parentElement.closest(boxes) && !e.matches(boxes)
    && (e.getBoundingClientRect().right > right
        || (getComputedStyle(e).overflowX !== 'visible' && e.scrollWidth > e.clientWidth + 1)));
  const scrolls = [...document.querySelectorAll('.bd-article pre, .bd-article table,'
    + '.bd-article div.math, .bd-article .pst-scrollable-table-container')]
    .filter(e => shown(e) && e.scrollWidth > e.clientWidth + 1);
  return {
    cut: cut.map(says),
    scrolls: scrolls.map(says),
    page: document.documentElement.scrollWidth > innerWidth + 1,
    pictures: [...document.images].filter(e => e.complete && !e.naturalWidth).map(e => e.src),
  };
}"""


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    if "SKUQ_SITE" in os.environ:
        return Path(os.environ["SKUQ_SITE"])
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "-b", "html", "-q", ROOT / "docs", folder]
    subprocess.run(command, check=True)
    return folder


def pages(site):
    """All pages but listings of source code, which scroll by nature."""
    found = sorted(path for path in site.rglob("*.html") if "_static" not in path.parts)
    return [path for path in found if "_modules" not in path.parts]


@pytest.fixture(scope="session")
def found(site):
    """What is wrong, by width and colours: ``{(width, scheme): {kind: {page: [what]}}}``."""
    return look(site, pages(site))


def look(site, paths):
    """Load each page once, and look at it in both widths and colours."""
    kinds = ("cut", "scrolls", "page", "pictures", "contrast")
    found = {case: {kind: {} for kind in kinds} for case in CASES}
    script = (Path(axe.__file__).parent / "axe.min.js").read_text()
    contrast = "axe.run(document, {runOnly: ['color-contrast'], resultTypes: ['violations']})"
    with sync_api.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        context = browser.new_context(reduced_motion="reduce")
        context.route(re.compile("^https?:"), lambda route: route.abort())
        page = context.new_page()
        for path in paths:
            page.goto(path.as_uri(), wait_until="load")
            page.evaluate(script)
            for width, scheme in CASES:
                page.set_viewport_size({"width": width, "height": 900})
                page.emulate_media(color_scheme=scheme)
                wrong = page.evaluate(LOOK)
                if width == WIDTHS[0]:
                    rules = page.evaluate(contrast)["violations"]
                    wrong["contrast"] = [n["html"][:90] for r in rules for n in r["nodes"]]
                for kind, what in wrong.items():
                    if what:
                        found[width, scheme][kind][path.relative_to(site).as_posix()] = what
        browser.close()
    return found


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
@pytest.mark.parametrize("case", CASES)
def test_nothing_is_cut_off_missing_or_hard_to_read(found, case):
    wrong = dict(found[case])
    scrolling = sum(map(len, wrong.pop("scrolls").values()))
    assert not {kind: places for kind, places in wrong.items() if places}
    assert case[0] < WIDTHS[0] or scrolling <= MOST_SCROLLING


def test_links_within_the_site_lead_somewhere(site):
    def named(text):
        return set(map(unescape, re.findall(r'\b(?:id|name)="([^"]+)"', text)))

    texts = {path: path.read_text() for path in site.rglob("*.html")}
    anchors = {path: named(text) for path, text in texts.items()}
    dead = []
    for path, text in texts.items():
        for link in map(unescape, re.findall(r'<a\b[^>]*\bhref="([^"]+)"', text)):
            if re.match(r"[a-z]+:", link):
                continue
            name, _, anchor = link.partition("#")
            if "_modules" in path.parts:
                anchor = ""  # a file whose objects have two public homes names one of them
            target = (path.parent / unquote(name.split("?")[0])).resolve() if name else path
            fine = target.exists() and (not anchor or anchor in anchors.get(target, {anchor}))
            if not fine:
                dead.append((path.relative_to(site).as_posix(), link))
    assert len(texts) > 200
    assert not dead
