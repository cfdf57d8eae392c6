"""The API reference in Markdown: `docs/api`, written from the docstrings so that it can be read without the site.

A page has a marker for each name, `<!-- ::: pellucid.Agent -->`, followed by what `python -m documentation.reference`
writes. The site replaces that by mkdocstrings' own rendering of the same docstring.
"""

from __future__ import annotations

import re
import sys
import textwrap
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import griffe

from support.pages import API, END, MARKED, ROOT, directives

if TYPE_CHECKING:
    from collections.abc import Iterator

PLAIN: Final = re.compile(r"^(::: [\w.]+(?:\n    .*)*)$", re.MULTILINE)
WIDTH: Final = 100
"""Characters of a signature; a longer one has a line for each parameter."""

_LISTS: Final = {
    griffe.DocstringSectionKind.parameters: "Parameters",
    griffe.DocstringSectionKind.other_parameters: "Options",
    griffe.DocstringSectionKind.attributes: "Attributes",
    griffe.DocstringSectionKind.raises: "Raises",
    griffe.DocstringSectionKind.returns: "Returns",
    griffe.DocstringSectionKind.yields: "Yields",
}


def written(page: str) -> str:
    """Return a page with the reference of each of its names written anew, and of each directive that has none yet."""

    def section(found: re.Match[str]) -> str:
        text = "\n\n".join(_rendered(_found(found["name"]), found["name"], 2))
        return f"<!-- {found['directive']} -->\n\n{text}\n\n{END}"

    return MARKED.sub(section, PLAIN.sub(rf"<!-- \1 -->\n{END}", directives(page)))


@cache
def _loader() -> griffe.GriffeLoader:
    paths = [ROOT / "sdk", ROOT / "exporters", ROOT / "dashboards"]
    loader = griffe.GriffeLoader(
        search_paths=paths,
        docstring_parser="google",
        docstring_options={"warnings": False},
    )
    for package in (
        "pellucid",
        "pellucid_exporters",
        "pellucid_instrumentation",
        "pellucid_replay",
        "pellucid_experiments",
    ):
        loader.load(package)
    loader.resolve_aliases(implicit=True)
    return loader


def _found(name: str) -> Any:
    found: Any = _loader().modules_collection
    for part in name.split("."):
        found = found[part]
    return found.final_target if found.is_alias else found


def _rendered(described: Any, name: str, level: int) -> Iterator[str]:
    """Yield the paragraphs of a module, class, function or value and of its public members."""
    if not described.is_module:
        yield f"{'#' * level} `{name}`"
    if described.is_function or described.is_class:
        yield from _signature(described, name.rpartition(".")[2])
    if described.docstring is not None and not described.is_module:
        yield from _docstring(described.docstring)
    if described.is_module or described.is_class:
        members = [member for member in described.all_members.values() if _is_shown(member, described)]
        for member in sorted(members, key=_place):
            target = member.final_target if member.is_alias else member
            yield from _rendered(target, member.name, level + (not described.is_module))


def _place(member: Any) -> tuple[bool, int]:
    """Return the order of members: as in the source, inherited ones last."""
    return member.is_alias, member.lineno or 0


def _is_shown(member: Any, owner: Any) -> bool:
    if member.name.startswith("_") or (member.is_alias and not member.inherited):
        return False
    return (member.docstring is not None or member.is_class) and not (owner.is_module and member.is_module)


def _signature(described: Any, name: str) -> Iterator[str]:
    parameters = [each for each in described.parameters if each.name not in ("self", "cls")]
    if described.is_class and not parameters:
        return
    texts, is_keyword = [], False
    for each in parameters:
        if each.kind is griffe.ParameterKind.keyword_only and not is_keyword:
            texts.append("*")
        is_keyword = is_keyword or each.kind in (
            griffe.ParameterKind.keyword_only,
            griffe.ParameterKind.var_positional,
        )
        stars = {griffe.ParameterKind.var_positional: "*", griffe.ParameterKind.var_keyword: "**"}.get(each.kind, "")
        annotation = f": {each.annotation}" if each.annotation is not None else ""
        default = f" = {each.default}" if each.default is not None and not stars else ""
        texts.append(f"{stars}{each.name}{annotation}{default}")
    returned = f" -> {described.returns}" if described.is_function and described.returns is not None else ""
    prefix = "async " if "async" in described.labels else ""
    line = f"{prefix}{name}({', '.join(texts)}){returned}"
    if len(line) > WIDTH:
        line = f"{prefix}{name}(\n" + "".join(f"    {text},\n" for text in texts) + f"){returned}"
    yield f"```python\n{line}\n```"


def _docstring(docstring: Any) -> Iterator[str]:
    for section in docstring.parsed:
        if section.kind is griffe.DocstringSectionKind.text:
            yield section.value
        elif section.kind in _LISTS:
            yield f"{_LISTS[section.kind]}:"
            yield "\n".join(_item(each) for each in section.value)
        elif section.kind is griffe.DocstringSectionKind.admonition:
            yield f"{section.title}: {section.value.description}"
        else:
            raise NotImplementedError(f"{docstring.parent.path}: a section of the kind {section.kind}")


def _item(item: Any) -> str:
    names = getattr(item, "name", "") or re.sub(r"^\((.*)\)$", r"\1", str(item.annotation or ""))
    who = ", ".join(f"`{name}`" for name in names.split(", ")) + ": " if names else ""
    return "- " + textwrap.indent(f"{who}{item.description}", "  ").lstrip()


def main() -> int:
    """Write the pages."""
    for page in sorted(API.glob("*.md")):
        page.write_text(written(page.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
