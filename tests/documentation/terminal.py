"""Output of a program as a picture of a terminal."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from support.processes import PATIENCE

NARROWEST: Final = 84
"""Columns of a picture, so that the text of all pictures has about one size."""
_DARK: Final = (22, 27, 34)
_LIGHT: Final = (219, 225, 232)
_RED, _GREEN, _YELLOW = (255, 123, 114), (86, 211, 100), (227, 179, 65)
_BLUE, _MAGENTA, _CYAN = (121, 192, 255), (210, 168, 255), (86, 212, 221)
_THEME: Final = TerminalTheme(_DARK, _LIGHT, [_DARK, _RED, _GREEN, _YELLOW, _BLUE, _MAGENTA, _CYAN, _LIGHT])
_FONTS: Final = 'ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace'
_FRAME: Final = f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {{width}} {{height}}" role="img">
<style>
.{{unique_id}}-matrix {{{{ font: {{char_height}}px/{{line_height}}px {_FONTS} }}}}
{{styles}}
</style>
<defs>
<clipPath id="{{unique_id}}-clip-terminal"><rect width="{{terminal_width}}" height="{{terminal_height}}"/></clipPath>
{{lines}}
</defs>
{{chrome}}
<g transform="translate({{terminal_x}}, {{terminal_y}})" clip-path="url(#{{unique_id}}-clip-terminal)">
{{backgrounds}}
<g class="{{unique_id}}-matrix">
{{matrix}}
</g>
</g>
</svg>
"""
"""The frame of Rich, with fonts of the reader instead of one that is loaded from elsewhere."""


def record(command: Sequence[str], *, folder: Path, width: int) -> str:
    """Run Python in a folder, as in a terminal of so many columns, and return its output with its colours."""
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={**os.environ, "FORCE_COLOR": "1", "COLUMNS": str(width)},
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE,
    )
    return done.stdout


def picture(output: str, *, name: str) -> str:
    """Return output as an SVG document, which loads nothing. `name`: a prefix of its classes."""
    text = Text.from_ansi(output.strip("\n"))
    console = Console(
        record=True,
        width=max(NARROWEST, *map(len, text.plain.splitlines())) + 1,
        file=io.StringIO(),
        force_terminal=True,
        highlight=False,
    )
    console.print(text, no_wrap=True, soft_wrap=True)
    return console.export_svg(title="", theme=_THEME, code_format=_FRAME, unique_id=name)
