"""The command line tool, with commands that the tests declare."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import pellucid
from pellucid import ConfigError, PellucidError
from pellucid.cli import GROUP, Command, main
from support.processes import PATIENCE

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable


def add_arguments(parser: ArgumentParser) -> None:
    """Declare options and a nested command."""
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--tone", choices=("friendly", "formal"))
    parser.add_argument("--names", type=Path)
    parser.add_subparsers().add_parser("everybody")


def greet(options: Namespace) -> int:
    """Print the greetings."""
    sys.stdout.write("hello " * options.times)
    return 7


def misconfigured(options: Namespace) -> int:
    """Refuse the option."""
    raise ConfigError("--times: must be a prime")


def failing(options: Namespace) -> int:
    """Fail with an error."""
    raise PellucidError("the hub has gone")


def interrupted(options: Namespace) -> int:
    """Raise `KeyboardInterrupt`."""
    raise KeyboardInterrupt


GREET = Command(
    name="greet",
    help="Say hello.",
    add_arguments=add_arguments,
    run=greet,
    examples=("pellucid greet --times 2", "pellucid greet everybody"),
)
MISCONFIGURED = Command(name="misconfigured", help="Refuse.", add_arguments=add_arguments, run=misconfigured)
FAILING = Command(name="failing", help="Fail.", add_arguments=add_arguments, run=failing)
INTERRUPTED = Command(name="interrupted", help="Stop.", add_arguments=add_arguments, run=interrupted)
NO_COMMAND = "not a command"


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that installs objects of a module as commands."""

    def install(*names: str, module: str = __name__) -> None:
        points = EntryPoints(EntryPoint(name.lower(), f"{module}:{name}", GROUP) for name in names)
        monkeypatch.setattr("pellucid.cli.entry_points", lambda group: points.select(group=group))

    return install


def test_runs_the_command_with_its_options_and_returns_its_exit_code(
    install: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    """`pellucid greet --times 2` runs the command of an entry point and returns its exit code."""
    install("GREET")
    assert main(["greet", "--times", "2"]) == 7
    assert capsys.readouterr().out == "hello hello "


def test_help_lists_the_installed_commands(install: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    """`pellucid --help` shows each command with its line of help."""
    install("GREET", "FAILING")
    with pytest.raises(SystemExit) as exit_:
        main(["--help"])
    out = capsys.readouterr().out
    assert exit_.value.code == 0
    assert "greet" in out
    assert "Say hello." in out
    assert out.index("failing") < out.index("greet")


def test_without_a_command_help_goes_to_stderr(
    install: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    """`pellucid` alone prints its help on stderr."""
    install("GREET")
    assert main([]) == 2
    assert "greet" in capsys.readouterr().err


def test_an_unknown_command_names_the_nearest(install: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown command ends with code 2 and the nearest name."""
    install("GREET", "FAILING")
    with pytest.raises(SystemExit) as exit_:
        main(["gret", "--times", "2"])
    assert exit_.value.code == 2
    assert capsys.readouterr().err.endswith("pellucid: error: there is no command 'gret'; did you mean 'greet'?\n")


@pytest.mark.parametrize(
    ("name", "code", "message"),
    [
        ("MISCONFIGURED", 2, "pellucid: misconfigured: --times: must be a prime\n"),
        ("FAILING", 1, "pellucid: failing: the hub has gone\n"),
        ("INTERRUPTED", 130, ""),
    ],
)
def test_failures_are_messages_and_exit_codes(
    install: Callable[..., None], capsys: pytest.CaptureFixture[str], name: str, code: int, message: str
) -> None:
    """An exception of a command becomes one line on stderr and an exit code."""
    install(name)
    assert main([name.lower()]) == code
    assert capsys.readouterr().err == message


@pytest.mark.parametrize(
    ("words", "examples"),
    [
        (["greet"], "  pellucid greet --times 2\n  pellucid greet everybody\n"),
        (["greet", "everybody"], "  pellucid greet everybody\n"),
    ],
)
def test_help_ends_with_examples(
    install: Callable[..., None], capsys: pytest.CaptureFixture[str], words: list[str], examples: str
) -> None:
    """The help of a command ends with its examples, and that of a nested command with its own."""
    install("GREET")
    with pytest.raises(SystemExit):
        main([*words, "--help"])
    assert capsys.readouterr().out.endswith(f"\nexamples:\n{examples}")


COMPLETE = {
    "bash": """
        source $1
        COMP_WORDS=(${@:2} "$WORD"); COMP_CWORD=$(($# - 1)); _shtab_pellucid; printf '%s\\n' "${COMPREPLY[@]}"
        """,
    "fish": 'source $argv[1]; complete --do-complete "$argv[2..] $WORD"',
}
"""Programs that complete the last word of a command line; zsh completes only in a terminal."""


@pytest.mark.parametrize("shell", ["bash", "fish", "zsh"])
def test_a_shell_completes_commands_options_choices_and_files(
    install: Callable[..., None], capsys: pytest.CaptureFixture[str], tmp_path: Path, shell: str
) -> None:
    """The completion script of each shell completes commands, options, choices and files."""
    install("GREET", "FAILING")
    assert main(["--print-completion", shell]) == 0
    script = tmp_path / "script"
    script.write_text(capsys.readouterr().out)
    assert "pellucid" in script.read_text()
    if shutil.which(shell) is None:
        complain = pytest.fail if os.environ.get("PELLUCID_REQUIRE_SERVICES") else pytest.skip
        complain(f"{shell} is not installed")
    if shell == "zsh":
        subprocess.run([shell, "-n", script], check=True, timeout=PATIENCE)
        return
    (tmp_path / "names.txt").touch()
    for words, expected in (
        ("gr", "greet"),
        ("greet --ti", "--times"),
        ("greet --tone fr", "friendly"),
        ("greet --names na", "names.txt"),
        ("greet ev", "everybody"),
    ):
        *before, word = words.split()
        command = [shell, "-c", textwrap.dedent(COMPLETE[shell]), *(["-"] if shell == "bash" else [])]
        ran = subprocess.run(
            [*command, script, "pellucid", *before],
            cwd=tmp_path,
            env={**os.environ, "WORD": word},
            capture_output=True,
            text=True,
            check=True,
            timeout=PATIENCE,
        )
        assert [line.partition("\t")[0].strip() for line in ran.stdout.splitlines()] == [expected], ran.stderr


def test_completion_without_shtab_is_refused(
    install: Callable[..., None], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--print-completion` without shtab names the extra."""
    install("GREET")
    monkeypatch.setattr("pellucid.cli.find_spec", lambda name: None)
    assert main(["--print-completion", "bash"]) == 2
    assert capsys.readouterr().err.endswith("shtab is not installed; run: pip install 'pellucid[completion]'\n")


def install_package(folder: Path, name: str, *points: str) -> None:
    """Write the metadata of a package with entry points, in which `{}` stands for this module."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("\n".join([f"[{GROUP}]", *points]).replace("{}", __name__))


def test_a_command_is_loaded_without_the_others_of_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A command starts without importing the other commands of its package."""
    install_package(tmp_path, "one", "greet = {}:GREET", "other = no_such_module_of_pellucid:OTHER")
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["greet"]) == 7
    assert "no_such_module_of_pellucid" not in capsys.readouterr().err


def test_two_packages_with_the_same_command_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A command that two packages declare is not run, and the error names both."""
    install_package(tmp_path, "one", "greet = {}:GREET", "failing = {}:FAILING")
    install_package(tmp_path, "two", "hello = {}:GREET")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SystemExit) as exit_:
        main(["greet"])
    err = capsys.readouterr().err
    assert exit_.value.code == 2
    both = f"one ({__name__}:GREET) and two ({__name__}:GREET)"
    remedy = "uninstall the package that you do not need: pip uninstall NAME"
    assert f"pellucid: subcommand 'greet' is declared more than once, by {both}; {remedy}\n" in err
    assert "there is no command 'greet'; " in err
    assert main(["failing"]) == 1


def test_a_broken_command_does_not_break_the_others(
    install: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    """An invalid command is named on stderr, and the others work."""
    install("GREET", "NO_COMMAND")
    assert main(["greet"]) == 7
    assert "'no_command'" in capsys.readouterr().err


def test_a_command_that_cannot_be_imported_is_named(
    install: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    """A command whose module is missing is named on stderr with the reason."""
    install("GREET", module="no_such_module_of_pellucid")
    assert main([]) == 2
    assert "No module named 'no_such_module_of_pellucid'" in capsys.readouterr().err


def test_version_of_the_installed_command() -> None:
    """`python -m pellucid --version` prints the version."""
    ran = subprocess.run(
        [sys.executable, "-m", "pellucid", "--version"],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE,
    )
    assert ran.stdout == f"pellucid {pellucid.__version__}\n"


def test_a_reader_that_leaves_is_not_a_traceback() -> None:
    """A reader that closes the pipe early causes no traceback."""
    script = (
        "import sys; from pellucid import cli;"
        "many = cli.Command(name='x', help='', add_arguments=lambda p: None, run=lambda o: print('x\\n' * 10**6) or 0);"
        "point = type('P', (), {'name': 'x', 'value': '', 'dist': None, 'load': lambda self: many})();"
        "cli.entry_points = lambda group: [point];"
        "sys.exit(cli.main(['x']))"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(2)
        process.stdout.close()
        assert process.wait(timeout=PATIENCE) == 141
        assert process.stderr.read() == b""
