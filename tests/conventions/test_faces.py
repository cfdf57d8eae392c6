"""The face of a package, its `__init__`, is imported from outside of the package only."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ROOT = Path(__file__).parents[2]


def at_import_time(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield the nodes that run when the module is imported, without functions and blocks for type checkers."""
    for node in nodes:
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            yield from at_import_time(node.orelse)
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield node
            yield from at_import_time(ast.iter_child_nodes(node))


def imports_of_own_faces(path: Path, root: Path) -> Iterator[str]:
    """Yield the imports of names from the face of a package that contains the module. Its submodules are exempt."""
    parts = path.relative_to(root).parts
    packages = {".".join(parts[:depth]): root.joinpath(*parts[:depth]) for depth in range(1, len(parts))}
    for node in at_import_time(ast.parse(path.read_text()).body):
        is_found = False
        if isinstance(node, ast.Import):
            is_found = any(alias.name in packages for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = ".".join((*(parts[: -node.level] if node.level else ()), *filter(None, [node.module])))
            if origin in packages:
                modules = {child.stem for child in packages[origin].iterdir()}
                is_found = any(alias.name not in modules for alias in node.names)
        if is_found:
            yield f"{path.relative_to(root)}: {ast.unparse(node)}"


@pytest.mark.parametrize("folder", ["sdk", "exporters", "dashboards"])
def test_no_module_imports_the_face_of_its_own_package(folder: str) -> None:
    """An import of the face from within its package is a cycle, which import-linter does not see."""
    root = ROOT / folder
    modules = sorted(root.rglob("*.py"))
    assert modules
    assert [found for path in modules for found in imports_of_own_faces(path, root)] == []


@pytest.mark.parametrize(
    ("statement", "is_found"),
    [
        ("from pack.room import Name", True),
        ("from pack import Name", True),
        ("from . import Name", True),
        ("from .. import Name", True),
        ("import pack.room", True),
        ("if True:\n    from pack.room import Name", True),
        ("class Lazy:\n    from pack.room import Name", True),
        ("from pack.room import other", False),
        ("from . import other", False),
        ("from .other import Name", False),
        ("from pack.room.other import Name", False),
        ("from elsewhere import Name", False),
        ("if TYPE_CHECKING:\n    from pack.room import Name", False),
        ("def late():\n    from pack.room import Name", False),
    ],
)
def test_imports_of_own_faces_are_found(tmp_path: Path, statement: str, is_found: bool) -> None:
    """Only imports at import time count, and a submodule is not a name of the face."""
    room = tmp_path / "pack" / "room"
    room.mkdir(parents=True)
    (room / "other.py").touch()
    (room / "module.py").write_text(statement)
    assert bool([*imports_of_own_faces(room / "module.py", tmp_path)]) is is_found
