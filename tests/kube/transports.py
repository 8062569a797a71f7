"""Substitutes for an API server."""


class ReadOnly:
    """An API server to which nothing is written; `get` and `watch` are a test's own."""

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def post(self, path: str, body: bytes) -> bytes:
        raise NotImplementedError

    async def patch(self, path: str, body: bytes) -> bytes:
        raise NotImplementedError

    async def ensure(self, path: str, body: bytes) -> bytes:
        raise NotImplementedError
