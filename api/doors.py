"""Which names the service answers to, and which pages may act on it.

A service on loopback is open to every program of the machine, the browser among them, and a browser runs
strangers' pages. Two checks keep those out:

- **Host**: a page of `evil.example` whose name was rebound to 127.0.0.1 still sends `Host: evil.example`.
  Only the service's own names are answered.
- **Origin**: a page of any other origin (scheme, host and port: another port on this machine is another
  origin) may send a form or a simple request here. Whatever changes something must come from the
  service's own origin, or from a program, which sends no Origin at all. Its scheme is http, but where the
  settings say that people reach it by https: what a proxy speaks in front can't be seen from here.
"""

import ipaddress
from collections.abc import Collection
from functools import lru_cache
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from api.errors import ApiError, Forbidden, problem_response, shown
from api.headers import header, header_list

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
DEFAULT_PORTS = {"http": 80, "https": 443}
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


def is_loopback(host: str) -> bool:
    """Whether a bind address can be reached from its own machine only; `0.0.0.0` and `::` can from others."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def split_authority(authority: str) -> tuple[str, int | None] | None:
    """Host and port of a Host header or an origin's authority.

    Returns:
        The host in lower case without brackets or a final dot, and the port if there is one; None if the
        text is no authority.
    """
    if not authority or len(authority) > 300 or any(c in authority for c in "/?#@\\ \t,"):
        return None
    return _split(authority)


@lru_cache(maxsize=256)
def _split(authority: str) -> tuple[str, int | None] | None:
    try:
        parts = urlsplit(f"//{authority}")
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    return (host.rstrip("."), port) if host else None


def parse_origin(origin: str) -> tuple[str, str, int] | None:
    """Scheme, host and port of an origin, or of an address; None if it is neither of http nor of https."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return None
    default_port = DEFAULT_PORTS.get(parts.scheme)
    known = split_authority(parts.netloc)
    if default_port is None or known is None:
        return None
    return parts.scheme, known[0], known[1] or default_port


class Doors:
    """Answers only to known names, and lets only the service's own pages change anything."""

    def __init__(
        self, app: ASGIApp, hosts: Collection[str] | None, secure: Collection[tuple[str, int]] = ()
    ) -> None:
        """Sets the names.

        Args:
            app: The app inside.
            hosts: Names and addresses that the service answers to, besides loopback's; None answers to
                any (for a service that demands a key of everyone, whose key no stranger's page has).
            secure: Names and ports at which people reach it by https; everywhere else they do by http.
        """
        self.app = app
        self.hosts = None if hosts is None else {host.lower() for host in hosts} | LOOPBACK_NAMES
        self.secure = frozenset(secure)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers the request, or refuses it."""
        if scope["type"] == "websocket":
            # There are none; one that is added must first be taught the checks below.
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        refusal = self._refusal(scope)
        if refusal is None:
            await self.app(scope, receive, send)
            return
        request_id = scope.get("state", {}).get("request_id")
        response = problem_response(refusal.status, refusal.code, refusal.detail, request_id=request_id)
        await response(scope, receive, send)

    def _refusal(self, scope: Scope) -> ApiError | None:
        given = header_list(scope, b"host")
        authority = split_authority(given[0]) if len(given) == 1 else None
        if authority is None:
            return ApiError(400, "bad-host", "the request needs exactly one valid Host header")
        host, port = authority
        if self.hosts is not None and host not in self.hosts:
            return ApiError(
                421,
                "unknown-host",
                f"this service does not answer to the name {shown(host)}; "
                "if it should, add it to GHOSTWATT_ALLOWED_HOSTS",
            )
        if scope["method"] in SAFE_METHODS:
            return None
        return self._origin_refusal(scope, host, port)

    def _origin_refusal(self, scope: Scope, host: str, port: int | None) -> ApiError | None:
        origin = header(scope, b"origin")
        if origin is None:
            if header(scope, b"sec-fetch-site") in (None, "same-origin", "none"):
                return None
            return Forbidden("a page of another origin may not change anything here", "foreign-origin")
        scheme = "https" if (host, port or DEFAULT_PORTS["https"]) in self.secure else "http"
        if parse_origin(origin) == (scheme, host, port or DEFAULT_PORTS[scheme]):
            return None
        detail = f"a page of {shown(origin)} may not change anything here"
        if scheme == "http" and origin.startswith("https:"):
            detail += "; if people reach the service there, add that address to GHOSTWATT_ALLOWED_HOSTS"
        return Forbidden(detail, "foreign-origin")
