"""``make docs``: all pages are in the navigation, all links lead somewhere, nothing is fetched."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.markdown_blocks import ROOT
from tests.process.built import output_of

pytestmark = pytest.mark.process

CAPTIONS = ["Tutorial", "How-to", "Reference", "Explanation"]
_LOADING = {"audio", "iframe", "img", "link", "object", "script", "source", "video"}
_IN_A_SHEET = re.compile(r"url\(\s*['\"]?([^'\")]+)|@import\s+['\"]([^'\"]+)")


class Page(HTMLParser):
    """One page: what it loads, where it links to, its anchors, its navigation."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.loads: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.captions: list[str] = []
        self._in_caption = False
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Called by ``feed``."""
        given = {name: value or "" for name, value in attrs}
        self.anchors.update({given["id"]} if "id" in given else ())
        self._in_caption = tag == "span" and given.get("class") == "caption-text"
        if tag in _LOADING:
            self.loads.extend(given[name] for name in ("src", "href", "data") if name in given)
        if tag == "a" and "href" in given:
            self.links.append(given["href"])

    def handle_data(self, data: str) -> None:
        """Called by ``feed``."""
        if self._in_caption:
            self.captions.append(data)
            self._in_caption = False


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What ``make docs`` leaves in ``build/docs``."""
    sources = tmp_path_factory.mktemp("sources")
    shutil.copytree(ROOT / "docs", sources / "docs")
    shutil.copy(ROOT / "Makefile", sources)
    ready = Path(sys.prefix) / ".ready"
    output_of(["make", "-o", str(ready), f"VENV={sys.prefix}", "docs"], cwd=sources)
    return sources / "build" / "docs"


def test_the_site_stands_alone(site: Path) -> None:
    pages = {path: Page(path) for path in site.rglob("*.html")}
    wanted = {path.relative_to(ROOT / "docs") for path in (ROOT / "docs").glob("**/*.md")}
    built = {path.relative_to(site) for path in pages}
    assert {path.with_suffix(".html") for path in wanted} <= built
    assert len(wanted) > 20
    for path, page in pages.items():
        assert page.captions == CAPTIONS, path
        listed = {(path.parent / urlsplit(link).path).resolve() for link in page.links}
        missing = {site / name.with_suffix(".html") for name in wanted} - listed - {path}
        assert missing == set(), path
        assert [link for link in page.links if not leads_somewhere(link, page, pages)] == []
        for loaded in page.loads:
            assert "//" not in loaded, path
            assert (path.parent / urlsplit(loaded).path).exists(), (path, loaded)
    sheets = [*site.rglob("*.css")]
    assert len(sheets) > 2
    for sheet in sheets:
        assert [found for found in sources_of(sheet) if "//" in found] == [], sheet


def leads_somewhere(link: str, page: Page, pages: dict[Path, Page]) -> bool:
    """Whether a link is to a page of the site, and to an anchor that it has."""
    target = urlsplit(link)
    if target.scheme in ("http", "https"):
        return True
    path = (page.path.parent / target.path).resolve() if target.path else page.path
    if path not in pages:
        return path.is_file()
    return target.fragment == "" or unquote(target.fragment) in pages[path].anchors


def sources_of(sheet: Path) -> Iterator[str]:
    """What a style sheet loads, but for what it holds itself."""
    for found in _IN_A_SHEET.finditer(sheet.read_text(encoding="utf-8")):
        source = found[1] or found[2]
        if not source.startswith("data:"):
            yield source
