"""Which methods an address answers: HEAD wherever GET is, OPTIONS everywhere, 405 with all that are in `Allow`.

A route of FastAPI knows its own methods only, so that an address with one route for GET and another for POST would
name one of them in `Allow`, and HEAD would be refused.
"""

import re
from collections.abc import Iterable

from fastapi import APIRouter
from fastapi.routing import APIRoute
from starlette.responses import Response
from starlette.routing import compile_path
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import problem_response, shown

FILES = re.compile(r"/static(/|$)")
"""Where files are, which are no routes."""
HEAD = "asks_head"
"""Key of a request's state that is set where only the headers of a GET are wanted."""


class Methods:
    """Answers HEAD as GET without the body, OPTIONS with what is allowed, and refuses the rest."""

    def __init__(self, app: ASGIApp, routers: Iterable[APIRouter]) -> None:
        """Args: the app inside, its routes."""
        self.app = app
        self._known: list[tuple[re.Pattern[str], frozenset[str]]] = [
            (compile_path(route.path)[0], frozenset(route.methods or ()))
            for router in routers
            for route in router.routes
            if isinstance(route, APIRoute)
        ]
        self._known.append((FILES, frozenset({"GET"})))
        paths = {route.path for router in routers for route in router.routes if isinstance(route, APIRoute)}
        self._plain = {path: self._allowed(path) for path in paths if "{" not in path}
        """What is allowed where the path is all there is to know."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers the request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        method, allowed = scope["method"], self._plain.get(scope["path"])
        if allowed is None:
            allowed = self._allowed(scope["path"])
        if not allowed or method in allowed - {"HEAD", "OPTIONS"}:
            await self.app(scope, receive, send)
        elif method == "HEAD" and "GET" in allowed:
            await self._head(scope, receive, send)
        elif method == "OPTIONS":
            await Response(status_code=204, headers={"Allow": _listed(allowed)})(scope, receive, send)
        else:
            response = problem_response(
                405,
                "method-not-allowed",
                f"{shown(method)} is not answered at {shown(scope['path'])}; {_listed(allowed)} is",
                request_id=scope.get("state", {}).get("request_id"),
                headers={"Allow": _listed(allowed)},
            )
            await response(scope, receive, send)

    def _allowed(self, path: str) -> frozenset[str]:
        found = frozenset(method for known, methods in self._known if known.match(path) for method in methods)
        if not found:
            return found
        return found | ({"HEAD", "OPTIONS"} if "GET" in found else {"OPTIONS"})

    async def _head(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_without_body(message: Message) -> None:
            # Whoever writes the answer looks here for whether its length is that of a body that comes.
            scope["method"] = "HEAD"
            await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

        # The same dictionary, since what the router finds out about the request is wanted by the log.
        scope.setdefault("state", {})[HEAD] = True
        scope["method"] = "GET"
        try:
            await self.app(scope, receive, send_without_body)
        finally:
            scope["method"] = "HEAD"


def _listed(methods: frozenset[str]) -> str:
    return ", ".join(sorted(methods))
