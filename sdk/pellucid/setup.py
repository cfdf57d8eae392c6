"""From the options of an agent to the configuration that its runs share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from pellucid.context import DiscoveryContext, Limits
from pellucid.errors import ConfigError
from pellucid.models import PublishedPrices, Settings
from pellucid.models.base import require_model
from pellucid.models.facts import ModelFacts
from pellucid.models.names import resolve
from pellucid.models.prices import load_prices
from pellucid.options import AgentOptions
from pellucid.providers import Lister, static_tools
from pellucid.run.compose import digest_of_parameters
from pellucid.run.state import Setup
from pellucid.run.structured_output import Output
from pellucid.telemetry import Listeners
from pellucid.tools import Tool, tool
from pellucid.tools.catalog import Catalogs

if TYPE_CHECKING:
    from pellucid.providers.skills import SkillProvider
    from pellucid.selection import Policy
    from pellucid.selection.permission import Permissions


_SEQUENCES: Final = frozenset(("tools", "providers", "skills", "instructions", "budget", "scorers"))


def _is_plain(option: str, value: object) -> bool:
    """Return whether a value is so usual that its check need not be loaded."""
    if option == "tools":
        return isinstance(value, tuple) and all(isinstance(item, Tool) or callable(item) for item in value)
    return option == "model" or (option in ("instructions", "description", "version") and isinstance(value, str))


def copied(options: AgentOptions[Any]) -> AgentOptions[Any]:
    """Return options whose sequences are copies, from which a configuration can be made again."""
    copies: Any = {
        name: tuple(value)
        for name, value in options.items()
        if isinstance(value, Iterable) and name in _SEQUENCES and not isinstance(value, str)
    }
    return {**options, **copies}


def make_setup(name: str, output: Any, options: AgentOptions[Any], listeners: Listeners) -> Setup:
    """Check the options of an agent, and return the configuration that its runs share.

    Args:
        name: Name of the agent.
        output: Type of its answers, or None for text.
        options: Its other options.
        listeners: Its listeners.

    Raises:
        ConfigError: an option is invalid.
        InvalidCatalog: a tool is invalid, or two tools have the same name.
    """
    if not name:
        raise ConfigError.empty("Agent", "name", "it names the agent in traces and metrics")
    agent = f"Agent {name!r}"
    model = resolve(given) if isinstance(given := options["model"], str) else require_model(given, agent)
    if not all(_is_plain(option, value) for option, value in options.items()):
        from pellucid.option_values import check_values

        check_values(agent, {**options, "model": model})
    prices = options.get("prices")
    prices = PublishedPrices() if prices is None else prices
    load_prices(prices, [(facts.provider_name, facts.name) for facts in ModelFacts.of_all(model)])
    loader = _loader(options)
    tools = [item if isinstance(item, Tool) else tool(item) for item in options.get("tools", ())]
    answer_type = Output(output) if output is not None and output is not str else None
    instructions: Any = options.get("instructions")
    varying: Any = ()
    if not (instructions is None or isinstance(instructions, str)):
        from pellucid.run.instructions import parts_of

        instructions, varying = parts_of(instructions)
    settings = (options.get("settings") or Settings()).copy()
    limits = options.get("limits") or Limits()
    return Setup(
        name=name,
        description=options.get("description"),
        version=options.get("version"),
        model=model,
        instructions=instructions,
        varying=varying,
        output=answer_type,
        settings=settings,
        parameters=digest_of_parameters(settings, answer_type.schema if answer_type is not None else None),
        reliability=options.get("reliability"),
        prices=prices,
        tools=tuple(tools),
        listers=_listers(agent, tools, options, loader),
        limits=limits,
        catalogs=Catalogs(options.get("collisions", "error"), is_lazy=options.get("registry_mode") == "lazy"),
        listeners=listeners,
        skills=loader.skills if loader is not None else {},
        permissions=_permissions(options.get("policy"), limits),
        pin=options.get("pin", False),
        budget=options.get("budget"),
        context=options.get("context"),
        is_warm=options.get("warm", False),
    )


def _loader(options: AgentOptions[Any]) -> SkillProvider | None:
    """Return the provider of the skills, if there are any."""
    skills = options.get("skills", ())
    if skills == ():
        return None
    from pellucid.providers.skills import SkillProvider

    loader = SkillProvider(skills)
    return loader if loader.skills else None


def _permissions(policy: Policy | None, limits: Limits) -> Permissions | None:
    if policy is None:
        return None
    from pellucid.selection.permission import Permissions

    return Permissions(policy, limits.policy_timeout)


def _listers(
    agent: str, tools: Sequence[Tool], options: AgentOptions[Any], loader: SkillProvider | None
) -> tuple[Lister, ...]:
    """Return a lister for each provider of an agent; check the agent's own tools and skills before any run."""
    static_provider = static_tools(tools)
    providers = list(options.get("providers", ()))
    if tools or not (providers or loader is not None):
        providers.insert(0, static_provider)
    if loader is not None:
        providers.append(loader)
    serves_stale = options.get("on_stale") != "fail"
    listers = tuple(Lister(provider, serves_stale=serves_stale) for provider in providers)
    if not options.keys().isdisjoint(("lock", "on_change")):
        from pellucid.providers.locked import locked

        listers = locked(agent, listers, options)
    ids = [lister.provider.id for lister in listers]
    if len(set(ids)) < len(ids):
        raise ConfigError(f"{agent}: duplicate provider id in {ids}; give each provider an id of its own")
    if tools:
        listers[0].check(static_provider.list_tools(DiscoveryContext()))
    if loader is not None:
        listers[-1].check(loader.list_tools(DiscoveryContext(active_skill_ids=tuple(loader.skills))))
    return listers
