"""Interface to an API server, its errors and paths; `memory` implements it without a server.

Apart from `client`, so that other implementations don't load its libraries.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from functools import cached_property
from typing import Final, NamedTuple, Protocol

import msgspec

from extender.kube import objects
from extender.kube.decoding import Decoder

NODES_PATH: Final = "/api/v1/nodes"
PODS_PATH: Final = "/api/v1/pods"
NAMESPACES_PATH: Final = "/api/v1/namespaces"

_NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?", re.ASCII)  # RFC 1123, as the API server checks it


def is_name(name: str) -> bool:
    """Whether this is a valid object name, so that it can be part of a path."""
    return _NAME.fullmatch(name) is not None


Query = Mapping[str, str]

_status_decoder: Final = Decoder(objects.Status)
_FORBIDDEN: Final = re.compile(
    r'User "(?P<user>(?:[^"\\]|\\.)*)" cannot (?P<verb>[a-z]+) resource "(?P<resource>[^"]*)" '
    r'in API group "(?P<group>[^"]*)"'
)
"""An authorizer's message (k8s.io/apiserver/pkg/endpoints/handlers/responsewriters/errors.go), not admission's."""
_UNAUTHORIZED, _FORBIDDEN_STATUS, _TOO_MANY, _SERVER_ERROR = 401, 403, 429, 500
_MAX_USER: Final = 253


class Right(NamedTuple):
    """An RBAC permission."""

    verb: str
    group: str
    """"" for the core group."""
    resource: str
    """With its subresource: `pods/status`."""

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}" + (f".{self.group}" if "." in self.group else "")


def missing_right(words: str) -> tuple[Right, str] | None:
    """The missing right and the user in an authorizer's message; None for other messages."""
    found = _FORBIDDEN.search(words)
    if found is None:
        return None
    return Right(found["verb"], found["group"], found["resource"]), found["user"][:_MAX_USER]


class ClusterError(Exception):
    """Base of errors of an API server.

    ClusterError
    ├── ApiError            it answered with an error status
    ├── UnreachableError    it did not answer; whether the request took effect is unknown
    └── CredentialsError    no usable kubeconfig or service account
    """

    @property
    def general_fault(self) -> str:
        """A fault that affects all requests alike, in words without this request; "" if only this request is wrong."""
        return str(self)


class ApiError(ClusterError):
    """The API server answered with an error status."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}" if reason else f"{status}: {message}")
        self.status = status
        self.reason = reason
        self.message = message

    @cached_property
    def missing_right(self) -> tuple[Right, str] | None:
        """The missing right and Kerf's user; None if the request failed for another reason."""
        return missing_right(self.message) if self.status == _FORBIDDEN_STATUS else None

    @property
    def general_fault(self) -> str:
        """A missing right, rejected credentials, or an overloaded or failing server; "" for other errors."""
        if self.missing_right is not None:
            return f"may not {self.missing_right[0]}"
        general = self.status in (_UNAUTHORIZED, _TOO_MANY) or self.status >= _SERVER_ERROR
        return f"{self.status} {self.reason}" if general else ""


class UnreachableError(ClusterError):
    """No response: refused, reset, or timed out. A write may or may not have taken effect."""

    @property
    def general_fault(self) -> str:
        """The cause, without the request."""
        return str(self).partition(": ")[2] or str(self)


class CredentialsError(ClusterError):
    """No usable kubeconfig or service account."""


class Transport(Protocol):
    """An API server, or a substitute."""

    async def start(self) -> None:
        """Open the connections. Raises CredentialsError."""

    async def close(self) -> None:
        """Close all connections."""

    async def get(self, path: str, query: Query | None = None) -> bytes:
        """Send a GET request. Raises ApiError, UnreachableError."""

    async def post(self, path: str, body: bytes) -> bytes:
        """Create an object. Raises ApiError, UnreachableError."""

    async def patch(self, path: str, body: bytes) -> bytes:
        """Apply a JSON merge patch. Raises ApiError, UnreachableError."""

    async def ensure(self, path: str, body: bytes) -> bytes:
        """Server-side apply as manager `kerf`. Raises ApiError, UnreachableError."""

    def watch(self, path: str, query: Query) -> AsyncIterator[list[bytes]]:
        """Yield events in batches of JSON lines until the server ends the watch. Raises as `get` does."""


def api_error(status: int, content: bytes) -> ApiError:
    """Decode a response with an error status."""
    try:
        answer = _status_decoder.decode(content)
    except msgspec.DecodeError:
        return ApiError(status, "", content[:200].decode(errors="replace").strip())
    return ApiError(status, answer.reason, answer.message)


def describe(error: BaseException) -> str:
    """Why there was no response."""
    if isinstance(error, asyncio.TimeoutError):
        return "timed out"
    return str(error) or type(error).__name__
