"""The option `context` of an agent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pellucid.compaction.ratios import Ratios
from pellucid.compaction.strategies import DropReasoning, DropResults, DropTurns, Strategy
from pellucid.errors import ConfigError
from pellucid.messages import Message
from pellucid.module_names import explained
from pellucid.text import excerpt


def _usual() -> tuple[Strategy, ...]:
    return (DropResults(), DropReasoning(), DropTurns())


@explained
@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Options that fit requests into the model's window. The conversation itself stays whole.

    ```python
    Agent("researcher", model="openai:gpt-6-sol", tools=[search], context=Context())
    Agent("local", model="ollama:qwen3", context=Context(window=32_768, strategies=[DropResults(), DropTurns()]))
    ```

    A request that would take more than four fifths of the window is cut to half of it, or as far as a quarter if steps
    are long. Between two cuts requests only grow, so that the prompt caches of vendors are used.

    Attributes:
        window: Tokens of the model's window, or those of several models by `provider:model` or by the model's name.
            Published windows come from the `genai-prices` package.
        keep: Whether a message always stays in requests, whole and with its calls and results. The first message of the
            user, the one that is being answered, the last two steps, system messages, loaded skills and discovered
            tools stay without it.
        strategies: Strategies to leave something out, each used once those before it do not suffice.
        ratios: Ratios of token counts that the runs with this object have learned.

    Raises:
        ConfigError: an option is invalid.
    """

    window: int | Mapping[str, int] | None = None
    keep: Callable[[Message], bool] | None = None
    strategies: Sequence[Strategy] = field(default_factory=_usual)
    ratios: Ratios = field(default_factory=Ratios, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        windows = list(self.window.values()) if isinstance(self.window, Mapping) else [self.window]
        for window in windows:
            is_unset = window is None and not isinstance(self.window, Mapping)
            if not is_unset and (not isinstance(window, int) or isinstance(window, bool) or window < 1):
                raise ConfigError(f"Context(window={excerpt(repr(self.window))}): give tokens, such as 200_000")
        if self.keep is not None and not callable(self.keep):
            raise ConfigError(f"Context(keep={excerpt(repr(self.keep))}): give a function of a Message")
        if not isinstance(self.strategies, list | tuple) or not self.strategies:
            raise ConfigError(
                f"Context(strategies={excerpt(repr(self.strategies))}): give a list, such as [DropResults()]"
            )
        for strategy in self.strategies:
            if isinstance(strategy, type) or not callable(getattr(strategy, "narrow", None)):
                raise ConfigError(
                    f"Context(strategies=[{excerpt(repr(strategy))}]): not a strategy; give objects with the method "
                    "narrow(messages), such as DropResults()"
                )
        object.__setattr__(self, "strategies", tuple(self.strategies))
