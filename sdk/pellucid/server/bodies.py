"""Bodies of requests: JSON objects of a known shape."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import anyio
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel
from starlette.requests import Request

from pellucid.server.problems import Problem
from pellucid.text import excerpt

M = TypeVar("M", bound=BaseModel)

_CLOSE: Final = {"Connection": "close"}
_MAX_PATH: Final = 20
"""Parts of the path of a fault."""


class Body(BaseModel):
    """Shape of a body. Members have camelCase names; unknown ones are refused."""

    model_config = ConfigDict(alias_generator=to_camel, extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


@dataclass(frozen=True, slots=True)
class BodyReader:
    """Reader of bodies.

    Attributes:
        max_size: Bytes of a body, at most.
        timeout: Seconds in which a body must arrive.
    """

    max_size: int
    timeout: float

    async def read(self, request: Request, shape: type[M]) -> M:
        """Return the body of a request.

        Raises:
            Problem: 400 with the `path` of the first fault, if the body is not JSON of that shape; 408 or 413 if it
                did not arrive in time, or is too long.
        """
        data = _parsed(await self.content(request))
        try:
            return shape.model_validate(data)
        except ValidationError as error:
            fault = error.errors(include_input=False, include_url=False)[0]
            raise Problem(400, excerpt(fault["msg"]), path=_path(data, fault["loc"])) from error

    async def content(self, request: Request) -> bytes:
        """Return the bytes of the body of a request.

        Raises:
            Problem: 408 or 413, they did not arrive in time, or are too many.
        """
        length = request.headers.get("content-length", "")
        self._check(int(length[:20]) if length.isdecimal() else 0)
        content = bytearray()
        with anyio.move_on_after(self.timeout):
            async with aclosing(request.stream()) as chunks:
                async for chunk in chunks:
                    content += chunk
                    self._check(len(content))
            return bytes(content)
        raise Problem(408, "the body did not arrive in time", headers=_CLOSE)

    def _check(self, size: int) -> None:
        if size > self.max_size:
            raise Problem(413, f"the body is longer than {self.max_size} bytes", headers=_CLOSE)


def _parsed(content: bytes) -> Any:
    try:
        text = content.decode()
        data = _DECODER.decode(text) if text else {}
        if "\\u" in text:
            json.dumps(data, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        reason = error.msg
    except UnicodeDecodeError:
        reason = "not UTF-8"
    except UnicodeEncodeError:
        reason = "a text has half of a surrogate pair"
    except RecursionError:
        reason = "nested too deeply"
    except ValueError:
        reason = "a number has too many digits"
    else:
        return data
    raise Problem(400, f"the body is not JSON: {reason}", path="")


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object; readers of JSON differ in which of two members of one name they take."""
    members: dict[str, Any] = {}
    for name, value in pairs:
        if name in members:
            raise Problem(400, "a member is given twice", path=excerpt(name))
        members[name] = value
    return members


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_members)


def _path(data: Any, location: Sequence[str | int]) -> str:
    """Return the place of a fault in a body, without the names of types that pydantic adds to it."""
    parts: list[str] = []
    for position, part in enumerate(location):
        if isinstance(data, dict) and (part in data or position == len(location) - 1):
            data = data.get(part)
        elif isinstance(data, list) and isinstance(part, int) and part < len(data):
            data = data[part]
        else:
            continue
        parts.append(excerpt(part))
    return ".".join(parts[:_MAX_PATH])
