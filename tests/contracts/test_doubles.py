"""The contract of models, on the doubles that ship with the SDK and on what is built of models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pellucid import ModelError
from pellucid.models import FallbackModel
from pellucid.testing import FunctionModel, ModelContract, ScriptedModel, ScriptedVendor

if TYPE_CHECKING:
    from pellucid import Model, ModelRequest


class TestFunctionModel(ModelContract):
    """A model that is a function keeps the contract."""

    def model_that(self, vendor: ScriptedVendor) -> Model:
        """Return a model whose function is the vendor."""
        return FunctionModel(vendor.play)


class TestScriptedModel(ModelContract):
    """A model with a script keeps the contract."""

    def model_that(self, vendor: ScriptedVendor) -> Model:
        """Return a model with a script of many steps, each of which is the vendor."""
        return ScriptedModel(*[vendor.play] * 20)


class TestFallbackModel(ModelContract):
    """Several models as one keep the contract when the first choice fails."""

    def model_that(self, vendor: ScriptedVendor) -> Model:
        """Return two models, of which the second works."""

        def fails(request: ModelRequest) -> str:
            raise ModelError("first", "it is down", error_kind="unavailable")

        return FallbackModel(FunctionModel(fails, name="first"), FunctionModel(vendor.play, name="second"))


class TestFirstChoice(ModelContract):
    """Several models as one keep the contract when the first choice answers."""

    async def model_that(self, vendor: ScriptedVendor) -> Model:
        """Return two models, of which the first works."""
        return FallbackModel(FunctionModel(vendor.play, name="first"), FunctionModel(vendor.play, name="second"))
