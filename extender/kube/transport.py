"""What Kerf asks of an API server, and what can go wrong: the seam behind which one in memory can stand.

Apart from `client`, so that who has another way to an API server need not load that one's libraries.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Final, Protocol

import msgspec

from extender.kube import objects
from extender.kube.decoding import Decoder

Query = Mapping[str, str]

_status_decoder: Final = Decoder(objects.Status)


class ClusterError(Exception):
    """Base of everything that goes wrong with an API server.

    ClusterError
    ├── ApiError            it answered, with a status that is no success
    ├── UnreachableError    it did not answer; whether it did what was asked is unknown
    └── CredentialsError    no usable kubeconfig or service account
    """


class ApiError(ClusterError):
    """The API server answered with an error status."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}" if reason else f"{status}: {message}")
        self.status = status
        self.reason = reason
        self.message = message


class UnreachableError(ClusterError):
    """No answer: refused, reset, or timed out. A write may or may not have happened."""


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
