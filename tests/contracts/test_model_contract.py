"""The contract of models finds models that break it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from pellucid import ConfigError
from pellucid.testing import ModelContract, ScriptedVendor
from support import broken_models as broken
from support.contract_selection import ON_BOTH_LOOPS, RULES
from support.processes import run_pytest

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from pellucid import Model

WHOLE = {"way": "whole"}
TEXT = {"sample": "text"}
CALLS = {"sample": "parallel_tool_calls"}
THOUGHT = {"sample": "reasoning"}

IN_OTHER_LOOPS = ("a_stream_can_be_read_from_anywhere", "it_works_in_several_event_loops")

BROKEN: list[tuple[type[broken.Sound], str, dict[str, str], str]] = [
    (broken.Nameless, "it_is_a_model_with_a_stable_name", {}, "provider_name is empty"),
    (broken.Renamed, "it_is_a_model_with_a_stable_name", {}, "a call changed the model's name"),
    (broken.Reordered, "answers_are_those_of_the_vendor", {**WHOLE, **CALLS}, "parts of the answer are not those"),
    (broken.Unparsed, "answers_are_those_of_the_vendor", {**WHOLE, **CALLS}, "parts of the answer are not those"),
    (broken.Anonymous, "answers_are_those_of_the_vendor", {**WHOLE, **TEXT}, "id of the response is not what"),
    (broken.AlwaysDone, "finish_reasons_are_told", {**WHOLE, "reason": "length"}, "stopped because of 'length'"),
    (broken.CountsNothing, "usage_is_exact_and_unknown_is_none", {**WHOLE, "counted": "unknown"}, "None and never 0"),
    (broken.Shortened, "streamed_and_whole_are_equal", TEXT, "streamed answer is not the one that generate"),
    (broken.Endless, "a_stream_ends_with_the_response", TEXT, "the stream ends with ModelDelta"),
    (broken.Unended, "a_stream_ends_with_the_response", TEXT, "not with a ModelResponse"),
    (broken.Returning, "a_stream_ends_with_the_response", TEXT, "write it as an async generator"),
    (broken.Unbroken, "deltas_make_up_the_answer", TEXT, "do not join to the answer's text"),
    (broken.Outspoken, "deltas_make_up_the_answer", THOUGHT, "do not join to the answer's text"),
    (broken.Thoughtless, "deltas_make_up_the_answer", THOUGHT, "deltas of reasoning do not join"),
    (broken.Insistent, "deltas_make_up_the_answer", CALLS, "must announce each tool call once"),
    (broken.Hesitant, "deltas_make_up_the_answer", TEXT, "a delta is empty"),
    (broken.Patient, "pieces_are_yielded_as_they_arrive", {}, "the test did not finish within"),
    (broken.Scoped, "a_stream_can_be_read_from_anywhere", {}, "no cancel scope or task group may be open"),
    (broken.Greedy, "the_request_is_not_changed", WHOLE, "changed the request"),
    (broken.Forgetful, "the_history_is_sent_in_order", WHOLE, r"was not sent \['STANDINGORDER'\]"),
    (broken.Backwards, "the_history_is_sent_in_order", WHOLE, "is sent before earlier messages"),
    (broken.Indiscreet, "the_history_is_sent_in_order", WHOLE, "another vendor's data was sent"),
    (broken.Deaf, "tools_are_sent", WHOLE, r"vendor\.receive\(\) was called 0 times for 1 request"),
    (broken.Deaf, "settings_are_sent_or_refused", {**WHOLE, "setting": "top_p"}, "was called 0 times"),
    (broken.Deaf, "a_longer_history_begins_like_the_shorter_one", {}, "was called 0 times for 2 requests"),
    (broken.Sorting, "tools_are_sent", WHOLE, "not sent in the order of the request"),
    (broken.Terse, "tools_are_sent", WHOLE, r"was not sent \['TOOLDESCRIPTION'"),
    (broken.ToolBound, "a_closing_answer_needs_no_tools", WHOLE, "to a request without tools, but the model raised"),
    (broken.OneWay, "an_answer_can_be_given_back", {**WHOLE, **TEXT}, r"was not sent \['ANSWERTEXT'\]"),
    (broken.TextOnly, "content_is_sent_or_refused", {**WHOLE, "content": "image"}, "was not sent"),
    (broken.Puzzled, "content_is_sent_or_refused", {**WHOLE, "content": "image_uri"}, "refused as 'unknown'"),
    (broken.Sound, "content_is_sent_or_refused", {**WHOLE, "content": "image_uri"}, "which the vendor lacks"),
    (broken.Unasked, "settings_are_sent_or_refused", {**WHOLE, "setting": "top_p"}, r"was not sent \['0.625'\]"),
    (broken.Puzzled, "settings_are_sent_or_refused", {**WHOLE, "setting": "top_k"}, "refused as 'unknown'"),
    (broken.Unasked, "settings_are_sent_or_refused", {**WHOLE, "setting": "top_k"}, "which the vendor lacks"),
    (broken.Shapeless, "a_schema_for_the_answer_is_accepted", WHOLE, r"was not sent \['OUTPUTPROPERTY'\]"),
    (broken.Numbering, "equal_requests_are_sent_alike", WHOLE, "were sent as different bytes"),
    (broken.Counting, "a_longer_history_begins_like_the_shorter_one", {}, "has changed: '8"),
    (broken.Soothing, "failures_are_model_errors_with_kind_and_cause", {**WHOLE, "kind": "auth"}, "instead of raising"),
    (broken.Raw, "failures_are_model_errors_with_kind_and_cause", {**WHOLE, "kind": "auth"}, "raised ConnectionError"),
    (broken.Vague, "failures_are_model_errors_with_kind_and_cause", {**WHOLE, "kind": "auth"}, "error says 'unknown'"),
    (broken.Causeless, "failures_are_model_errors_with_kind_and_cause", {**WHOLE, "kind": "auth"}, "has no cause"),
    (
        broken.Hasty,
        "failures_are_model_errors_with_kind_and_cause",
        {**WHOLE, "kind": "rate_limited"},
        "to wait 7.0 s, the error says None",
    ),
    (
        broken.Persistent,
        "failures_are_model_errors_with_kind_and_cause",
        {**WHOLE, "kind": "unavailable"},
        "the vendor was called 3 times; turn off the retries of its SDK",
    ),
    (broken.Content, "a_stream_that_breaks_is_an_error", {}, "instead of raising a ModelError"),
    (broken.Stubborn, "cancellation_passes_through", WHOLE, "but it returned"),
    (broken.Offended, "cancellation_passes_through", WHOLE, "but it raised ModelError"),
    (
        broken.Leaky,
        "cancellation_passes_through",
        WHOLE,
        "a call was cancelled, and the vendor's connection is still open",
    ),
    (broken.Unclosable, "a_stream_left_early_is_closed", {}, r"without aclose\(\)"),
    (broken.Clinging, "a_stream_left_early_is_closed", {}, "a stream was closed, and the vendor's connection is still"),
    (broken.Shared, "calls_at_once_do_not_mix", {}, "got each other's answers"),
    (broken.Settled, "it_works_in_several_event_loops", WHOLE, "in another event loop, but"),
    (broken.Final, "it_works_in_several_event_loops", WHOLE, "in another event loop, but"),
]


class Contract(ModelContract):
    """The contract on any model, called by hand."""

    lacks: ClassVar[Collection[str]] = ("image_uri", "top_k")
    patience: ClassVar[float] = 3.0

    def __init__(self, model: type[broken.Sound]) -> None:
        self._kind = model

    def model_that(self, vendor: ScriptedVendor) -> Model:
        """Return the model."""
        return self._kind(vendor)


def broken_on_loops() -> Iterator[Any]:
    """Yield the broken models, each with an event loop; with both for rules that depend on it."""
    for number, (model, rule, arguments, problem) in enumerate(BROKEN):
        for loop in ("asyncio", "trio") if rule in ON_BOTH_LOOPS else (("asyncio", "trio")[number % 2],):
            yield pytest.param(model, rule, arguments, problem, loop, id=f"{model.__name__}-{loop}")


@pytest.mark.anyio
@pytest.mark.parametrize(("model", "rule", "arguments", "problem", "anyio_backend"), list(broken_on_loops()))
async def test_a_broken_model_is_found(
    model: type[broken.Sound], rule: str, arguments: dict[str, str], problem: str, anyio_backend: str
) -> None:
    """A model that breaks one promise fails the test of that promise, and the message says what is wrong."""
    loops = {"anyio_backend_name": anyio_backend, "anyio_backend_options": {}}
    given: dict[str, Any] = {**arguments, **(loops if rule in IN_OTHER_LOOPS else {})}
    with pytest.raises(AssertionError, match=problem):
        await getattr(Contract(model), f"test_{rule}")(**given)


@pytest.mark.anyio
async def test_what_a_double_cannot_show_is_not_checked() -> None:
    """A double that does not know what was sent, or who has gone, is asked for neither."""
    blind = type("Blind", (Contract,), {"blind_to": ("connections", "requests")})
    await blind(broken.Forgetful).test_the_history_is_sent_in_order("whole")
    await blind(broken.Unasked).test_settings_are_sent_or_refused("seed", "whole")
    await blind(broken.Leaky).test_cancellation_passes_through("whole")


def test_every_rule_finds_a_broken_model() -> None:
    """For each test of the contract there is a model that fails it."""
    assert {rule for _, rule, _, _ in BROKEN} == RULES


def test_what_cannot_be_lacked_is_refused() -> None:
    """A misspelt feature is refused when the class is made, not taken for a feature that is there."""
    with pytest.raises(ConfigError, match=r"lacks: unknown \['topk'\]"):
        type("Misspelt", (ModelContract,), {"lacks": ("topk",)})
    with pytest.raises(ConfigError, match="neither 'connections' nor 'requests'"):
        type("Misspelt", (ModelContract,), {"blind_to": ("bodies",)})


@pytest.mark.anyio
async def test_a_contract_without_a_model_says_what_is_missing() -> None:
    """A class without `model_that` raises an error that says so."""
    with pytest.raises(NotImplementedError, match=r"must define model_that\(vendor\)"):
        await ModelContract().test_pieces_are_yielded_as_they_arrive()


MINE = """
from pellucid.testing import FunctionModel, ModelContract


class Mine(FunctionModel):
    async def generate(self, request):
        response = await super().generate(request)
        return response if {is_good} else type(response)(message=response.message)


class TestMine(ModelContract):
    def model_that(self, vendor):
        return Mine(vendor.play)
"""


def test_users_inherit_the_contract(tmp_path: Path) -> None:
    """A class that says how to make a model is all that a user writes: the tests run on both event loops."""
    (tmp_path / "test_mine.py").write_text(MINE.format(is_good=True))
    said = run_pytest(tmp_path, "-v", "-k", "usage or deltas").stdout
    assert "TestMine::test_usage_is_exact_and_unknown_is_none[asyncio-all-whole] PASSED" in said
    assert "TestMine::test_usage_is_exact_and_unknown_is_none[trio-all-whole] PASSED" in said
    assert "failed" not in said


def test_users_see_what_is_wrong(tmp_path: Path) -> None:
    """A failure of an inherited test says what is broken, and pytest shows what was compared."""
    (tmp_path / "test_mine.py").write_text(MINE.format(is_good=False))
    said = run_pytest(tmp_path, "-k", "usage and plain and whole").stdout
    assert "AssertionError: the usage is not the vendor's: unknown counts are None and never 0" in said
    assert "input_tokens: None != 21" in said
    assert "Differing attributes" in said


def test_the_example_of_the_documentation_passes(tmp_path: Path) -> None:
    """The test class in docs/models.md keeps the contract as it stands there."""
    page = Path(__file__).parents[2].joinpath("docs", "models.md").read_text()
    example = next(block for block in page.split("```python\n") if "(ModelContract)" in block).partition("```")[0]
    (tmp_path / "test_example.py").write_text(example)
    said = run_pytest(tmp_path).stdout
    assert " passed in " in said
    assert "failed" not in said


def test_doubles_do_not_import_pytest() -> None:
    """The doubles work with any test runner, and in programs; only the contract asks for pytest."""
    code = "import sys, pellucid.testing; assert 'pytest' not in sys.modules; pellucid.testing.ModelContract"
    subprocess.run([sys.executable, "-c", code], check=True)
