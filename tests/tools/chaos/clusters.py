"""What a batch of runs happens to: one control plane, two kube-schedulers, the hops, and Kerf started anew each run."""

import asyncio
import contextlib
import json
import re
import urllib.error
import urllib.request
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from tests.controlplane import ApiError, ControlPlane, binaries, free_port, podgroups, wait_until
from tests.controlplane.api import read_documents
from tests.controlplane.kerf import SCHEDULER_CONFIG, SERVICE_ACCOUNT
from tests.controlplane.objects import pod
from tests.controlplane.processes import clean_environment
from tests.install.policies import POLICY
from tests.tools.chaos import attacks, audits
from tests.tools.chaos.boards import Board
from tests.tools.chaos.devices import cleaning, manifests
from tests.tools.chaos.loops import Loop
from tests.tools.chaos.modes import TOKEN, Mode
from tests.tools.chaos.moves import cleaning as of_owners
from tests.tools.chaos.moves import manifests as of_moves
from tests.tools.chaos.proxies import ApiProxy
from tests.tools.chaos.refusals.manifests import volumes
from tests.tools.chaos.refusals.refusers import Refuser
from tests.tools.chaos.routers import Router
from tests.tools.chaos.witnesses import DEVICES, MOVES, Witness
from tests.tools.chaos.zygotes import Replica, Zygote

SCHEDULERS = ("default-scheduler", "kerf-second")
MAX_REPLICAS = 2
REFUSED = (403, 422)
"""Statuses of what an admission policy does not let through."""

_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
_CONFIG = SCHEDULER_CONFIG / "decisive.yaml"
_KERF = "http://127.0.0.1:8888"
"""Where that file has it."""
# Everything that waits is shortened alike: kube-scheduler gives up first, then Kerf, then the reservation ends.
_SCHEDULER_TIMES = {
    "httpTimeout: 5s": "httpTimeout: 1s",
    "percentageOfNodesToScore: 100": (
        "percentageOfNodesToScore: 100\npodInitialBackoffSeconds: 1\npodMaxBackoffSeconds: 2"
    ),
}
_AUTHOR = (
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "create", "patch", "delete"]},
    {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims"], "verbs": ["create", "patch", "delete"]},
)
"""What the authors of pods may do."""
_RECORDS = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "patch"]}
_HOSTILE = (
    f"/api/v1/namespaces/{attacks.NAMESPACE}/pods?gracePeriodSeconds=0",
    f"/apis/resource.k8s.io/v1/namespaces/{attacks.NAMESPACE}/resourceclaims",
)


class HarnessError(Exception):
    """A run that could not be carried out: neither kept promises nor broken ones."""


class Cluster:
    """Everything that runs, from entry to exit. Use it from one thread that lives as long."""

    def __init__(self, directory: Path, mode: Mode, *, groups: bool = False) -> None:
        """With `groups`, Kubernetes' own gangs are enabled, where this version has them."""
        self._mode = mode
        self.extender = mode.extender
        self.has_groups = groups and binaries.minor() >= "1.36"
        """Whether pods may be members of a PodGroup."""
        directory.mkdir(parents=True, exist_ok=True)
        self.audit = directory / "audit.log"
        policy = directory / "audit.yaml"
        policy.write_text(yaml.safe_dump(audits.POLICY))
        flags = (
            *(podgroups.SERVER_FLAGS if self.has_groups else ()),
            *(f"--audit-policy-file={policy}", f"--audit-log-path={self.audit}", "--audit-log-maxsize=100"),
        )
        users = {"kerf": SERVICE_ACCOUNT, "author": "mallory"}
        self.plane = ControlPlane(directory, users=users, flags=flags)
        self._policies = read_documents(POLICY)
        self._tokens = directory / "operators"
        self._tokens.write_text(f"{TOKEN}\n")
        self._guarded = False
        self.loop = Loop()
        self._proxies: list[ApiProxy] = []
        self._kubeconfigs: list[Path] = []
        self._ports = [free_port() for _ in range(MAX_REPLICAS)]
        self._zygote = Zygote(clean_environment())
        self._num_started = 0
        self._elects = False
        self._stoppable = False

    def __enter__(self) -> Self:
        self.loop.start()
        try:
            self._zygote.start()
            self.plane.start()
            self.plane.apply(*self._mode.rights)
            if self._mode.dra:
                self.plane.apply(*manifests.classes(), manifests.taint_rule())
            if self._mode.refusals:
                self.plane.apply(*volumes())
            if self._mode.defrag:
                self.plane.apply(of_moves.URGENT)
                self.plane.grant("kerf", _RECORDS)
            if self._mode.controllers:
                self.plane.start_controller_manager(*self._mode.controllers)
            self.plane.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": attacks.NAMESPACE}})
            self.plane.grant("author", *_AUTHOR)
            self.author = self.plane.api("author")
            self.loop.run(self._start_hops())
            self.guard(True)
            gates = podgroups.GATES if self.has_groups else ()
            for name, url in zip(SCHEDULERS, self.router.urls, strict=True):
                self.plane.start_scheduler(self._scheduler_config(name, url), name, gates=gates)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end_kerf()
        self._zygote.stop()
        if hasattr(self, "author"):
            self.author.close()
        self.plane.stop()
        self.loop.run(self._stop_hops())
        self.loop.stop()

    def _scheduler_config(self, name: str, kerf: str) -> str:
        """The file as it is shipped, with Kerf at its address, and behind it who refuses."""
        text = _CONFIG.read_text().replace(f"schedulerName: {SCHEDULERS[0]}", f"schedulerName: {name}")
        for old, new in _SCHEDULER_TIMES.items():
            text = text.replace(old, new)
        config = yaml.safe_load(text.replace(_KERF, kerf))
        extenders = config.pop("extenders")
        if not self.extender:
            extenders = []
        if self._mode.refusals:
            extenders.append(self.refuser.entry)
        return yaml.safe_dump({**config, "extenders": extenders})

    async def _start_hops(self) -> None:
        self.board = Board(asyncio.get_running_loop().time)
        self.refuser = Refuser(self.board)
        await self.refuser.start()
        self.router = Router(self.board)
        await self.router.start()
        noted = DEVICES if self._mode.dra else MOVES if self._mode.defrag else {}
        self.witness = Witness(self.plane.url, self.plane.token("admin"), self.plane.certificate, noted)
        await self.witness.start()
        for replica in range(MAX_REPLICAS):
            proxy = ApiProxy(self.board, replica, self.plane.url, self.plane.certificate, extender=self.extender)
            await proxy.start()
            self._proxies.append(proxy)
            self._kubeconfigs.append(self._kubeconfig(replica, proxy.url))

    async def _stop_hops(self) -> None:
        if hasattr(self, "router"):
            await self.router.stop()
        if hasattr(self, "refuser"):
            await self.refuser.stop()
        if hasattr(self, "witness"):
            await self.witness.stop()
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
    def replicas(self) -> list[Replica]:
        """Kerf's processes of this run; a dead one stays until it is replaced."""
        return self.board.replicas

    def start_kerf(self, num_replicas: int, *, elects: bool, stoppable: bool) -> None:
        """Start all replicas of a run; they take a moment to get ready. `elects`: they hold Kerf's own lease."""
        self._num_started += 1
        self._elects, self._stoppable = elects, stoppable
        self.board.replicas[:] = [self._start_replica(replica) for replica in range(num_replicas)]
        self.loop.call(self.router.lead_to, [process.url for process in self.replicas])

    def revive_kerf(self) -> list[Replica]:
        """Start again the replicas that are dead; returns those whose end nobody wanted."""
        ended = []
        for replica, process in enumerate(self.replicas):
            if not process.running:
                self.replicas[replica] = self._start_replica(replica)
                if not process.killed and "address already in use" not in process.last_words():
                    ended.append(process)
        return ended

    def end_kerf(self) -> None:
        """No replica runs any more."""
        if hasattr(self, "router"):
            self.loop.call(self.router.lead_to, ())
            for process in self.replicas:
                process.kill()
            self.replicas.clear()

    def _start_replica(self, replica: int) -> Replica:
        port = self._ports[replica]
        settings = self._mode.settings(elects=self._elects, tokens=self._tokens)
        arguments = [
            *("serve", "--port", str(port), "--kubeconfig", str(self._kubeconfigs[replica])),
            *(part for setting in settings for part in ("--set", setting)),
        ]
        log = self.plane.directory / f"kerf-{self._num_started}-{replica}.log"
        return self._zygote.replica(arguments, f"http://127.0.0.1:{port}", log, stoppable=self._stoppable)

    def kerf_fault(self) -> str:
        """Why no replica is ready, "" when one is."""
        faults = []
        for process in self.replicas:
            status, text = _get(f"{process.url}/readyz")
            if status == 200:
                return ""
            faults.append(text)
        return "; ".join(faults)

    def kerf_is_synced(self) -> bool:
        """Whether all replicas run and know what there is."""
        return all(_get(f"{process.url}/syncz")[0] == 200 for process in self.replicas)

    def metric(self, name: str) -> float:
        """The sum of a metric over the replicas that answer."""
        found = [re.search(rf"^{name} (\S+)$", text, re.MULTILINE) for text in self.kerf_answers("/metrics")]
        return sum(float(match[1]) for match in found if match)

    def kerf_answers(self, path: str) -> list[str]:
        """What each replica says to a GET."""
        return [_get(f"{process.url}{path}")[1] for process in self.replicas]

    # Objects

    def audited(self, names: Collection[str]) -> list[str]:
        """The lines of the API server's audit log about pods of these names, and about many at once."""
        with contextlib.suppress(OSError):
            lines = self.audit.read_text(errors="replace").splitlines()
            wanted = (*(f'"name":"{name}"' for name in names), '"deletecollection"')
            return [line for line in lines if any(text in line for text in wanted)]
        return []

    def items(self, plural: str) -> list[dict[str, Any]]:
        """All nodes or pods."""
        path = "/api/v1/nodes" if plural == "nodes" else f"/api/v1/namespaces/default/{plural}"
        found: list[dict[str, Any]] = self.plane.request("GET", path)["items"]
        return found

    def clean(self) -> None:
        """Take away what the run before has left."""
        if self._mode.defrag:
            of_owners.clean(self.plane)
        self.plane.request("DELETE", "/api/v1/namespaces/default/pods?gracePeriodSeconds=0")
        self.plane.request("DELETE", "/api/v1/nodes")
        self.plane.request("DELETE", _LEASES)
        for path in _HOSTILE:
            with contextlib.suppress(RecursionError):  # the answer has all that was deleted, however deep
                self.plane.request("DELETE", path)
        if self.has_groups:
            self.plane.request("DELETE", podgroups.path())
        if self._mode.dra:
            cleaning.clean(self.plane)
        wait_until(lambda: not self.witness.seen.pods and not self.witness.seen.nodes, 30.0, "the cluster is empty")

    def guard(self, on: bool) -> None:
        """Let the API server refuse, or not, what Kerf's admission policy says: it keeps hands off assignments."""
        if on == self._guarded:
            return
        self._guarded = on
        if on:
            self.plane.apply(*self._policies)
        else:
            for document in self._policies:
                plural = f"{document['kind'].lower().removesuffix('y')}ies".replace("bindingies", "bindings")
                name = document["metadata"]["name"]
                self.plane.request("DELETE", f"/apis/{document['apiVersion']}/{plural}/{name}")
        wait_until(lambda: self._refuses_forgeries() == on, 30.0, "the admission policy is in effect, or no longer")

    def _refuses_forgeries(self) -> bool:
        forged = pod("forged", annotations={"kerf.dev/assigned-gpus": "0"})
        try:
            self.author.request("POST", "/api/v1/namespaces/default/pods?dryRun=All", forged)
        except ApiError as error:
            if error.status not in REFUSED:
                raise
            return True
        return False


def create_all(plane: ControlPlane, path: str, manifests: Sequence[Mapping[str, Any]]) -> None:
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
