"""The floor under Kerf's answer times: reads the body, answers `?bytes=N` bytes, decodes nothing.

It is a bare ASGI app on the HTTP stack that Kerf runs on, with the same uvicorn settings, so what a call to Kerf takes
beyond it is Kerf's own work: FastAPI, decoding, deciding, encoding. `python echo_app.py PORT` serves on loopback.
"""

import sys
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import uvicorn

from extender.server.connections import TimedProtocol

Message = MutableMapping[str, Any]


async def app(
    scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
) -> None:
    """ASGI: a JSON string of the size asked for, its quotes counted."""
    chunks = []
    while True:
        message = await receive()
        chunks.append(message.get("body", b""))
        if not message.get("more_body", False):
            break
    b"".join(chunks)  # whoever reads a body at all has it in one piece
    size = int(scope["query_string"].removeprefix(b"bytes=") or 2)
    content = b'"' + b"x" * (size - 2) + b'"'
    headers = [(b"content-length", str(size).encode()), (b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": content})


def main() -> None:
    """Serve, with the settings of `extender.server.run`."""
    uvicorn.run(
        app,
        host="127.0.0.1",
        port=int(sys.argv[1]),
        loop="uvloop",
        http=TimedProtocol,
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        timeout_keep_alive=120,
        server_header=False,
    )


if __name__ == "__main__":
    main()
