"""What both hops have in common: HTTP on loopback, and connections that end in the middle."""

from collections.abc import Awaitable, Callable
from typing import Final

import aiohttp
from aiohttp import web

FAILURES: Final = (aiohttp.ClientError, OSError, TimeoutError)
"""What a call raises that gets no answer."""

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


async def listen(handler: Handler) -> tuple[web.ServerRunner, str]:
    """Serve on a free port; returns what has to be cleaned up, and the address."""
    runner = web.ServerRunner(web.Server(handler, access_log=None), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner, f"http://127.0.0.1:{runner.addresses[0][1]}"


def abort(request: web.BaseRequest) -> web.Response:
    """Reset the client's connection; what is returned reaches nobody."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=502)
