"""Bodies of requests: JSON objects of a known shape."""

from __future__ import annotations

import json
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel
from starlette.requests import Request

from pellucid.server.problems import Problem

M = TypeVar("M", bound=BaseModel)


class Body(BaseModel):
    """Shape of a body. Members have camelCase names; unknown ones are refused."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True, allow_inf_nan=False
    )


async def read(request: Request, shape: type[M]) -> M:
    """Return the body of a request.

    Raises:
        Problem: 400 with the `path` of the first fault, if the body is not JSON of that shape.
    """
    content = await request.body()
    try:
        data = json.loads(content) if content else {}
    except (ValueError, RecursionError) as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else "nested too deeply, or not UTF-8"
        raise Problem(400, f"the body is not JSON: {reason}", path="") from error
    try:
        return shape.model_validate(data)
    except ValidationError as error:
        fault = error.errors(include_input=False, include_url=False)[0]
        raise Problem(400, fault["msg"], path=".".join(map(str, fault["loc"]))) from error
