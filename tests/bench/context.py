"""Costs and gains of `Context`: the prefix that prompt caches know, the time of an iteration, valid requests.

Run it with `make bench WHAT=context`. An agent calls a tool with results of 20 kB in each of 2,000 iterations, with and
without a window. A prompt cache would know what a request has in common with the one before it, from the beginning on;
the share is that of all input tokens. Times are those between model calls, in processor time of the event loop's
thread. Then turns are timed that follow few and many messages, and conversations by chance are played with small
windows: each request is held to what three vendors accept.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final

import anyio
from opentelemetry.sdk.trace import TracerProvider

from pellucid import (
    Agent,
    Context,
    Limits,
    Message,
    ModelResponse,
    TelemetryOptions,
    Tool,
    ToolCall,
    ToolResult,
    Usage,
)
from pellucid.compaction import DropTurns
from pellucid.testing import FunctionModel
from support.fitted import Fitted, fit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pellucid import ModelRequest

ITERATIONS: Final = 2_000
RESULT: Final = 20_000
WINDOWS: Final = (50_000, 200_000, 1_000_000)
BLOCK: Final = 100
HISTORIES: Final = (100, 500, 2_000)
TURNS: Final = 15
TEXT: Final = 400


class Vendor:
    """A model that calls a tool each time, counts tokens, and remembers what it was sent the last time.

    Attributes:
        sent: Tokens of all requests.
        cached: Those of them that the request before had, too, from the beginning on.
        largest: Tokens of the largest request.
        asked: When it was called, in seconds of processor time.
    """

    name = "vendor"
    provider_name = "bench"

    def __init__(self, iterations: int) -> None:
        self._iterations = iterations
        self._counted: dict[int, tuple[Message, int]] = {}
        self._last: Sequence[Message] = ()
        self.sent = self.cached = self.largest = 0
        self.asked: list[float] = []
        self._outside = 0.0

    async def generate(self, request: ModelRequest) -> ModelResponse:
        """Answer a request."""
        began = time.thread_time()
        self.asked.append(began - self._outside)
        tokens = sum(map(self._count, request.messages))
        pairs = zip(self._last, request.messages, strict=False)
        self.cached += sum(self._count(new) for _, new in takewhile(lambda pair: pair[0] is pair[1], pairs))
        self.sent, self.largest, self._last = self.sent + tokens, max(self.largest, tokens), request.messages
        number = len(self.asked)
        is_over = number > self._iterations
        message = Message("assistant", "done" if is_over else [ToolCall("look", {"number": number}, f"call_{number}")])
        usage = Usage(input_tokens=tokens, output_tokens=self._count(message))
        self._outside += time.thread_time() - began
        return ModelResponse(message=message, usage=usage, finish_reason="stop" if is_over else "tool_call")

    def stream(self, request: ModelRequest) -> Any:
        """Not used."""
        raise NotImplementedError

    def _count(self, message: Message) -> int:
        if id(message) not in self._counted:
            self._counted[id(message)] = message, len(json.dumps(message.to_dict())) // 4
        return self._counted[id(message)][1]


async def look(arguments: Any, ctx: Any) -> str:
    """Return a result of 20 kB."""
    return f"{arguments['number']}: {'word ' * RESULT}"[:RESULT]


async def run(iterations: int, context: Context | None) -> Vendor:
    """Run the agent; return what its vendor saw."""
    vendor = Vendor(iterations)
    tool = Tool(name="look", description="Look.", run=look)
    limits = Limits(max_iterations=iterations + 10)
    await Agent("long", model=vendor, tools=[tool], limits=limits, context=context).run("Find out.")
    return vendor


def report(name: str, vendor: Vendor, whole: Vendor) -> None:
    """Print what a run took."""
    steps = [1e6 * (after - before) for before, after in zip(vendor.asked, vendor.asked[1:], strict=False)]
    share, of_whole = vendor.cached / vendor.sent, whole.cached / whole.sent
    early, late = steps[len(steps) // 2 : len(steps) // 2 + BLOCK], steps[-BLOCK:]
    print(
        f"{name:32}{vendor.largest:>12,}{vendor.sent:>16,}{share:>9.1%}{share / of_whole:>13.1%}"
        f"{statistics.fmean(early):>11,.0f}{statistics.fmean(late):>9,.0f}"
    )


def spoken(number: int) -> list[Message]:
    """Return a conversation of so many messages, with a call of a tool in each turn."""
    messages: list[Message] = []
    for turn in range(number // 4):
        messages += [
            Message("user", f"question {turn} ".ljust(TEXT, "w")),
            Message("assistant", [ToolCall("look", {"number": turn}, f"call_{turn}")]),
            Message("tool", [ToolResult(f"call_{turn}", f"{turn} ".ljust(TEXT, "x"), name="look")]),
            Message("assistant", f"answer {turn} ".ljust(TEXT, "y")),
        ]
    return messages


async def turn(number: int, context: Context | None, telemetry: TelemetryOptions | None) -> float:
    """Return the milliseconds of processor time of a turn after so many messages."""
    agent = Agent("talking", model=FunctionModel(lambda _: "ok"), context=context, telemetry=telemetry)
    history, times = spoken(number), []
    for _ in range(TURNS):
        before = time.process_time()
        history = list((await agent.run("And then?", history=history)).messages)
        times.append(time.process_time() - before)
    return 1e3 * statistics.median(times)


async def conversations() -> None:
    """Print what a turn takes after few and after many messages."""
    spans = TelemetryOptions(tracer_provider=TracerProvider())
    print(f"\n{'ms of a turn after so many messages':40}{'':>4}{''.join(f'{number:>9,}' for number in HISTORIES)}")
    for name, telemetry in (("", None), (", spans", spans)):
        for kind, context in (("without a window", None), (f"window of {WINDOWS[0]:,}", Context(window=WINDOWS[0]))):
            found = [await turn(number, context, telemetry) for number in HISTORIES]
            print(f"{kind + name:44}{''.join(f'{each:>9.1f}' for each in found)}")


async def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=ITERATIONS)
    parser.add_argument("--conversations", type=int, default=10_000)
    options = parser.parse_args()
    print(f"{options.iterations:,} iterations with results of {RESULT:,} bytes")
    print(f"{'':32}{'largest':>12}{'all input':>16}{'cached':>9}{'of the whole':>13}{'µs halfway':>11}{'at last':>9}")
    whole = await run(options.iterations, None)
    report("without a window", whole, whole)
    for window in WINDOWS:
        report(f"window of {window:,} tokens", await run(options.iterations, Context(window=window)), whole)
    turns = Context(window=WINDOWS[1], strategies=[DropTurns()])
    report(f"window of {WINDOWS[1]:,}, DropTurns", await run(options.iterations, turns), whole)
    await conversations()
    found = Fitted()
    for seed in range(options.conversations):
        await fit(seed, found)
    print(
        f"\n{options.conversations:,} conversations: {found.requests:,} requests, {found.cuts:,} cut, "
        f"{found.repeated:,} refused as too long and made again, {len(found.problems)} invalid"
    )
    print("\n".join(found.problems[:20]))


if __name__ == "__main__":
    anyio.run(main)
