"""Quality of `tool_search` on the tools of real MCP servers, next to counting substrings.

Run it with `PYTHONPATH=tests python -m bench.search_quality --cache ~/.cache/pellucid-search` (Node.js and npm must be
there). It downloads the servers of `search_servers.toml`, starts each with made-up credentials, lists its tools with
`MCPProvider`, and ranks them for the queries of `search_queries.toml`. The tools' texts are other people's, so they are
not kept.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import anyio
from opentelemetry import trace

from bench.ranking import Quality, Query, Ranking, bm25, quality, queries_of, reciprocal_rank, substring
from bench.real_servers import NotInstalled, Observed, observe, servers_of
from pellucid import DiscoveryError, Tool
from pellucid_exporters.testing import capture, check_telemetry

HERE = Path(__file__).parent
FEWEST = 300
"""Tools that make a catalogue worth searching."""

TIMES = 20
"""Number of times that each query is timed."""

RANKINGS: Mapping[str, Callable[[Iterable[Tool]], Ranking]] = {"BM25": bm25, "substrings": substring}
KINDS = ("all", "plain", "reworded", "distant")


async def gathered(cache: Path) -> tuple[list[Observed], int]:
    """Return the servers that listed their tools, and how many did not; says loudly which and why."""
    for folder in ("data", "home"):
        (cache / folder).mkdir(parents=True, exist_ok=True)
    print(f"{'server':20} {'package':52} {'tools':>5} {'bad':>4} {'fitted':>6} {'pages':>5}", end="")
    print(f" {'connect s':>9} {'list s':>7} {'close s':>7} {'stderr':>6} {'left':>4}")
    found, failed = [], 0
    with capture(fixed=False) as telemetry:
        trace.set_tracer_provider(telemetry.tracer_provider)  # the MCP SDK's spans say how many pages there were
        for server in servers_of(HERE / "search_servers.toml", cache / "data"):
            try:
                seen = await observe(server, cache, telemetry)
            except (NotInstalled, DiscoveryError) as error:
                failed += 1
                print(f"LEFT OUT: {server.id} ({server.package}): {' '.join(str(error).split())[:300]}", flush=True)
                continue
            found.append(seen)
            print(_row(seen), flush=True)
        check_telemetry(telemetry)
    for seen in found:
        for name, problem in seen.quarantined:
            print(f"quarantined: {seen.server.id}/{name}: {problem}")
    return found, failed


def _row(seen: Observed) -> str:
    fitted = sum(given != f"mcp__{seen.server.id}__{name}" for given, name in seen.names.items())
    return (
        f"{seen.server.id:20} {seen.server.package:52} {len(seen.tools):5} {len(seen.quarantined):4} {fitted:6} "
        f"{seen.pages:5} {seen.connected:9.2f} {seen.listed:7.2f} {seen.closed:7.2f} {seen.lines:6} {seen.left:4}"
    )


def asked_of(known: Iterable[str], left_out: int) -> list[Query]:
    """Return the queries that can be answered.

    Exits if they name tools that there are not, although all servers are there.
    """
    names = set(known)
    queries = queries_of(HERE / "search_queries.toml")
    absent = {name for query in queries for name in query.relevant} - names
    if absent:
        print(f"NOT THERE: {', '.join(sorted(absent))}")
        if not left_out:
            sys.exit("the queries name tools that no server has")
    kept = [query for query in queries if query.relevant <= names]
    if len(kept) < len(queries):
        print(f"LEFT OUT: {len(queries) - len(kept)} queries whose tools are not all there")
    return kept


def judge(tools: Mapping[Tool, str], queries: Sequence[Query], *, misses: bool) -> None:
    """Print the quality of each ranking by kind of query, which one is better how often, and the time of a query."""
    ranked: dict[str, dict[str, list[str]]] = {}
    for name, make in RANKINGS.items():
        rank = make(tools)
        ranked[name] = {query.text: [tools[tool] for tool in rank(query.text)] for query in queries}
    print(f"{'':12} {'':>10} {'queries':>7} {'recall@5':>9} {'recall@15':>9} {'MRR':>6} {'missed':>6}")
    for kind in KINDS:
        some = [query for query in queries if kind in ("all", query.kind)]
        for name in RANKINGS:
            found = quality([(ranked[name][query.text], query.relevant) for query in some])
            print(f"{name:12} {kind:>10} {len(some):7} {_numbers(found)}")
    print(_compared(ranked, queries))
    for name, make in RANKINGS.items():
        print(f"{name:12} {_timed(make, tools, queries)}")
    for query in queries if misses else ():
        places = {name: reciprocal_rank(ranked[name][query.text], query.relevant) for name in RANKINGS}
        if any(place < 1 for place in places.values()):
            shown = {name: f"1/{1 / place:.0f}" if place else "none" for name, place in places.items()}
            print(f"{query.kind}: {query.text!r} wants {sorted(query.relevant)}: {shown}")
            for name in RANKINGS:
                print(f"    {name}: {ranked[name][query.text][:5]}")


def _numbers(found: Quality) -> str:
    return f"{found.recall5:9.3f} {found.recall15:9.3f} {found.mrr:6.3f} {found.missed:6}"


def _compared(ranked: Mapping[str, Mapping[str, list[str]]], queries: Sequence[Query]) -> str:
    signs: Counter[int] = Counter()
    for query in queries:
        ours, theirs = (reciprocal_rank(ranked[name][query.text], query.relevant) for name in ("BM25", "substrings"))
        signs[(ours > theirs) - (ours < theirs)] += 1
    return (
        f"first right tool of BM25: earlier than of substrings {signs[1]}, as early {signs[0]}, later {signs[-1]} times"
    )


def _timed(make: Callable[[Iterable[Tool]], Ranking], tools: Iterable[Tool], queries: Sequence[Query]) -> str:
    began = time.perf_counter()
    rank = make(tools)
    made = time.perf_counter() - began
    times = []
    for _ in range(TIMES):
        for query in queries:
            began = time.perf_counter()
            rank(query.text)
            times.append((time.perf_counter() - began) * 1e3)
    percentiles = statistics.quantiles(times, n=100)
    return (
        f"index {made * 1e3:.1f} ms; query, in ms: median {percentiles[49]:.3f}, "
        f"95 % {percentiles[94]:.3f}, 99 % {percentiles[98]:.3f}"
    )


def main() -> None:
    """Print what came of it; ends with an error if there is too little to search."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cache", type=Path, help="folder for the servers, to install them once; else a temporary one")
    parser.add_argument(
        "--misses", action="store_true", help="list the queries that a ranking has no right tool first for"
    )
    parser.add_argument("--no-ranking", action="store_true", help="list the tools only")
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = options.cache or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pellucid-search-")))
        found, left_out = anyio.run(gathered, folder.expanduser().resolve())
    prefixed = {tool: f"{seen.server.id}/{seen.names[tool.name]}" for seen in found for tool in seen.tools}
    bare = {tool.named(name.partition("/")[2]): name for tool, name in prefixed.items()}
    print(f"\n{len(prefixed)} tools of {len(found)} servers; {left_out} servers left out")
    if len(prefixed) < FEWEST:
        sys.exit(f"{len(prefixed)} tools are too few to say anything of searching; {FEWEST} are wanted")
    queries = asked_of(prefixed.values(), left_out)
    if options.no_ranking:
        return
    for title, tools in {"Names as mcp__<server>__<tool>": prefixed, "Names as the servers have them": bare}.items():
        print(f"\n{title}")
        judge(tools, queries, misses=options.misses)


if __name__ == "__main__":
    main()
