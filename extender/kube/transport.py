"""What Kerf asks of an API server, and what can go wrong: the seam behind which one in memory can stand.

Apart from `client`, so that who has another way to an API server need not load that one's libraries.

Where the API server has what Kerf reads.
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
    """Whether Kubernetes takes it as the name of an object: names become parts of these paths."""
    return _NAME.fullmatch(name) is not None


Query = Mapping[str, str]

_status_decoder: Final = Decoder(objects.Status)
_FORBIDDEN: Final = re.compile(
    r'User "(?P<user>(?:[^"\\]|\\.)*)" cannot (?P<verb>[a-z]+) resource "(?P<resource>[^"]*)" '
    r'in API group "(?P<group>[^"]*)"'
)
"""In an authorizer's words (k8s.io/apiserver/pkg/endpoints/handlers/responsewriters/errors.go), not admission's."""
_UNAUTHORIZED, _FORBIDDEN_STATUS, _TOO_MANY, _SERVER_ERROR = 401, 403, 429, 500
_MAX_USER: Final = 253


class Right(NamedTuple):
    """To do something with a kind of objects."""

    verb: str
    group: str
    """"" for Kubernetes' own."""
    resource: str
    """With its part: `pods/status`."""

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}" + (f".{self.group}" if "." in self.group else "")


def right_lacking(words: str) -> tuple[Right, str] | None:
    """The right that is refused in an authorizer's words, and to whom; None where they are none of that."""
    found = _FORBIDDEN.search(words)
    if found is None:
        return None
    return Right(found["verb"], found["group"], found["resource"]), found["user"][:_MAX_USER]


class ClusterError(Exception):
    """Base of everything that goes wrong with an API server.

    ClusterError
    ├── ApiError            it answered, with a status that is no success
    ├── UnreachableError    it did not answer; whether it did what was asked is unknown
    └── CredentialsError    no usable kubeconfig or service account
    """

    @property
    def trouble(self) -> str:
        """What is wrong whatever is asked for, in words that are the same for all; "" for what is wrong with this one
        request."""
        return str(self)


class ApiError(ClusterError):
    """The API server answered with an error status."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}" if reason else f"{status}: {message}")
        self.status = status
        self.reason = reason
        self.message = message

    @cached_property
    def lacks(self) -> tuple[Right, str] | None:
        """The right that whoever asked does not have, and as whom Kerf asked; None where it is refused for something
        else."""
        return right_lacking(self.message) if self.status == _FORBIDDEN_STATUS else None

    @property
    def trouble(self) -> str:
        """A right that is lacking, credentials that are not taken, or a server that can't; "" for all else."""
        if self.lacks is not None:
            return f"may not {self.lacks[0]}"
        general = self.status in (_UNAUTHORIZED, _TOO_MANY) or self.status >= _SERVER_ERROR
        return f"{self.status} {self.reason}" if general else ""


class UnreachableError(ClusterError):
    """No answer: refused, reset, or timed out. A write may or may not have happened."""

    @property
    def trouble(self) -> str:
        """Why, without what was asked."""
        return str(self).partition(": ")[2] or str(self)


class CredentialsError(ClusterError):
    """No usable kubeconfig or service account."""


class Transport(Protocol):
    """An API server, or what stands in for one."""

    async def start(self) -> None:
        """Make ready to be called. Raises CredentialsError."""

    async def close(self) -> None:
        """Let go of all connections."""

    async def get(self, path: str, query: Query | None = None) -> bytes:
        """Read. Raises ApiError, UnreachableError."""

    async def post(self, path: str, body: bytes) -> bytes:
        """Create. Raises ApiError, UnreachableError."""

    async def patch(self, path: str, body: bytes) -> bytes:
        """Change by a JSON merge patch. Raises ApiError, UnreachableError."""

    async def ensure(self, path: str, body: bytes) -> bytes:
        """Create what is not there, by server-side apply as manager `kerf`. Raises ApiError, UnreachableError."""

    def watch(self, path: str, query: Query) -> AsyncIterator[list[bytes]]:
        """Events as they come, in batches of JSON lines; ends when the server ends it. Raises as `get` does."""


def api_error(status: int, content: bytes) -> ApiError:
    """What an answer with an error status says."""
    try:
        answer = _status_decoder.decode(content)
    except msgspec.DecodeError:
        return ApiError(status, "", content[:200].decode(errors="replace").strip())
    return ApiError(status, answer.reason, answer.message)


def describe(error: BaseException) -> str:
    """Why there was no answer."""
    if isinstance(error, asyncio.TimeoutError):
        return "timed out"
    return str(error) or type(error).__name__
