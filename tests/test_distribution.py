"""What is published: files of the sdist, dependencies and their licences, forms of the repository's host."""

from __future__ import annotations

import subprocess
import sys
import tomllib

import pytest

from distribution import dependencies
from support.pages import ROOT

GITHUB = ROOT / ".github"
FORMS = {
    "vendor.github-issue-config": ["ISSUE_TEMPLATE/config.yml"],
    "vendor.github-issue-forms": [f"ISSUE_TEMPLATE/{name}.yml" for name in ("bug", "feature", "telemetry_name")],
    "vendor.github-workflows": ["workflows/ci.yml"],
}


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="an unpacked sdist has no list of files to compare with")
def test_the_sdist_has_what_the_repository_has() -> None:
    """Each file and folder at the top is included, so that tests, demo and build work in an unpacked sdist."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    included = project["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert sorted(included) == sorted({f"/{path.split('/')[0]}" for path in listed.splitlines()})


@pytest.mark.skipif(sys.platform != "linux", reason="other systems need other packages; the page is about Linux")
def test_licences_of_dependencies_are_listed() -> None:
    """The page has all packages that an installation brings, and the licences that they declare."""
    remedy = "Run PYTHONPATH=tests .venv/bin/python -m distribution.dependencies"
    assert dependencies.table() in dependencies.PAGE.read_text(encoding="utf-8"), remedy


def test_licences_of_dependencies_are_compatible() -> None:
    """Apache-2.0 software may depend on all of them; a licence that nobody has read is refused."""
    assert dependencies.refused(dependencies.listed()) == {}
    assert dependencies.refused({"a": "GPL-3.0-only", "b": "MIT OR GPL-3.0-only", "c": "MIT AND AGPL-3.0-only"}) == {
        "a": "GPL-3.0-only",
        "c": "MIT AND AGPL-3.0-only",
    }


@pytest.mark.parametrize("schema", FORMS)
def test_forms_follow_the_schema_of_the_host(schema: str) -> None:
    """GitHub's own schemas accept issue forms and the workflow; no other file is there."""
    files = [GITHUB / name for name in FORMS[schema]]
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    known = {GITHUB / name for names in FORMS.values() for name in names}
    assert set(GITHUB.rglob("*.yml")) == known
