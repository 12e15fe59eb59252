"""The documentation site: it builds without a warning, its links lead somewhere, it loads nothing from elsewhere."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import tailsafe as ts
from tailsafe.algorithms.registry import ALGORITHMS, algorithm_of
from tailsafe.cli import main
from tailsafe.training.settings import known_settings, parsed
from tailsafe.training.settings_page import describe_settings, written
from tests.cli.test_commands import COMMANDS

ROOT = Path(__file__).parents[2]
MISSING = [name for name in ("mkdocs", "material", "mkdocstrings") if importlib.util.find_spec(name) is None]


class PageReader(HTMLParser):
    """ids of a page, targets of its links, and what a browser loads with it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.text = path.read_text(encoding="utf-8")
        self.feed(self.text)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.ids.add(given.get("id") or "")
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        elif tag == "link":
            self.loaded.append(given["href"])
        elif given.get("src"):
            self.loaded.append(given["src"])

    def section(self, heading: str) -> str:
        """What follows a heading of the second level."""
        return self.text.partition(f'<h2 id="{heading}"')[2].partition("<h2 ")[0]


@pytest.mark.skipif(bool(MISSING), reason=f"needs {', '.join(MISSING)}: pip install 'tailsafe[docs]'")
def test_the_site(tmp_path, capsys):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    pages = {path: PageReader(path) for path in tmp_path.rglob("*.html")}
    assert len(pages) > 15
    for path, page in pages.items():
        check_links(path, page, pages, tmp_path)
        check_loaded(path, page, tmp_path)
    for sheet in tmp_path.rglob("*.css"):
        assert not re.search(r"(@import|url\()\s*[\"']?(https?:)?//", sheet.read_text(encoding="utf-8")), sheet

    api = pages[tmp_path / "api.html"]
    assert {f"tailsafe.{name}" for name in ts.__all__ if name != "__version__"} <= api.ids
    settings = pages[tmp_path / "settings.html"]
    for algorithm in ALGORITHMS:
        keys = re.findall(r"<tr>\s*<td><code>(\w+)</code></td>", settings.section(algorithm))
        assert sorted(keys) == sorted(known_settings(algorithm))
    commands = pages[tmp_path / "commands.html"]
    for name in COMMANDS:
        with pytest.raises(SystemExit):
            main([name, "--help"])
        options = set(re.findall(r"(--[a-z][a-z-]*)", capsys.readouterr().out)) - {"--help"}
        assert set(re.findall(r"<code>(--[a-z-]+)", commands.section(name))) >= options - NOT_OPTIONS.get(name, set())
    # A default of zero is one; and an option's own name counts, not that of its parameter (set_).
    train = re.sub(r"\s+", " ", commands.section("train"))
    assert "<td><code>--seed NUMBER</code></td> <td>The (first) seed.</td> <td><code>0</code></td>" in train
    assert "<td><code>--set KEY=VALUE</code></td>" in train
    assert "Unreleased" in pages[tmp_path / "changelog.html"].text


# Options of other commands that a help text speaks of.
NOT_OPTIONS = {"settings": {"--set"}}


def check_links(path: Path, page: PageReader, pages: dict[Path, PageReader], root: Path) -> None:
    for link in page.links:
        parts = urlsplit(link)
        if parts.scheme or parts.netloc:
            continue
        target = located(parts.path, path, root)
        assert target.is_file(), f"{path.name}: {link} leads nowhere"
        if parts.fragment and target in pages:
            assert unquote(parts.fragment) in pages[target].ids, f"{path.name}: {link} has no such anchor"


def check_loaded(path: Path, page: PageReader, root: Path) -> None:
    """Scripts, styles, fonts and pictures come with the site."""
    for source in page.loaded:
        parts = urlsplit(source)
        assert not parts.netloc, f"{path.name} loads {source}"
        assert parts.scheme == "data" or located(parts.path, path, root).is_file(), f"{path.name}: {source} is missing"


def located(address: str, page: Path, root: Path) -> Path:
    """The file behind a link. 404.html has absolute ones: it may be shown anywhere."""
    if not address:
        return page
    path = (root / unquote(address)[1:] if address.startswith("/") else page.parent / unquote(address)).resolve()
    return path / "index.html" if path.is_dir() else path


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("family", ["navigation", "finite"])
def test_every_setting_is_described_and_its_defaults_can_be_set(algorithm, family):
    found = describe_settings(algorithm, family)
    assert {setting.key for setting in found} == set(known_settings(algorithm))
    for setting in found:
        for preset, value in setting.defaults.items():
            assert value is None or parsed(setting.key, written(value), algorithm) == value, (preset, setting)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_field_of_an_algorithm_is_a_declared_setting(algorithm):
    """All but what the task and its constraints decide; and about a dozen are the first to know."""
    parts = algorithm_of(algorithm)
    fields = {field.name for kind in (parts.config, parts.settings) for field in dataclasses.fields(kind)}
    known = known_settings(algorithm)
    assert fields - {"constraints", "horizon"} <= set(known)
    assert 10 <= sum(setting.declaration.main for setting in known.values()) <= 16
    assert all(setting.declaration.meaning.endswith(".") for setting in known.values())
