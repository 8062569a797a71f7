"""API servers over HTTP, on loopback."""

import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from extender.kube.client import ApiServer

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
NOWHERE = Path("/nonexistent")


@asynccontextmanager
async def serving(handler: Handler, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """A server on a free port, which is yielded."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
        await site.start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


@asynccontextmanager
async def client(**options: Any) -> AsyncIterator[ApiServer]:
    """A started client."""
    defaults: dict[str, Any] = {"service_account_dir": NOWHERE, "request_timeout_s": 10.0}
    transport = ApiServer(**(defaults | options))
    try:
        await transport.start()
        yield transport
    finally:
        await transport.close()


def answering(status: int, text: str) -> Handler:
    """Always the same response."""

    async def handler(request: web.Request) -> web.StreamResponse:
        return web.Response(status=status, text=text)

    return handler


def kubeconfig_of(folder: Path, port: int, user: dict[str, str] | None = None) -> str:
    """A kubeconfig of a server on loopback."""
    path = folder / "kubeconfig"
    content = {
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "u", "user": user or {}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(json.dumps(content))
    return str(path)
