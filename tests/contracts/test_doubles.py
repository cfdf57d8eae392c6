"""The contract of models, on the doubles that ship with the SDK and on what is built of models.

`FunctionModel` keeps the whole contract. The other models call one and pass on its answer: each of them is held to the
rules that its own code could break.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pellucid import ModelError
from pellucid.models import FallbackModel
from pellucid.testing import FunctionModel, ModelContract, ScriptedModel, ScriptedVendor
from support.contract_selection import ContractSubset

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pellucid import Model, ModelRequest


class TestFunctionModel(ModelContract):
    """A model that is a function keeps the contract."""

    def model_that(self, vendor: ScriptedVendor) -> Model:
        """Return a model whose function is the vendor."""
        return FunctionModel(vendor.play)


class TestScriptedModel(ContractSubset):
    """A model with a script keeps the contract: it chooses the function of each call, and counts the calls."""

    rules: ClassVar[Mapping[str, Collection[str]]] = {
        "answers_are_those_of_the_vendor": ["reasoning_text_tool_calls"],
        "calls_at_once_do_not_mix": (),
        "cancellation_passes_through": (),
        "failures_are_model_errors_with_kind_and_cause": ["rate_limited"],
        "it_works_in_several_event_loops": (),
    }

    def model_that(self, vendor: ScriptedVendor) -> Model:
        """Return a model with a script of many steps, each of which is the vendor."""
        return ScriptedModel(*[vendor.play] * 20)


class TestFallbackModel(ContractSubset):
    """Several models as one keep the contract when the first choice fails: both get the request, one answers."""

    rules: ClassVar[Mapping[str, Collection[str]]] = {
        "a_stream_can_be_read_from_anywhere": (),
        "a_stream_ends_with_the_response": ["text"],
        "a_stream_left_early_is_closed": (),
        "answers_are_those_of_the_vendor": ["reasoning_text_tool_calls"],
        "calls_at_once_do_not_mix": (),
        "cancellation_passes_through": (),
        "failures_are_model_errors_with_kind_and_cause": ["rate_limited"],
        "it_is_a_model_with_a_stable_name": (),
        "it_works_in_several_event_loops": (),
        "pieces_are_yielded_as_they_arrive": (),
        "the_request_is_not_changed": (),
    }

    def model_that(self, vendor: ScriptedVendor) -> Model:
        """Return two models, of which the second works."""

        def fails(request: ModelRequest) -> str:
            raise ModelError("first", "it is down", error_kind="unavailable")

        return FallbackModel(FunctionModel(fails, name="first"), FunctionModel(vendor.play, name="second"))


class TestFirstChoice(ContractSubset):
    """Several models as one keep the contract when the first choice answers, and when nothing may be tried again."""

    rules: ClassVar[Mapping[str, Collection[str]]] = {
        "a_schema_for_the_answer_is_accepted": (),
        "a_stream_left_early_is_closed": (),
        "a_stream_that_breaks_is_an_error": (),
        "answers_are_those_of_the_vendor": ["reasoning_text_tool_calls"],
        "cancellation_passes_through": (),
        "failures_are_model_errors_with_kind_and_cause": ["invalid_request", "unavailable"],
    }

    async def model_that(self, vendor: ScriptedVendor) -> Model:
        """Return two models, of which the first works."""
        return FallbackModel(FunctionModel(vendor.play, name="first"), FunctionModel(vendor.play, name="second"))
