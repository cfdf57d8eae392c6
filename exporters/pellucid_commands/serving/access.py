"""Options of `pellucid serve` on what callers may send, and from where."""

from __future__ import annotations

from argparse import ArgumentTypeError
from typing import TYPE_CHECKING, Any, Final, get_args

from pellucid.messages import Role
from pellucid_commands.serving.options import listed

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

_ROLES: Final = get_args(Role)


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--roles",
        type=_roles,
        default=("user",),
        metavar="ROLE,...",
        help="roles of the messages that callers may send (default: user)",
    )
    parser.add_argument(
        "--origins", type=listed, default=(), metavar="URL,...", help="origins whose web pages may send requests"
    )
    parser.add_argument(
        "--hosts",
        type=listed,
        metavar="NAME,...",
        help="names under which the server answers (default: any; without a bearer token, those of this machine)",
    )


def access_options(options: Namespace) -> dict[str, Any]:
    """Return the options of the application."""
    return {"roles": options.roles, "origins": options.origins, "hosts": options.hosts}


def _roles(text: str) -> list[str]:
    roles = listed(text)
    for role in roles:
        if role not in _ROLES:
            raise ArgumentTypeError(f"{role!r} is no role; give some of {', '.join(_ROLES)}")
    return roles
