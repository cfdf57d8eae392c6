"""Resources and prompts of an MCP server, for the code of an application."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import anyio
from mcp import Client
from mcp_types import BlobResourceContents, TextResourceContents
from opentelemetry import trace
from opentelemetry.trace import SpanKind, Status, StatusCode, use_span
from opentelemetry.util.types import AttributeValue

from pellucid import semconv
from pellucid.context import Identity
from pellucid.errors import ToolError
from pellucid.failures import error_type_of
from pellucid.mcp.calls import FAILURES, failure_of_call, repeated, set_attribute
from pellucid.mcp.connection import Connection
from pellucid.mcp.content import part_of, part_of_resource
from pellucid.mcp.elicitation import Asked
from pellucid.mcp.exchange import Exchange
from pellucid.mcp.listing import MAX_PAGES, trace_context
from pellucid.messages import Message, Part
from pellucid.semconv.resources import PROMPT_NAME, RESOURCE_URI
from pellucid.telemetry import current_scope
from pellucid.types import JSONValue

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """Resource that a server lists.

    Attributes:
        uri: Address for `MCPProvider.read`.
        name: Name for programs.
        title: Name for people.
        size: Bytes, before encoding.
    """

    uri: str
    name: str
    title: str | None = None
    description: str | None = None
    mime_type: str | None = None
    size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """Prompt that a server lists.

    Attributes:
        name: Name for `MCPProvider.prompt`.
        title: Name for people.
        arguments: Names of its arguments, each with whether it is required.
    """

    name: str
    title: str | None = None
    description: str | None = None
    arguments: Mapping[str, bool]


class Library:
    """Resources and prompts of a server, each request one span.

    Args:
        server: The provider's id.
        connect: Returns the connection of an identity.
        attributes: Span attributes of the server.
        timeout: Seconds for each of them.
    """

    def __init__(
        self,
        server: str,
        connect: Callable[[Identity | None], Awaitable[Connection]],
        attributes: Mapping[str, AttributeValue],
        timeout: float | None,
    ) -> None:
        self._server = server
        self._connect = connect
        self._attributes = {semconv.PROVIDER_ID: server, **attributes}
        self._timeout = timeout

    async def resources(self, identity: Identity | None) -> tuple[Resource, ...]:
        """Return all resources; none if the server offers none.

        Raises:
            ToolError: the server could not be reached, or refused the request.
        """

        async def page(client: Client, cursor: str | None) -> Any:
            return await client.list_resources(cursor=cursor, meta=trace_context())

        pages = await self._pages("resources/list", identity, lambda client: client.server_capabilities.resources, page)
        return tuple(
            Resource(
                uri=item.uri,
                name=item.name,
                title=item.title,
                description=item.description,
                mime_type=item.mime_type,
                size=item.size,
            )
            for page in pages
            for item in page.resources
        )

    async def read(self, uri: str, identity: Identity | None) -> tuple[Part, ...]:
        """Return the content of a resource.

        Raises:
            ToolError: the server could not be reached, refused the request, or asks a person first.
        """

        async def read(client: Client) -> Sequence[TextResourceContents | BlobResourceContents]:
            result = await client.read_resource(uri, meta=trace_context())
            self._check(result, "resources/read")
            return result.contents

        with self._span("resources/read", "", {RESOURCE_URI: uri}) as record:
            parts = tuple(map(part_of_resource, await self._send("resources/read", identity, read)))
            record([part.to_dict() for part in parts])
            return parts

    async def prompts(self, identity: Identity | None) -> tuple[Prompt, ...]:
        """Return all prompts; none if the server offers none.

        Raises:
            ToolError: the server could not be reached, or refused the request.
        """

        async def page(client: Client, cursor: str | None) -> Any:
            return await client.list_prompts(cursor=cursor, meta=trace_context())

        pages = await self._pages("prompts/list", identity, lambda client: client.server_capabilities.prompts, page)
        return tuple(
            Prompt(
                name=item.name,
                title=item.title,
                description=item.description,
                arguments={each.name: bool(each.required) for each in item.arguments or ()},
            )
            for page in pages
            for item in page.prompts
        )

    async def prompt(
        self, name: str, arguments: Mapping[str, str] | None, identity: Identity | None
    ) -> tuple[Message, ...]:
        """Return a prompt as messages.

        Raises:
            ToolError: the server could not be reached, refused the request, or asks a person first.
        """

        async def get(client: Client) -> Any:
            result = await client.get_prompt(name, dict(arguments or {}), meta=trace_context())
            self._check(result, "prompts/get")
            return result

        with self._span("prompts/get", name, {PROMPT_NAME: name}) as record:
            result = await self._send("prompts/get", identity, get)
            messages = tuple(Message(item.role, [part_of(item.content)]) for item in result.messages)
            record([message.to_dict() for message in messages])
            return messages

    async def _pages(
        self,
        method: str,
        identity: Identity | None,
        offers: Callable[[Client], object],
        page: Callable[[Client, str | None], Awaitable[Any]],
    ) -> list[Any]:
        with self._span(method, "", {}) as record:
            pages: list[Any] = []
            seen: set[str] = set()
            cursor: str | None = None
            while len(pages) < MAX_PAGES:
                answer = await self._send(method, identity, partial(_offered, offers, page, cursor))
                if answer is None:
                    break
                pages.append(answer)
                cursor = answer.next_cursor
                if not cursor:
                    break
                if cursor in seen:
                    problem = f"MCP server {self._server!r} repeats a cursor of {method}"
                    raise ToolError(problem, error_type="invalid_response")
                seen.add(cursor)
            else:
                problem = f"MCP server {self._server!r} has more than {MAX_PAGES} pages of {method}"
                raise ToolError(problem, error_type="invalid_response")
            record({"pages": len(pages)})
            return pages

    async def _send(self, method: str, identity: Identity | None, send: Callable[[Client], Awaitable[T]]) -> T:
        span = trace.get_current_span()

        async def request() -> T:
            connection = await self._connect(identity)
            span.set_attributes(connection.attributes)
            return await connection.request(Exchange(method, partial(set_attribute, span)), send)

        try:
            return await repeated(request)
        except FAILURES as error:
            raise failure_of_call(self._server, error) from error

    def _check(self, result: object, method: str) -> None:
        if isinstance(result, Asked):
            problem = f"MCP server {self._server!r} asks a person before it answers {method}, which is not supported"
            raise ToolError(problem, error_type="unsupported_request")

    @contextmanager
    def _within_time(self, method: str) -> Iterator[None]:
        with anyio.move_on_after(self._timeout) as limit:
            yield
        if limit.cancelled_caught:
            problem = f"MCP server {self._server!r} did not answer {method} within {self._timeout:g} s"
            raise ToolError(problem, error_type="timeout", error_kind="timeout")

    @contextmanager
    def _span(
        self, method: str, target: str, attributes: Mapping[str, AttributeValue]
    ) -> Iterator[Callable[[JSONValue], None]]:
        """Yield the function that records the output, within a span and the time limit.

        Raises:
            ToolError: the time is over.
        """
        scope = current_scope()
        tracer = scope.tracer if scope.tracer is not None else trace.NoOpTracer()
        clean = {name: scope.text(str(value)) for name, value in attributes.items()}
        name = f"{method} {scope.text(target)}" if target else method
        labels = {semconv.MCP_METHOD_NAME: method, **self._attributes, **clean}
        span = tracer.start_span(name, kind=SpanKind.CLIENT, attributes=labels)

        def record(output: JSONValue) -> None:
            if span.is_recording() and scope.policy.mode != "off":
                content = scope.capturer.content(span)
                add = partial(content.add, semconv.OUTPUT, lambda capturer: capturer.value(output))
                scope.guarded("recording", add, semconv.OUTPUT_DIGEST, semconv.OUTPUT_BYTES)
                span.set_attributes(content.attributes)

        with use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
            try:
                with self._within_time(method):
                    yield record
            except BaseException as error:
                span.set_status(Status(StatusCode.ERROR))
                kind = error_type_of(error) if isinstance(error, Exception) else "cancelled"
                span.set_attribute(semconv.ERROR_TYPE, kind)
                raise


async def _offered(
    offers: Callable[[Client], object],
    page: Callable[[Client, str | None], Awaitable[Any]],
    cursor: str | None,
    client: Client,
) -> Any:
    return await page(client, cursor) if offers(client) is not None else None
