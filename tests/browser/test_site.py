"""The built documentation, opened from a folder: it is searched without a server, and loads nothing from elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.browser.chrome import PHONE, WIDE, Chrome
from tests.browser.conftest import SCREENSHOTS
from tests.e2e.up import ROOT
from tests.patience import patient

ROLES = ["You train", "You look after the machines of a lab", "You run a platform", "You change it, or cite it"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--quiet",
        "--strict",
        "-f",
        ".ci/mkdocs.yml",
        "-d",
        str(folder),
    ]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    subprocess.run([*command, "-d", str(folder)], cwd=ROOT, env=environment, check=True, timeout=patient(180))
    return folder


@pytest.mark.parametrize("page", ["index.html", "how-to/notebook.html"])
def test_the_search_works_from_a_folder(tab: Chrome, site: Path, page: str) -> None:
    tab.look(False, WIDE)
    tab.open((site / page).as_uri())
    tab.do("document.querySelector('[data-md-toggle=search]').click()")
    tab.do("document.querySelector('.md-search__input').focus()")
    tab.do("document.querySelector('.md-search__input').value = 'time limit'")
    tab.do("document.querySelector('.md-search__input').dispatchEvent(new KeyboardEvent('keyup', {key: 't'}))")
    tab.until("document.querySelectorAll('.md-search-result__link').length > 3")
    links = tab.do("[...document.querySelectorAll('.md-search-result__link')].map((link) => link.href)")
    assert any("deadlines.html" in link for link in links)


def test_nothing_is_loaded_from_elsewhere(tab: Chrome, site: Path) -> None:
    for page in ("index.html", "gallery.html", "how-to/notebook.html"):
        tab.open((site / page).as_uri())
        loaded = tab.do("performance.getEntriesByType('resource').map((entry) => entry.name)")
        assert [address for address in loaded if not address.startswith(("file:", "data:", "about:"))] == []


def test_the_home_names_a_way_in_for_each_role(tab: Chrome, site: Path) -> None:
    for look, (dark, size) in {"light": (False, WIDE), "phone-dark": (True, PHONE)}.items():
        tab.look(dark, size)
        tab.open((site / "index.html").as_uri())
        heads = tab.do("[...document.querySelectorAll('h2')].map((head) => head.firstChild.textContent)")
        assert heads == [
            "You train",
            "You look after the machines of a lab",
            "You run a platform",
            "You change it, or cite it",
        ]
        tab.screenshot(SCREENSHOTS / f"site-{look}.png")
