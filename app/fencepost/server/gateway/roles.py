"""Whether the gateway acts as a caller's role: decided before anything of the request is sent to the database."""

from collections.abc import Coroutine
from typing import Any, TypeVar

from fencepost.server.fence.problem_types import ROLE_NOT_ALLOWED
from fencepost.server.fence.problems import Problem
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.postgres.errors import RoleError

T = TypeVar("T")


async def acting(gateway: Gateway, work: Coroutine[Any, Any, T]) -> T | Problem:
    """Do what acts as the caller on users' tables, if the gateway acts as its role. Raises UnavailableError, and what
    the work raises.
    """
    role = gateway.caller.role
    if role is None:
        return await work
    try:
        reason = await gateway.roles.why_not(gateway.database, role)
        return await work if reason is None else _not_allowed(role, reason)
    except RoleError as error:  # it was allowed a moment ago
        gateway.roles.forget()
        return _not_allowed(role, str(error))
    finally:
        work.close()


def _not_allowed(role: str, reason: str) -> Problem:
    return Problem(ROLE_NOT_ALLOWED, f"The role {role[:63]} is not one that this gateway acts as: {reason}.")
