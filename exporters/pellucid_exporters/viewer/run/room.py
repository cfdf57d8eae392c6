"""The room that recorded content may take on a page, in elements and in characters of HTML."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from markupsafe import Markup, escape

from pellucid_exporters.stored.text import MOST, cut, visible

_FEW: Final = 400
"""Characters of a text that are shown where no room is left."""


class Room:
    """Remaining elements and characters of a part of a page.

    Attributes:
        longest: Characters of one text that are shown.
        largest: Elements of one value or text that are shown.
    """

    def __init__(self, elements: int, characters: int, longest: int = MOST, largest: int | None = None) -> None:
        self._elements, self._characters = elements, characters
        self.longest, self.largest = longest, elements if largest is None else largest
        self._kept = (0, 0)

    @property
    def is_spent(self) -> bool:
        """True if no room is left."""
        return self._elements <= self._kept[0] or self._characters <= self._kept[1]

    def divide(self, number: int) -> None:
        """Let what follows have its share of what is left, as one of a number of equals."""
        keep = (number - 1) / number
        self._kept = int(self._elements * keep), int(self._characters * keep)

    def add(self, html: Markup) -> Markup:
        """Return HTML that has to be shown, and count it."""
        self._elements -= elements_in(html)
        self._characters -= len(html)
        return html

    def fit(self, text: str, render: Callable[[], Markup]) -> Markup:
        """Return rendered content; if there is no room for it, the beginning of its text."""
        html = render() if not self.is_spent else None
        elements, characters = self._elements - self._kept[0], self._characters - self._kept[1]
        if html is None or elements_in(html) > min(elements, self.largest) or len(html) > characters:
            few = Markup('<pre class="prose">{}</pre>').format(escape(visible(cut(text, _FEW))))
            rest = len(text) - _FEW
            return self.add(few + (Markup('<p class="cut">… {} more characters</p>').format(f"{rest:,}") * (rest > 0)))
        return self.add(html)


def elements_in(html: str) -> int:
    """Return the number of elements of HTML, in which all text is escaped."""
    return html.count("<") - html.count("</")
