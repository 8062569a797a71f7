"""What a batch of runs happens to: one control plane, two kube-schedulers, the hops, and Kerf started anew each run."""

import asyncio
import json
import os
import re
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from tests.chaos.boards import Board
from tests.chaos.proxies import ApiProxy
from tests.chaos.routers import Router
from tests.controlplane import ControlPlane, Process, free_port, start_process, wait_until

ROOT = Path(__file__).parents[2]
SERVICE_ACCOUNT = "system:serviceaccount:kube-system:kerf"
"""The user whom manifests/rbac.yaml gives its rights."""
SCHEDULERS = ("default-scheduler", "kerf-second")
MAX_REPLICAS = 2
TTL_S = 4.0

_RBAC = ROOT / "manifests" / "rbac.yaml"
_QUEUE_RBAC = ROOT / "manifests" / "queue" / "rbac.yaml"
_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
_CONFIG = ROOT / "scheduler-config" / "decisive.yaml"
# Everything that waits is shortened alike: kube-scheduler gives up first, then Kerf, then the reservation ends.
_SCHEDULER_TIMES = {
    "httpTimeout: 5s": "httpTimeout: 1s",
    "percentageOfNodesToScore: 100": (
        "percentageOfNodesToScore: 100\npodInitialBackoffSeconds: 1\npodMaxBackoffSeconds: 2"
    ),
}
_KERF_TIMES = ("cluster.request_timeout_s=2", f"decisions.reservation_ttl_s={TTL_S:g}")
# Nothing is kept for the first in the queue: the checker asks why a pod waits that fits.
_QUEUE = ("queue.enabled=true", "queue.gang_timeout_s=4", "queue.reserve_after_s=3600")

ResultT = TypeVar("ResultT")


class HarnessError(Exception):
    """A run that could not be carried out: neither kept promises nor broken ones."""


class Loop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="chaos", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        """What a coroutine returns."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60.0)

    def call(self, function: Callable[..., ResultT], *arguments: Any) -> ResultT:
        """What a function returns when the loop calls it."""

        async def work() -> ResultT:
            return function(*arguments)

        return self.run(work())

    def stop(self) -> None:
        """End it, and what still runs in it."""
        self.run(self._cancel_all())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _cancel_all(self) -> None:
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)


class Cluster:
    """Everything that runs, from entry to exit. Use it from one thread that lives as long."""

    def __init__(self, directory: Path, *, queue: bool = False) -> None:
        """With `queue`, Kerf's is enabled."""
        self._queue = queue
        self.plane = ControlPlane(directory, users={"kerf": SERVICE_ACCOUNT})
        self.loop = Loop()
        self._proxies: list[ApiProxy] = []
        self._kubeconfigs: list[Path] = []
        self._ports = [free_port() for _ in range(MAX_REPLICAS)]
        self._num_started = 0
        self._elects = False

    def __enter__(self) -> Self:
        self.loop.start()
        try:
            self.plane.start()
            self.plane.apply(_RBAC, *([_QUEUE_RBAC] if self._queue else []))
            self.loop.run(self._start_hops())
            for name, url in zip(SCHEDULERS, self.router.urls, strict=True):
                names = {"schedulerName: default-scheduler": f"schedulerName: {name}"}
                self.plane.start_scheduler(_CONFIG, name, names | _SCHEDULER_TIMES, extender_url=url)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end_kerf()
        self.plane.stop()
        self.loop.run(self._stop_hops())
        self.loop.stop()

    async def _start_hops(self) -> None:
        self.board = Board(asyncio.get_running_loop().time)
        self.router = Router(self.board)
        await self.router.start()
        for replica in range(MAX_REPLICAS):
            proxy = ApiProxy(self.board, replica, self.plane.url, self.plane.certificate)
            await proxy.start()
            self._proxies.append(proxy)
            self._kubeconfigs.append(self._kubeconfig(replica, proxy.url))

    async def _stop_hops(self) -> None:
        if hasattr(self, "router"):
            await self.router.stop()
        for proxy in self._proxies:
            await proxy.stop()

    def _kubeconfig(self, replica: int, url: str) -> Path:
        config = json.loads(self.plane.kubeconfig("kerf").read_text())
        config["clusters"][0]["cluster"] = {"server": url}
        path = self.plane.directory / f"kerf-{replica}.kubeconfig"
        path.write_text(json.dumps(config))
        return path

    # Kerf

    @property
    def replicas(self) -> list[Process]:
        """Kerf's processes of this run; a dead one stays until it is replaced."""
        return self.board.replicas

    def start_kerf(self, num_replicas: int) -> None:
        """Start all replicas of a run; they take a moment to get ready."""
        self._num_started += 1
        self._elects = num_replicas > 1
        self.board.replicas[:] = [self._start_replica(replica) for replica in range(num_replicas)]
        self.loop.call(self.router.lead_to, [process.url for process in self.replicas])

    def revive_kerf(self) -> None:
        """Start again the replicas that are dead."""
        for replica, process in enumerate(self.replicas):
            if not process.running:
                self.replicas[replica] = self._start_replica(replica)

    def end_kerf(self) -> None:
        """No replica runs any more."""
        if hasattr(self, "router"):
            self.loop.call(self.router.lead_to, ())
            for process in self.replicas:
                process.kill()
            self.replicas.clear()

    def _start_replica(self, replica: int) -> Process:
        port = self._ports[replica]
        command: list[str | Path] = [
            *(sys.executable, "-m", "tests.chaos.jumps", "serve", "--port", str(port)),
            *("--kubeconfig", self._kubeconfigs[replica]),
            *(part for setting in (*_KERF_TIMES, *(_QUEUE if self._queue else ())) for part in ("--set", setting)),
            *(("--set", "leader_election.mode=own") if self._elects else ()),
        ]
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("KUBE", "KERF_"))}
        log = self.plane.directory / f"kerf-{self._num_started}-{replica}.log"
        return start_process("kerf", command, log, f"http://127.0.0.1:{port}", environment)

    def kerf_fault(self) -> str:
        """Why no replica is ready, "" when one is."""
        faults = []
        for process in self.replicas:
            status, text = _get(f"{process.url}/readyz")
            if status == 200:
                return ""
            faults.append(text)
        return "; ".join(faults)

    def metric(self, name: str) -> float:
        """The sum of a metric over the replicas that answer."""
        texts = [_get(f"{process.url}/metrics")[1] for process in self.replicas]
        found = [re.search(rf"^{name} (\S+)$", text, re.MULTILINE) for text in texts]
        return sum(float(match[1]) for match in found if match)

    # Objects

    def items(self, plural: str) -> list[dict[str, Any]]:
        """All nodes or pods."""
        path = "/api/v1/nodes" if plural == "nodes" else f"/api/v1/namespaces/default/{plural}"
        found: list[dict[str, Any]] = self.plane.request("GET", path)["items"]
        return found

    def clean(self) -> None:
        """Take away what the run before has left."""
        self.plane.request("DELETE", "/api/v1/namespaces/default/pods?gracePeriodSeconds=0")
        self.plane.request("DELETE", "/api/v1/nodes")
        self.plane.request("DELETE", _LEASES)
        wait_until(lambda: not self.items("pods") and not self.items("nodes"), 30.0, "the cluster is empty")


def create_all(plane: ControlPlane, path: str, manifests: Sequence[dict[str, Any]]) -> None:
    """Create objects of one kind."""
    for manifest in manifests:
        plane.request("POST", path, manifest)


def _get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=5.0) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)
