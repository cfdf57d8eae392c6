"""The Python API, as the pages in `docs/api` list it: names, and the parameters of what can be called."""

from __future__ import annotations

import inspect
import re
from enum import Enum
from importlib import import_module
from inspect import Parameter
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Final, is_typeddict

import pellucid
from support.pages import API, directives

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

DIRECTIVE: Final = re.compile(r"^::: (?P<module>[\w.]+)\.(?P<name>\w+)$", re.MULTILINE)
TOOL: Final = "pellucid.tools.tool.tool"
"""Path by which the pages name `pellucid.tool`; mkdocstrings takes that name for the module."""


def public_objects() -> dict[str, Any]:
    """Return what the reference describes, by the path to import it from. Of a whole module that is its `__all__`."""
    found: dict[str, Any] = {f"pellucid.{name}": getattr(pellucid, name) for name in pellucid.__all__}
    for page in sorted(API.glob("*.md")):
        for module, name in DIRECTIVE.findall(directives(page.read_text(encoding="utf-8"))):
            path = f"{module}.{name}"
            value = getattr(import_module(module), name)
            if isinstance(value, ModuleType):
                found |= {f"{path}.{item}": getattr(value, item) for item in getattr(value, "__all__", ())}
            else:
                found["pellucid.tool" if path == TOOL else path] = value
    return found


def parameters(objects: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each function, class and method, and for each parameter: its place, and whether it is required.

    Lines have no modules, so that they stay when a name moves.
    """
    classes = {value for value in objects.values() if inspect.isclass(value)}
    for path, value in objects.items():
        name = path.rpartition(".")[2]
        if is_typeddict(value):
            yield from (f"{name} [{key}]" for key in value.__annotations__)
        elif inspect.isroutine(value):
            yield from _lines(name, value)
        elif inspect.isclass(value):
            yield from _lines_of_class(name, value, classes)


def _lines_of_class(name: str, kind: type[Any], public: set[type[Any]]) -> Iterator[str]:
    """Yield the lines of a class: of its constructor, and of the methods that it does not have from a public class."""
    own = [base for base in kind.__mro__ if base.__module__.startswith("pellucid")]
    has_constructor = any(not {"__init__", "__new__"}.isdisjoint(vars(base)) for base in own)
    if has_constructor and not issubclass(kind, Enum) and not getattr(kind, "_is_protocol", False):
        yield from _lines(name, kind)
    for method in sorted({method for base in own for method in vars(base)}):
        owner = next(base for base in own if method in vars(base))
        if (method.startswith("_") and method != "__call__") or method.startswith("test_"):
            continue
        if method in getattr(kind, "__dataclass_fields__", ()):  # the default of a field may be a function
            continue
        if owner is not kind and owner in public:
            continue
        value = inspect.getattr_static(kind, method)
        if isinstance(value, classmethod | staticmethod):
            yield from _lines(f"{name}.{method}", getattr(kind, method))
        elif isinstance(value, FunctionType):
            yield from _lines(f"{name}.{method}", value, skip=1)


def _lines(name: str, function: Any, skip: int = 0) -> Iterator[str]:
    yield f"{name}()"
    for place, parameter in enumerate([*inspect.signature(function).parameters.values()][skip:], start=1):
        need = "required" if parameter.default is Parameter.empty else "optional"
        yield {
            Parameter.POSITIONAL_ONLY: f"{name} {parameter.name}: place {place} only, {need}",
            Parameter.POSITIONAL_OR_KEYWORD: f"{name} {parameter.name}: place {place}, {need}",
            Parameter.VAR_POSITIONAL: f"{name} *{parameter.name}",
            Parameter.KEYWORD_ONLY: f"{name} {parameter.name}: keyword, {need}",
            Parameter.VAR_KEYWORD: f"{name} **{parameter.name}",
        }[parameter.kind]
