"""Addresses that are answered before all routers, where FastAPI's own way costs as much as the work.

FastAPI looks for an included route twice, opens what dependencies might want to close, and searches every request anew
for its parameters. A direct route leaves all of that out; whoever uses one does by hand what its parameters would have
done, `authorize` first of all. Middleware, limits, handlers of errors and figures are those of every route.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request
from fastapi.routing import APIRoute
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send


def route_of(router: APIRouter, endpoint: Callable[..., object]) -> APIRoute:
    """The route by which a router answers with a function."""
    [route] = [each for each in router.routes if isinstance(each, APIRoute) and each.endpoint is endpoint]
    return route


@dataclass(frozen=True)
class DirectRoute:
    """Answers the plain requests of one route, which describes them and answers all others itself."""

    route: APIRoute
    """Its path has no parameters."""
    answer: Callable[[Request], Awaitable[Response]]
    """What answers instead of it."""
    is_plain: Callable[[Scope], bool] = lambda _scope: True
    """Which requests."""


class Direct:
    """The innermost of the app's middleware: what is not for a direct route goes on to the routers."""

    def __init__(self, app: ASGIApp, routes: Sequence[DirectRoute], handlers: Mapping[Any, Any]) -> None:
        """Args: the app inside, the direct routes, the app's handlers of errors by kind."""
        for each in routes:
            assert not each.route.param_convertors, (
                f"{each.route.path} has parameters, which nobody would read"
            )
        self.app = app
        self._routes = {
            (method, each.route.path): each for each in routes for method in each.route.methods or ()
        }
        self._handlers = handlers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request."""
        direct = self._routes.get((scope["method"], scope["path"])) if scope["type"] == "http" else None
        if direct is None or not direct.is_plain(scope):
            await self.app(scope, receive, send)
            return
        # The log, the figures and `authorize` ask which route it is.
        scope["route"], scope["endpoint"], scope["path_params"] = direct.route, direct.route.endpoint, {}
        try:
            response = await direct.answer(Request(scope, receive, send))
        except Exception as error:
            await self._refuse(error, scope, receive, send)
        else:
            await response(scope, receive, send)

    async def _refuse(self, error: Exception, scope: Scope, receive: Receive, send: Send) -> None:
        async def raise_it(_scope: Scope, _receive: Receive, _send: Send) -> None:
            raise error

        # Starlette's own way from an error to its handler's answer, taken only where there is one.
        await ExceptionMiddleware(raise_it, self._handlers)(scope, receive, send)
