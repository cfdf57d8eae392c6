"""`pellucid demo`, run as its users run it: as a process, in a repository."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.request import urlopen

import pytest

from pellucid.cli import main
from pellucid_commands.demo.script import read_log
from pellucid_exporters import StoreReader
from support.otlp_receiver import attributes_of, otlp_receiver
from support.processes import PATIENCE, python

pytestmark = pytest.mark.integration

SUBJECTS = ("Plant the orchard", "Water the orchard twice", "Harvest apples")

MAIN = "import sys; from pellucid.cli import main; sys.exit(main())"


def run_demo(*options: str, cwd: Path, timeout: float = PATIENCE) -> subprocess.CompletedProcess[str]:
    """Run the demo to its end."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "PELLUCID_"))}
    return subprocess.run(
        python("-c", MAIN, "demo", *options),
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def git(repository: Path, *arguments: str) -> str:
    """Run git in a repository, as somebody known, three days ago."""
    when = f"{datetime.now(UTC) - timedelta(days=3, hours=1):%Y-%m-%dT%H:%M:%SZ}"
    environment = {**os.environ, "GIT_AUTHOR_DATE": when, "GIT_COMMITTER_DATE": when}
    who = ("-c", "user.name=Ada Gardener", "-c", "user.email=ada@example.org", "-c", "commit.gpgsign=false")
    command = ["git", "-C", str(repository), *who, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a repository with three commits."""
    path = tmp_path_factory.mktemp("orchard")
    git(path, "init", "--quiet")
    for subject in SUBJECTS:
        git(path, "commit", "--quiet", "--allow-empty", "--message", subject)
    return path


@pytest.fixture(scope="module")
def shown(repository: Path) -> str:
    """Return what the demo prints into a pipe."""
    ran = run_demo("--no-color", "--port", "0", cwd=repository)
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""
    return ran.stdout


def test_answers_with_what_git_confirms(shown: str, repository: Path) -> None:
    """The answer names hash, author and subject of the latest commit, and facts that the other hubs computed."""
    head = git(repository, "rev-parse", "HEAD")
    assert f'{head[:10]} by Ada Gardener, 3 days ago: "Harvest apples"' in shown
    assert "Commits read: 3" in shown
    assert "Words in their subjects: 9, most often orchard (2x)" in shown
    now = re.search(r"It is \w+, (\S+ \S+) UTC", shown)
    assert now is not None
    assert datetime.now(UTC) - datetime.fromisoformat(f"{now[1]}Z") < timedelta(hours=1)


def test_shows_the_failure_by_name_and_that_the_hub_is_left_alone(shown: str) -> None:
    """The demo's first run fails with the hub's name and words, the second is refused, and the third answers."""
    failure = "DiscoveryError: discovery of tools from provider 'catalogue' failed: CatalogueError: the index"
    refusal = "DiscoveryBackoff: discovery of tools from provider 'catalogue' failed: it failed recently"
    text = " ".join(shown.split())
    assert 0 < text.index(failure) < text.index(refusal) < text.index("Harvest apples")


def test_shows_every_boundary_as_a_span(shown: str) -> None:
    """The tree of the answering run has each phase of each iteration, and each provider is asked once in each."""
    tree = shown[shown.rindex("invoke_agent") : shown.index("The latest commit is")]
    for provider in ("git", "time", "catalogue"):
        assert tree.count(f"discover_tools {provider}") == 3
    assert tree.count("compose_request") == 3
    assert tree.count("chat scripted") == 3
    for tool in ("git_log", "get_current_time", "count_words", "top_words"):
        assert tree.count(f"execute_tool {tool}") == 1


def test_shows_which_hub_is_slow(shown: str) -> None:
    """The table says that the catalogue is slow, and by how much; on a busy machine, others may be slow, too."""
    verdicts = dict(re.findall(r"^\W*(git|time|catalogue)\b.*\b(ok|slow|failing)\b\W*$", shown, re.MULTILINE))
    assert verdicts.pop("catalogue") == "slow"
    assert set(verdicts) == {"git", "time"}
    assert re.search(r"catalogue is slow: \S+ s against an objective of 0.2 s", " ".join(shown.split()))


def test_fits_a_page_and_has_no_control_codes(shown: str) -> None:
    """The demo writes plain text of at most 100 columns into a pipe."""
    assert "\x1b" not in shown
    assert [line for line in shown.splitlines() if len(line) > 100] == []


def test_ends_with_the_line_that_opens_the_page(shown: str, repository: Path) -> None:
    """The runs are in the project's store, which the last line shows in a browser."""
    assert shown.rstrip().endswith("pellucid view .pellucid/telemetry.db")
    found = StoreReader(repository / ".pellucid" / "telemetry.db").runs(outcome="completed")
    assert [run.hubs for run in found] == [("catalogue", "git", "time")]


def test_view_serves_the_page(repository: Path) -> None:
    """`--view` shows the runs in a browser after the demo is over, until Ctrl-C, which is then no failure."""
    with subprocess.Popen(
        python("-c", MAIN, "demo", "--no-color", "--port", "0", "--view"),
        cwd=repository,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        while not (address := re.search(r"http://127\.0\.0\.1:\d+/ ", process.stdout.readline())):
            pass
        with urlopen(f"{address[0].strip()}runs", timeout=PATIENCE) as page:
            assert "completed" in page.read().decode()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=PATIENCE) == 0
        assert process.stderr.read() == ""


def test_sends_the_trace_that_it_names(repository: Path) -> None:
    """`--otlp` delivers traces, metrics and logs; the trace id shown last is that of a run among them."""
    with otlp_receiver("http/protobuf") as receiver:
        ran = run_demo("--no-color", "--port", "0", "--otlp", receiver.endpoint, cwd=repository)
    assert ran.returncode == 0, ran.stderr
    assert f"was sent to {receiver.endpoint}" in ran.stdout
    runs = {span.trace_id.hex(): span for span in receiver.spans if span.name == "invoke_agent demo"}
    assert len(runs) == 3
    shown = re.findall(r"[0-9a-f]{32}", ran.stdout)[-1]
    assert attributes_of(runs[shown])["pellucid.outcome"] == "completed"
    assert {signal for signal, _ in receiver.requests} == {"traces", "metrics", "logs"}


def test_says_that_no_collector_listens(repository: Path) -> None:
    """The demo says in one line that no collector listens."""
    ran = run_demo("--no-color", "--port", "0", "--otlp", "http://127.0.0.1:9", cwd=repository)
    assert ran.returncode == 0
    assert "pellucid doctor --otlp http://127.0.0.1:9 says why" in " ".join(ran.stdout.split())
    assert ran.stderr == ""


def test_asks_about_the_repository_around_a_folder(tmp_path: Path) -> None:
    """The demo asks about the repository around a folder, also with a single commit and hostile messages."""
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "commit", "--quiet", "--allow-empty", "--message", "\x1b[31m" + "long " * 60)
    inside = tmp_path / "docs"
    inside.mkdir()
    ran = run_demo("--no-color", "--content", "--port", "0", "--repository", str(inside), cwd=tmp_path.parent)
    assert ran.returncode == 0, ran.stderr
    assert git(tmp_path, "rev-parse", "--short=10", "HEAD") in ran.stdout
    assert "Commits read: 1" in ran.stdout
    assert "\x1b" not in ran.stdout


@pytest.mark.parametrize(
    ("prepare", "problem"),
    [
        ((), "is not a git repository (not a git repository"),
        (("init", "--quiet"), "has no commit to ask about"),
    ],
)
def test_refuses_what_has_no_commits(tmp_path: Path, prepare: tuple[str, ...], problem: str) -> None:
    """The demo refuses a named folder that is no repository or has no commit."""
    if prepare:
        git(tmp_path, *prepare)
    ran = run_demo("--repository", ".", cwd=tmp_path)
    assert ran.returncode == 2
    assert problem in ran.stderr
    assert "--repository ." in ran.stderr
    assert "Traceback" not in ran.stderr
    assert ran.stdout == ""


def test_shows_a_sample_outside_of_a_repository(tmp_path: Path) -> None:
    """The demo shows all without git, with commits that are said to be invented."""
    folder = Path("/proc") if Path("/proc/self").exists() else tmp_path
    (tmp_path / "bin").mkdir()
    ran = subprocess.run(
        [sys.executable, "-m", "pellucid", "demo", "--no-color", "--port", "0"],
        cwd=folder,
        env={"PATH": str(tmp_path / "bin"), "PYTHONPATH": os.environ.get("PYTHONPATH", "")},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""
    said = " ".join(ran.stdout.split())
    assert "a sample of invented commits, because git is not installed or not on PATH; --repository PATH" in said
    assert 'by Ada Sample, 2 hours ago: "Retry the catalogue once it is back"' in said
    assert "most often catalogue (4x)" in said
    assert re.search(r"^ *catalogue .* slow$", ran.stdout, re.MULTILINE)


@pytest.mark.parametrize(("extra", "package", "option"), [("demo", "mcp", "--serve"), ("view", "jinja2", "--view")])
def test_names_the_missing_extra(repository: Path, extra: str, package: str, option: str) -> None:
    """The demo says what to install if the packages of an extra are missing."""
    script = (
        "import sys, importlib.util as u; find = u.find_spec;"
        f"u.find_spec = lambda name, *rest: None if name.startswith('{package}') else find(name, *rest);"
        f"from pellucid.cli import main; sys.exit(main(['demo', '{option}']))"
    )
    command = [sys.executable, "-c", script]
    ran = subprocess.run(command, cwd=repository, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert ran.returncode == 2
    assert f"pip install 'pellucid[{extra}]'" in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
def test_an_interrupt_ends_it_with_its_servers(repository: Path) -> None:
    """Ctrl-C during a run ends the demo with 130, without a traceback, and no server is left."""
    with subprocess.Popen(
        [sys.executable, "-c", MAIN, "demo", "--no-color", "--port", "0"],
        cwd=repository,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        while "invoke_agent" not in process.stdout.readline():
            pass  # until the first run was shown: the servers are up
        servers = children_of(process.pid)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=PATIENCE) == 130
        assert process.stderr.read() == ""
    assert len(servers) == 2
    assert not [pid for pid in servers if is_alive(pid)]


def test_serve_keeps_the_metrics_up(repository: Path) -> None:
    """`--serve` answers scrapes after the demo is over, until Ctrl-C, which is then no failure."""
    with subprocess.Popen(
        python("-c", MAIN, "demo", "--no-color", "--port", "0", "--serve"),
        cwd=repository,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        shown = ""
        while "Ctrl-C" not in shown.rpartition("Serving")[2]:
            line = process.stdout.readline()
            assert line, process.stderr.read()
            shown += line
        url = re.findall(r"http://127\.0\.0\.1:\d+/metrics", shown)[-1]
        with urlopen(url, timeout=60) as answer:
            assert b"pellucid_tool_discovery_duration_seconds_bucket" in answer.read()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=PATIENCE) == 0
        assert process.stderr.read() == ""


def test_repeats_in_one_process_until_it_is_interrupted(repository: Path) -> None:
    """The demo with `--repeat` counts all rounds in one process, until it is interrupted."""
    with subprocess.Popen(
        python("-c", MAIN, "demo", "--no-color", "--port", "0", "--repeat", "2"),
        cwd=repository,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        urls = []
        for line in process.stdout:
            urls += re.findall(r"http://127\.0\.0\.1:\d+/metrics", line)
            if line.startswith("Next") and len(urls) >= 2:
                break
        with urlopen(urls[0], timeout=PATIENCE) as answer:
            metrics = answer.read().decode()
        runs = re.findall(r"^gen_ai_invoke_agent_duration_seconds_count\{.*\} (\S+)", metrics, re.MULTILINE)
        assert sum(map(float, runs)) >= 6
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        assert process.wait(timeout=PATIENCE) == 130
        assert process.stderr.read() == ""


def children_of(pid: int) -> list[int]:
    """Return the processes that another one started."""
    stats = {int(stat.parent.name): stat.read_text().rpartition(")")[2] for stat in Path("/proc").glob("[0-9]*/stat")}
    return [child for child, stat in stats.items() if int(stat.split()[1]) == pid]


def is_alive(pid: int) -> bool:
    """Say whether a process exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--repeat", "nan"), "'nan' is not a number of seconds from 0 to 86400"),
        (("--repeat=-1",), "'-1' is not a number of seconds"),
        (("--repeat", "1e300"), "'1e300' is not a number of seconds"),
        (("--repeat", "5", "--serve"), "not allowed with argument --repeat"),
    ],
)
def test_refuses_what_cannot_be_repeated(
    capsys: pytest.CaptureFixture[str], options: tuple[str, ...], problem: str
) -> None:
    """The demo refuses a wrong pause, and `--repeat` with `--serve`."""
    with pytest.raises(SystemExit) as exit_:
        main(["demo", *options])
    assert exit_.value.code == 2
    assert problem in capsys.readouterr().err


def test_reads_messages_that_look_like_the_log_itself() -> None:
    """A commit message that quotes a log line is not taken for another commit."""
    text = (
        f"Commit history:\nCommit: {'a' * 40}\nAuthor: Ada\nDate: 2026-01-02 03:04:05+01:00\n"
        f"Message: Revert\n\nThis reverts\nCommit: {'b' * 40}\nas it was wrong\n\n"
    )
    assert [commit["subject"] for commit in read_log(text)] == ["Revert"]
