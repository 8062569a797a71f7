"""Which files of extender/ a call enters, found by running it: `/filter`, `/bind`, a pod's event, a pod with a claim.

Kerf runs in this process on a cluster in memory, and `sys.setprofile` tells of every call. An entry is a line that
calls into another file, with the function that it enters: one in a loop, and one that goes on after it has waited,
counts once. A way is a file and another that it calls into, however often.

Run as a file it measures the checkout in the working directory, which may be another revision's: it imports nothing of
its own folder.
"""

import asyncio
import json
import re
import sys
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Final

import msgspec

from extender.kube.client import ApiError
from extender.kube.memory import Manifest, MemoryCluster
from tests.api import bodies
from tests.api.services import Kerf, running
from tests.ledger.builders import until

_ROOT: Final = str(Path.cwd())
_STAND_IN: Final = "extender/kube/memory.py"
"""The API server of these runs: not a part of the walk."""
_API: Final = "/apis/resource.k8s.io/v1"
_CLAIM: Final = re.compile(rf"{_API}/namespaces/(\w+)/resourceclaims/([\w-]+)(/\w+)?")
_DRIVER: Final = "gpu.nvidia.com"

Entry = tuple[str, int, str, str]
"""The file that calls, its line, the file that is entered, and the function."""


@dataclass(slots=True)
class Step:
    """What one task did until it waited, or what one thread did."""

    task: asyncio.Task[Any] | None
    entries: list[Entry] = field(default_factory=list)
    heard: bool = False
    """Whether the API server's watch had something to tell."""


class Recorder:
    """Records the calls in extender/, step by step, while it is `recording`."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.parents: dict[asyncio.Task[Any], asyncio.Task[Any] | None] = {}
        self._stacks: dict[int, list[FrameType]] = defaultdict(list)
        self._current: dict[int, Step] = {}
        self._files: dict[str, str] = {}

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record this thread and those that begin meanwhile."""
        threading.setprofile(self._hear)
        sys.setprofile(self._hear)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def make_task(self, loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
        """A task factory that notes who begins whom."""
        task = asyncio.Task(work, loop=loop, **options)
        self.parents[task] = asyncio.current_task(loop)
        return task

    def line(self, task: asyncio.Task[Any] | None) -> Iterator[asyncio.Task[Any]]:
        """A task, the one that began it, and so on."""
        while task is not None:
            yield task
            task = self.parents.get(task)

    def _hear(self, frame: FrameType, event: str, _: object) -> None:
        if event not in ("call", "return") or not (file := self._file(frame.f_code.co_filename)):
            return
        thread = threading.get_ident()
        stack = self._stacks[thread]
        if event == "return":
            if stack and stack[-1] is frame:
                stack.pop()
            return
        if not stack:
            self._begin(thread)
        step = self._current[thread]
        if file == _STAND_IN:
            step.heard |= frame.f_code.co_name == "watch"
        caller = next((one for one in reversed(stack) if self._file(one.f_code.co_filename) != _STAND_IN), None)
        calling = self._file(caller.f_code.co_filename) if caller else ""
        if file not in (_STAND_IN, calling):
            step.entries.append((calling, caller.f_lineno if caller else 0, file, frame.f_code.co_qualname))
        stack.append(frame)

    def _begin(self, thread: int) -> None:
        try:
            task = asyncio.current_task()
        except RuntimeError:
            task = None
        self._current[thread] = Step(task)
        self.steps.append(self._current[thread])

    def _file(self, name: str) -> str:
        """The path below the root of a file of extender/, "" for others."""
        known = self._files.get(name)
        if known is None:
            path = name.removeprefix(_ROOT + "/")
            known = self._files[name] = path if path.startswith("extender/") else ""
        return known


def walk_of(steps: Iterable[Step]) -> dict[str, Any]:
    """The files in the order in which they are entered first, and how many ways and entries there are."""
    entries = list(dict.fromkeys(entry for step in steps for entry in step.entries))
    return {
        "files": list(dict.fromkeys(entered for _, _, entered, _ in entries)),
        "ways": len({(calling, entered) for calling, _, entered, _ in entries}),
        "entries": len(entries),
    }


def recorded(kerf: Kerf, work: Callable[[], object]) -> Recorder:
    """What is called while something is done and Kerf comes to rest."""
    recorder = Recorder()

    async def install() -> None:
        asyncio.get_running_loop().set_task_factory(recorder.make_task)

    kerf.run(install())
    with recorder.recording():
        work()
        kerf.settle()
    return recorder


def walk_of_call(path: str) -> dict[str, Any]:
    """The walk of one of kube-scheduler's calls about a pod with a GPU, by a Kerf that has served another."""
    nodes = [node["metadata"]["name"] for node in bodies.CLUSTER]
    with running() as kerf:

        def body(name: str, gpus: int) -> bytes:
            metadata = kerf.create(bodies.pod(name, gpus))["metadata"]
            pod = kerf.cluster.pod(metadata["namespace"], metadata["name"])  # in the version that it has there
            if path == "/filter":
                return bodies.args(pod, nodes)
            chosen, *_ = kerf.filter(pod, nodes)["NodeNames"]
            return bodies.binding_args(pod, chosen)

        kerf.post(path, body("first", 2))
        measured = body("measured", 1)
        recorder = recorded(kerf, lambda: kerf.post(path, measured))
    caller = next(step.task for step in recorder.steps if step.task)
    return walk_of(step for step in recorder.steps if caller in recorder.line(step.task))


def walk_of_event() -> dict[str, Any]:
    """The walk of the watch's word that a pod has its node, in a Kerf that has heard of another."""
    with running() as kerf:
        kerf.create(bodies.pod("first", 1, node_name="a100-0"))
        recorder = recorded(kerf, lambda: kerf.create(bodies.pod("measured", 1, node_name="a100-0")))
    heard = {step.task.get_name(): step for step in recorder.steps if step.task is not None and step.heard}
    return walk_of(step for _, step in sorted(heard.items()))


class Devices(MemoryCluster):
    """A cluster with devices of a DRA driver that Kerf allocates, and with claims of them."""

    def __init__(self) -> None:
        taint = {"key": "kerf.dev/owned", "value": "kerf", "effect": "NoSchedule"}
        device = {"taints": [taint]}
        pool = {"name": "a100-0", "generation": 1, "resourceSliceCount": 1}
        names = ("slice", "gpu", "default")
        made = [{"metadata": {"name": name, "uid": name, "resourceVersion": "1"}} for name in names]
        devices = [device | {"name": f"gpu-{number}"} for number in range(8)]
        of_slice = {"driver": _DRIVER, "nodeName": "a100-0", "pool": pool, "devices": devices}
        self._listed: dict[str, list[Manifest]] = {
            f"{_API}/resourceslices": [made[0] | {"spec": of_slice}],
            f"{_API}/deviceclasses": [made[1] | {"spec": {}}],
            "/api/v1/namespaces": [made[2]],
            f"{_API}/resourceclaims": [],
            f"{_API}/devicetaintrules": [],
        }
        self.writers: set[asyncio.Task[Any] | None] = set()
        """Who has written on claims."""
        self._queues: dict[str, list[asyncio.Queue[bytes]]] = defaultdict(list)
        super().__init__([bodies.node("a100-0")])

    @property
    def num_untold(self) -> int:
        return super().num_untold + sum(queue.qsize() for queues in self._queues.values() for queue in queues)

    def claim(self, name: str) -> Manifest:
        """Create a claim of one device."""
        self._version += 1
        metadata = {"name": name, "namespace": "default", "uid": name, "resourceVersion": str(self._version)}
        request = {"name": "gpu", "exactly": {"deviceClassName": "gpu"}}
        made = {"metadata": metadata, "spec": {"devices": {"requests": [request]}}, "status": {}}
        self._listed[f"{_API}/resourceclaims"].append(made)
        self._tell(made, "ADDED")
        return made

    async def get(self, path: str, query: Any = None) -> bytes:
        if (items := self._listed.get(path.partition("?")[0])) is not None:
            return msgspec.json.encode({"metadata": {"resourceVersion": str(self._version)}, "items": items})
        if match := _CLAIM.fullmatch(path):
            return msgspec.json.encode(self._named(match[2]))
        return b"{}" if path == _API else await super().get(path, query)

    async def patch(self, path: str, body: bytes) -> bytes:
        if not (match := _CLAIM.fullmatch(path)):
            return await super().patch(path, body)
        self.writers.add(asyncio.current_task())
        claim, change = self._named(match[2]), msgspec.json.decode(body, type=Manifest)
        self._version += 1
        claim["metadata"] |= change["metadata"] | {"resourceVersion": str(self._version)}
        claim["status"] |= change.get("status", {})
        self._tell(claim, "MODIFIED")
        return msgspec.json.encode(claim)

    async def watch(self, path: str, query: Any) -> AsyncIterator[list[bytes]]:
        if path not in self._listed:
            async for lines in super().watch(path, query):
                yield lines
            return
        queue: asyncio.Queue[bytes] = asyncio.Queue()
        self._queues[path].append(queue)
        yield []
        while True:
            yield [await queue.get()]

    def _named(self, name: str) -> Manifest:
        for claim in self._listed[f"{_API}/resourceclaims"]:
            if claim["metadata"]["name"] == name:
                return claim
        raise ApiError(404, "NotFound", name)

    def _tell(self, claim: Manifest, kind: str) -> None:
        for queue in self._queues[f"{_API}/resourceclaims"]:
            queue.put_nowait(msgspec.json.encode({"type": kind, "object": claim}))


def walk_of_claim() -> dict[str, Any]:
    """The walk of a queue's round that allocates a device to the claim of a waiting pod, to the last write: the
    shortest of a few, because another round may begin meanwhile."""
    cluster, walks = Devices(), []
    with running(cluster, queue__enabled=True, dra__allocate=True) as kerf:
        for name in ("first", "second", "third", "fourth", "fifth"):
            claim = cluster.claim(name)
            uses = [{"name": "gpu", "resourceClaimName": name}]
            pod = bodies.pod(name, resourceClaims=uses, schedulingGates=[{"name": "kerf.dev/queue"}])
            kerf.settle()

            def allocate(pod: Manifest = pod, claim: Manifest = claim) -> None:
                cluster.apply(pod)
                kerf.run(until(lambda: "allocation" in claim["status"]))

            cluster.writers.clear()
            recorder = recorded(kerf, allocate)
            writing = {task for writer in cluster.writers for task in recorder.line(writer)}
            walks.append(walk_of(step for step in recorder.steps if step.task in writing))
    return min(walks[1:], key=lambda walk: int(walk["entries"]))


WALKS: Final[dict[str, Callable[[], dict[str, Any]]]] = {
    "/filter": lambda: walk_of_call("/filter"),
    "/bind": lambda: walk_of_call("/bind"),
    "a pod's event": walk_of_event,
    "a claim": walk_of_claim,
}

if __name__ == "__main__":
    print(json.dumps({name: walk() for name, walk in WALKS.items()}))
