"""A running Kerf in the test's process: the real app on a cluster in memory, called through ASGI.

Nothing runs between two calls, and time stands still unless a test moves it.
"""

import asyncio
import json
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from prometheus_client.parser import text_string_to_metric_families

from extender.api.app import create_app
from extender.api.build import Parts
from extender.api.service import Service
from extender.kube.memory import Manifest, MemoryCluster
from extender.ledger.ledger import AllocationState
from extender.page.stream import Streams
from extender.scheduling.lost_answers import LostAnswers
from extender.settings.load import load_settings
from extender.telemetry.readings import Feed
from tests.api import bodies
from tests.ledger.builders import until

Chunks = Sequence[bytes]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP response."""

    status: int
    headers: Mapping[str, str]
    content: bytes

    def json(self) -> Any:
        """The body; asserts that it is JSON by its content type."""
        assert self.headers["content-type"] == "application/json"
        return json.loads(self.content)


class Clock:
    """A monotonic clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Kerf:
    """The service, with one method for each verb."""

    def __init__(self, app: Any, cluster: MemoryCluster, clock: Clock, runner: asyncio.Runner) -> None:
        self.app = app
        self._runner = runner
        self.cluster = cluster
        self.clock = clock
        self.service: Service = app.state.service
        self.streams: Streams = app.state.streams
        self.parts: Parts = app.state.parts
        self._called_at = clock.now

    def filter(self, pod: Manifest, names: Sequence[str]) -> Any:
        """The answer of /filter."""
        return self.post("/filter", bodies.args(pod, names)).json()

    def prioritize(self, pod: Manifest, names: Sequence[str]) -> dict[str, int]:
        """The scores of /prioritize by node."""
        answer = self.post("/prioritize", bodies.args(pod, names)).json()
        return {line["Host"]: line["Score"] for line in answer}

    def bind(self, pod: Manifest, node: str) -> str:
        """The `Error` of /bind, once the watch has reported the pod."""
        answer = self.post("/bind", bodies.binding_args(pod, node)).json()
        assert answer.keys() == {"Error"}
        self.settle()
        return str(answer["Error"])

    def preempt(self, pod: Manifest, victims: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
        """The victims' UIDs by node from /preempt, after the evictions proposed before have timed out."""
        self.clock.now += 60
        answer = self.post("/preempt", bodies.preemption_args(pod, victims)).json()
        assert answer.keys() == {"NodeNameToMetaVictims"}
        return {
            name: [pod["UID"] for pod in victims["Pods"]] for name, victims in answer["NodeNameToMetaVictims"].items()
        }

    def create(self, pod: Manifest) -> Manifest:
        """Put a pending pod into the cluster."""
        self.cluster.apply(pod)
        self.settle()
        return pod

    def events(self) -> list[Manifest]:
        """The events written."""
        self.clock.now += 1
        self._runner.run(asyncio.wait_for(self.parts.base.events.flush(), 30.0))
        return self.cluster.events

    def gpus_of(self, pod: Manifest) -> str:
        """A pod's GPUs by its annotation."""
        metadata = self.cluster.pod(pod["metadata"]["namespace"], pod["metadata"]["name"])["metadata"]
        return str(metadata["annotations"]["kerf.dev/assigned-gpus"])

    def metric(self, name: str, **labels: str) -> float:
        """One sample of /metrics; 0 when there is none."""
        lines = self.get("/metrics").content.decode().splitlines(keepends=True)
        text = "".join(line for line in lines if line.startswith((f"{name}{{", f"{name} ")))  # parsing all takes long
        return next(
            (
                sample.value
                for family in text_string_to_metric_families(text)
                for sample in family.samples
                if sample.name == name and sample.labels == labels
            ),
            0.0,
        )

    @property
    def num_reservations(self) -> int:
        """Number of reservations and undecided Bindings now."""
        self._keep_current()
        self.service.placer.snapshot()
        ledger = self.parts.base.ledger
        return ledger.num_allocations(AllocationState.RESERVED) + ledger.num_allocations(AllocationState.UNDECIDED)

    def get(self, path: str, headers: Mapping[str, str] | None = None, *, stays: bool = False) -> Answer:
        """GET; `stays` as of `call`."""
        return self._call("GET", path, (b"",), headers or {}, stays=stays)

    def post(self, path: str, body: bytes | Chunks, headers: Mapping[str, str] | None = None) -> Answer:
        """POST; a body in chunks travels without Content-Length."""
        if isinstance(body, bytes):
            return self._call("POST", path, (body,), {"content-length": str(len(body)), **(headers or {})})
        return self._call("POST", path, body, headers or {})

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the service's loop."""
        self._keep_current()
        return self._runner.run(work)

    def stop_mirror(self) -> None:
        """Stop the mirror."""
        self._runner.run(self.service.mirror.stop())

    def settle(self) -> None:
        """Wait until lists and watches have caught up, and run what they trigger."""
        self._runner.run(until(self._has_caught_up))
        self._runner.run(_turns(50))

    def _has_caught_up(self) -> bool:
        return not self.service.fault().endswith("not synced yet") and not self.cluster.num_untold

    def _call(
        self, method: str, path: str, chunks: Chunks, headers: Mapping[str, str], *, stays: bool = False
    ) -> Answer:
        self._keep_current()
        return self._runner.run(call(self.app, method, path, chunks, headers, stays=stays))

    def _keep_current(self) -> None:
        """If the clock was moved, send bookmarks: otherwise the watches would seem silent since."""
        if self.clock.now != self._called_at:
            self._called_at = self.clock.now
            self.cluster.breathe()
            self.settle()


async def call(
    app: Any,
    method: str,
    path: str,
    chunks: Chunks,
    headers: Mapping[str, str],
    client: tuple[str, int] = ("127.0.0.1", 50000),
    *,
    stays: bool = False,
) -> Answer:
    """One request through ASGI; the client disconnects after it, which ends streams, unless it `stays`."""
    path, _, query = path.partition("?")
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "server": ("testserver", 80),
        "client": client,
    }
    waiting = [
        {"type": "http.request", "body": chunk, "more_body": position < len(chunks)}
        for position, chunk in enumerate(chunks, start=1)
    ]
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        if not waiting and stays:
            await asyncio.Event().wait()
        return waiting.pop(0) if waiting else {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await app(scope, receive, send)
    start, *parts = sent
    content = b"".join(part.get("body", b"") for part in parts)
    return Answer(start["status"], {key.decode(): value.decode() for key, value in start["headers"]}, content)


@contextmanager
def running(
    cluster: MemoryCluster | Iterable[Manifest] = bodies.CLUSTER, *, feed: Feed | None = None, **flags: Any
) -> Iterator[Kerf]:
    """Kerf on a cluster, or on one of these objects. Settings are given as `decisions__mode="scores"`.

    By default without a learned rank, which would start to rank at an unpredictable time.
    """
    if not isinstance(cluster, MemoryCluster):
        cluster = MemoryCluster(cluster)
    clock = Clock()
    given = {"model__mode": "off", **flags}
    settings = load_settings(flags={name.replace("__", "."): value for name, value in given.items()})
    app = create_app(settings, cluster, clock, feed)
    with started(app) as runner:
        kerf = Kerf(app, cluster, clock, runner)
        kerf.settle()
        yield kerf


class Shared:
    """Services shared by the tests of a module with equal settings and objects. Tests may only change reservations and
    lost answers, which are cleared for each."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._known: dict[str, Kerf] = {}

    def __call__(self, cluster: Iterable[Manifest] = bodies.CLUSTER, **flags: Any) -> Kerf:
        """As of `running`."""
        objects = tuple(cluster)
        key = repr((objects, flags))
        if key not in self._known:
            self._known[key] = self._stack.enter_context(running(objects, **flags))
        kerf = self._known[key]
        kerf.clock.now += 1000.0  # longer than any TTL
        kerf.service.placer.lost = LostAnswers(kerf.clock)
        return kerf


@contextmanager
def started(app: Any) -> Iterator[asyncio.Runner]:
    """An app between startup and shutdown, in a loop that runs only during calls."""
    with asyncio.Runner() as runner:
        lifespan = app.router.lifespan_context(app)
        runner.run(_enter(lifespan))
        try:
            yield runner
        finally:
            runner.run(_exit(lifespan))


async def _turns(number: int) -> None:
    """Yield to the loop several times."""
    for _ in range(number):
        await asyncio.sleep(0)


async def _enter(lifespan: Any) -> None:
    await lifespan.__aenter__()


async def _exit(lifespan: Any) -> None:
    await lifespan.__aexit__(None, None, None)
