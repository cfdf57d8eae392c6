"""Contents of a release: files of the sdist, dependencies and their licences, and forms of the repository's host."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib

import pytest
import yaml

from distribution import dependencies
from support.pages import ROOT

GITHUB = ROOT / ".github"
FORMS = {
    "vendor.github-issue-config": ["ISSUE_TEMPLATE/config.yml"],
    "vendor.github-issue-forms": [f"ISSUE_TEMPLATE/{name}.yml" for name in ("bug", "feature", "telemetry_name")],
    "vendor.github-workflows": ["workflows/ci.yml", "workflows/release.yml"],
    "vendor.dependabot": ["dependabot.yml"],
}


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="an unpacked sdist has no list of files to compare with")
def test_the_sdist_has_what_the_repository_has() -> None:
    """The sdist includes each file and folder at the top of the repository."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    included = project["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert sorted(included) == sorted({f"/{path.split('/')[0]}" for path in listed.splitlines()})


@pytest.mark.skipif(sys.platform != "linux", reason="other systems need other packages; the page is about Linux")
def test_licences_of_dependencies_are_listed() -> None:
    """The page of licences has all packages that an installation brings, with the licences that they declare."""
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
    """GitHub's own schemas accept issue forms, workflows and the rest; no other file is there."""
    files = [GITHUB / name for name in FORMS[schema]]
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    known = {GITHUB / name for names in FORMS.values() for name in names}
    assert set(GITHUB.rglob("*.yml")) == known


@pytest.mark.parametrize("name", FORMS["vendor.github-workflows"])
def test_actions_are_pinned(name: str) -> None:
    """Each action is pinned to a commit with its tag as a comment, and no workflow may write by default."""
    text = (GITHUB / name).read_text(encoding="utf-8")
    used = re.findall(r"uses: (.+)", text)
    assert used
    for action in used:
        assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action)
    rights = yaml.safe_load(text)["permissions"]
    assert set(rights.values()) <= {"read"}


def test_what_is_published_has_no_password() -> None:
    """Only the job that publishes and the one that attests get a token of the workflow, and none reads a secret."""
    text = (GITHUB / "workflows" / "release.yml").read_text(encoding="utf-8")
    assert "secrets." not in text
    jobs = yaml.safe_load(text)["jobs"]
    assert {name for name, job in jobs.items() if "id-token" in job["permissions"]} == {"attest", "publish"}
    assert jobs["publish"]["environment"] == "pypi"
