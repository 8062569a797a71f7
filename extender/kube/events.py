"""Kubernetes Events, written in the background; lost ones are counted.

In a burst bindings go first: Events are written once no more arrive, or after `_MAX_DELAY_S`.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, NamedTuple

import msgspec

from extender.core.texts import printable
from extender.kube.background import Tasks
from extender.kube.client import ClusterError, Transport

logger = logging.getLogger(__name__)

_COMPONENT: Final = "kerf"
_MAX_WAITING: Final = 10_000
_PAUSE_S: Final = 0.2
_MAX_DELAY_S: Final = 30.0
_NUM_WRITERS: Final = 2
_MAX_NAME_CHARS: Final = 253
_MAX_MESSAGE_CHARS: Final = 1024
"""Limit of the API server."""


class _Waiting(NamedTuple):
    """An Event that is not written yet."""

    emitted: float
    """Monotonic time."""
    time_ns: int
    """Unix time in nanoseconds."""
    about: dict[str, str]
    namespace: str
    reason: str
    message: object
    kind: str

    def encode(self) -> bytes:
        """Return the object as JSON."""
        name, suffix = self.about["name"], f".{self.time_ns:x}"
        at = datetime.fromtimestamp(self.time_ns // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return msgspec.json.encode(
            {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {"namespace": self.namespace, "name": name[: _MAX_NAME_CHARS - len(suffix)] + suffix},
                "involvedObject": {"apiVersion": "v1", **self.about},
                "type": self.kind,
                "reason": self.reason,
                "message": _one_line(str(self.message)),
                "source": {"component": _COMPONENT},
                "reportingComponent": _COMPONENT,
                "reportingInstance": _COMPONENT,
                "firstTimestamp": at,
                "lastTimestamp": at,
                "count": 1,
            }
        )


class EventRecorder:
    """Writes Events in the background, from `start` to `stop`."""

    def __init__(
        self, transport: Transport, clock: Callable[[], float] = time.monotonic, *, placements: bool = True
    ) -> None:
        """`placements`: whether placed pods get an Event."""
        self._placements = placements
        self._transport = transport
        self._clock = clock
        self._waiting: asyncio.Queue[_Waiting] = asyncio.Queue(_MAX_WAITING)
        self._last_emitted = float("-inf")
        self._stopping = False
        self.tasks = Tasks()
        self.num_lost = 0
        """Events not written: the queue was full, or the request failed."""

    def start(self) -> None:
        """Start writing in the running event loop."""
        for number in range(_NUM_WRITERS):
            self.tasks.begin(f"event writer {number}", self._write, needed=False)

    async def stop(self) -> None:
        """Write waiting Events for at most two seconds, and stop."""
        self._stopping = True
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.flush(), timeout=2.0)
        await self.tasks.end()

    async def flush(self) -> None:
        """Wait until all recorded Events are written or lost."""
        await self._waiting.join()

    def emit_placement(self, namespace: str, name: str, uid: str, *, message: object) -> None:
        """Queue the Event about a placed pod, unless these are turned off (setting `events.placements`).

        `message` is immutable and small; it becomes text when the Event is written.
        """
        if self._placements:
            self.emit(namespace, name, uid, reason="GPUsAssigned", message=message)

    def emit(self, namespace: str, name: str, uid: str, *, reason: str, message: object) -> None:
        """Queue a Normal Event about a pod."""
        self._emit({"kind": "Pod", "namespace": namespace, "name": name, "uid": uid}, namespace, reason, message)

    def emit_about_node(self, name: str, *, reason: str, message: str) -> None:
        """Queue a Warning about a node."""
        # As kubelet: the node's name is the UID, and Events of cluster-scoped objects are in `default`.
        self._emit({"kind": "Node", "name": name, "uid": name}, "default", reason, message, kind="Warning")

    def emit_about_namespace(self, name: str, *, reason: str, message: str) -> None:
        """Queue a Warning about a namespace, among its Events."""
        about = {"kind": "Namespace", "namespace": name, "name": name}
        self._emit(about, name, reason, message, kind="Warning")

    def emit_about_config_map(self, namespace: str, name: str, *, reason: str, message: str) -> None:
        """Queue a Normal Event about a ConfigMap."""
        self._emit({"kind": "ConfigMap", "namespace": namespace, "name": name}, namespace, reason, message)

    def _emit(self, about: dict[str, str], namespace: str, reason: str, message: object, kind: str = "Normal") -> None:
        if isinstance(message, str):
            message = _one_line(message)  # cut before it waits: there may be many, and authors write parts of them
        self._last_emitted = self._clock()
        try:
            self._waiting.put_nowait(
                _Waiting(self._last_emitted, time.time_ns(), about, namespace, reason, message, kind)
            )
        except asyncio.QueueFull:
            self.num_lost += 1

    async def _wait_for_a_pause(self, emitted: float) -> None:
        """Wait until no Event has arrived for `_PAUSE_S`, but at most `_MAX_DELAY_S`."""
        while not self._stopping:
            now = self._clock()
            if now - self._last_emitted >= _PAUSE_S or now - emitted >= _MAX_DELAY_S:
                return
            await asyncio.sleep(_PAUSE_S / 2)

    async def _write(self) -> None:
        while True:
            event = await self._waiting.get()
            try:
                await self._wait_for_a_pause(event.emitted)
                await self._transport.post(f"/api/v1/namespaces/{event.namespace}/events", event.encode())
            except ClusterError as error:
                self.num_lost += 1
                logger.warning("an event was not written: %s", error)
            except Exception:
                self.num_lost += 1
                logger.exception("an event was not written")
            finally:
                self._waiting.task_done()


def _one_line(message: str) -> str:
    """Return a message on one line, cut at a word, for `kubectl describe`."""
    line = printable(" ".join(message.split()))
    if len(line) <= _MAX_MESSAGE_CHARS:
        return line
    cut = line[: _MAX_MESSAGE_CHARS - 4]
    return f"{cut.rpartition(' ')[0] or cut} ..."
