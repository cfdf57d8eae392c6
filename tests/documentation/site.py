"""The site of the documentation: `make docs`.

The pages are those of `docs/`, which are also read on their own. Besides, each example is a page, so that links to it
stay in the site.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from documentation.links import faults_in
from support.pages import ROOT, directives

CONFIGURATION: Final = "zensical.toml"
SITE: Final = ROOT / "site"
_PACKAGES: Final = ("sdk", "exporters", "dashboards")
_DOCSTRING: Final = "griffe:"
"""Start of a warning about a docstring."""
_COLOR: Final = re.compile(r"\x1b\[[\d;]*m")
_EXAMPLE: Final = re.compile(r"\]\(((?:\.\./)*)\.\./examples/([\w/]+)\.py\)")


class SiteError(Exception):
    """The site has faults. Its message has a line for each of them."""


def build(site: Path) -> None:
    """Build the site in a folder, in place of what is there.

    Raises:
        SiteError: a link, an anchor or a name leads nowhere, a docstring cannot be read, or a page loads something from
            elsewhere.
    """
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder).resolve()
        shutil.copy(ROOT / CONFIGURATION, project)
        for package in _PACKAGES:
            (project / package).symlink_to(ROOT / package)
        stage(project / "docs")
        done = subprocess.run(
            [sys.executable, "-m", "zensical", "build", "--strict"],
            cwd=project,
            check=False,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        if done.returncode or _DOCSTRING in done.stdout:
            raise SiteError(_COLOR.sub("", done.stdout))
        faults = faults_in(project / "site")
        if faults:
            raise SiteError("\n".join(faults))
        shutil.rmtree(site, ignore_errors=True)
        shutil.copytree(project / "site", site)


def stage(pages: Path) -> None:
    """Write the pages of the site to a folder: those of `docs/`, and one for each example."""
    shutil.copytree(ROOT / "docs", pages)
    for page in pages.rglob("*.md"):
        page.write_text(_EXAMPLE.sub(r"](\1examples/\2.md)", directives(page.read_text())))
    for script in (ROOT / "examples").rglob("*.py"):
        page = (pages / script.relative_to(ROOT)).with_suffix(".md")
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(f"# {script.name}\n\n```python\n{script.read_text()}```\n")


def main() -> int:
    """Build the site and return the exit code."""
    try:
        build(SITE)
    except SiteError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{SITE.relative_to(ROOT)}/index.html")
    return 0


if __name__ == "__main__":
    sys.exit(main())
