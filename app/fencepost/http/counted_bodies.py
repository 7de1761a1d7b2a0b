"""Counts large bodies of all routes that FastAPI has. Those of data and batches count theirs themselves."""

from starlette.types import ASGIApp, Receive, Scope, Send

from fencepost.http.caller import caller_of
from fencepost.http.problems.response import RequestError, problem_response
from fencepost.http.requests.bodies import BodiesInHand, is_large
from fencepost.http.requests.headers import by_name


class CountedBodies:
    """Wraps the routes, within the layer that knows the caller."""

    def __init__(self, app: ASGIApp, *, bodies: BodiesInHand) -> None:
        self._app, self._bodies = app, bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Have a request answered, or refuse it: there is no room for its body."""
        if scope["type"] != "http" or not is_large(headers := by_name(scope["headers"])):
            await self._app(scope, receive, send)
            return
        try:
            async with self._bodies.counting(caller_of(scope), headers, receive) as counted:
                await self._app(scope, counted, send)
        except RequestError as error:
            await problem_response(error.problem)(scope, receive, send)
