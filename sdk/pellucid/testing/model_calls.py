"""A guard for test suites, which must not call vendors' models."""

from contextlib import AbstractContextManager

from pellucid.models.guard import guarded_calls


def no_model_calls() -> AbstractContextManager[None]:
    """Refuse calls of `OpenAIModel`, `AnthropicModel` and `GeminiModel` within the block, in all threads.

    A run that would call one fails with a `ConfigError` that names the model; no rule retries it, and no other model is
    called in its place. Test doubles, and models that an application wrote itself, are called as always.

    For a whole test suite use pytest's option `--no-model-calls`, or the setting `no_model_calls = true`; tests with
    `@pytest.mark.model_calls` are exempt.
    """
    return guarded_calls(are_allowed=False)
