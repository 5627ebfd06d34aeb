"""Routes that stand before all routers, for addresses where FastAPI's own way costs as much as the work.

FastAPI looks for an included route twice, opens what dependencies might want to close, and searches every request anew
for its parameters. A direct route leaves all of that out; whoever uses one does by hand what its parameters would have
done, `authorize` first of all. Middleware, limits, handlers of errors and figures are those of every route.
"""

from collections.abc import Awaitable, Callable

from fastapi import APIRouter, Request
from fastapi.routing import APIRoute
from starlette.responses import Response
from starlette.routing import BaseRoute, Match
from starlette.types import Receive, Scope, Send


def route_of(router: APIRouter, endpoint: Callable[..., object]) -> APIRoute:
    """The route by which a router answers with a function."""
    [route] = [each for each in router.routes if isinstance(each, APIRoute) and each.endpoint is endpoint]
    return route


class DirectRoute(BaseRoute):
    """Answers the plain requests of one route, which describes them, and answers all others itself."""

    def __init__(
        self,
        route: APIRoute,
        answer: Callable[[Request], Awaitable[Response]],
        is_plain: Callable[[Scope], bool] = lambda _scope: True,
    ) -> None:
        """Args: the route, whose path has no parameters; what answers; which requests, if not all."""
        assert not route.param_convertors, f"{route.path} has parameters, which a direct route does not read"
        self._route = route
        self._methods = frozenset(route.methods or ())
        self._answer = answer
        self._is_plain = is_plain

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Whether a request is one of those."""
        route = self._route
        is_one = (
            scope["type"] == "http"
            and scope["path"] == route.path
            and scope["method"] in self._methods
            and self._is_plain(scope)
        )
        if not is_one:
            return Match.NONE, {}
        # The log, the figures and `authorize` ask which route it is.
        return Match.FULL, {"route": route, "endpoint": route.endpoint, "path_params": {}}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request."""
        response = await self._answer(Request(scope, receive, send))
        await response(scope, receive, send)
