"""The port that may be reached by everybody: probes and metrics, and nothing else.

Where Kerf listens on loopback for kube-scheduler alone, the kubelet and Prometheus have to reach something. Whoever
calls it again and again costs next to nothing: so many calls a second of each address, and metrics made once a second.
"""

import time
from collections.abc import Callable
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from extender.server.access import METRICS, PROBES, Refusal, client_of, refuse, too_many
from extender.server.rates import Rates

_CALLS_PER_S: Final = 20.0
_BURST: Final = 60
_AT_ONCE: Final = 1 << 30
_KEPT_S: Final = 1.0
"""For which metrics are told again as they were."""
_NOT_HERE: Final = Refusal(404, "this port has /metrics, /healthz, /readyz and /syncz, to be read, and nothing else")


class ReadOnly:
    """ASGI application: of another one, what probes and Prometheus read."""

    def __init__(self, app: ASGIApp, clock: Callable[[], float] = time.monotonic) -> None:
        self._app = app
        self._clock = clock
        self._rates = Rates(per_s=_CALLS_PER_S, burst=_BURST, at_once=_AT_ONCE, clock=clock)
        self._metrics: list[Message] = []
        self._made_at = float("-inf")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        if scope["method"] != "GET" or (scope["path"] not in PROBES and scope["path"] != METRICS):
            await refuse(_NOT_HERE, send)
        elif wait_s := self._rates.wait_s(client_of(scope)):
            await refuse(too_many(f"{_CALLS_PER_S:g} a second of one address", wait_s), send)
        elif scope["path"] == METRICS:
            await self._tell_metrics(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _tell_metrics(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._clock() - self._made_at > _KEPT_S:
            made: list[Message] = []

            async def keep(message: Message) -> None:
                made.append(message)

            await self._app(scope, receive, keep)
            self._metrics, self._made_at = made, self._clock()
        for message in self._metrics:
            await send(dict(message))
