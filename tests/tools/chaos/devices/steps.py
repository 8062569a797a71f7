"""The steps of a run that happen to claims, to devices and to the nodes that have them."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from tests.controlplane import ApiError
from tests.controlplane.api import Object
from tests.tools.chaos import holdings, manifests
from tests.tools.chaos.clusters import Cluster
from tests.tools.chaos.devices import manifests as of_devices
from tests.tools.chaos.devices.books import takings_of
from tests.tools.chaos.devices.manifests import CLAIMS, SLICES
from tests.tools.chaos.devices.plans import OWNED, ClaimPlan, PoolPlan
from tests.tools.chaos.faults import Fault, Kind
from tests.tools.chaos.holdings import Manifest
from tests.tools.chaos.plans import Plan, PodPlan
from tests.tools.chaos.schedules import Step
from tests.tools.chaos.steps import Steps

_NODES: Final = "/api/v1/nodes"
_PODS: Final = "/api/v1/namespaces/default/pods"
_MERGE: Final = "application/merge-patch+json"
_WITHIN_S: Final = 12.0
"""So long a fault waits for the moment that it is for."""
_EDIT_EACH_S: Final = 0.1
_NUM_EDITED: Final = 8
_NUM_THIRSTY: Final = 2


class DeviceSteps(Steps):
    """Those of one run that has devices."""

    def __init__(self, cluster: Cluster, plan: Plan, clock: Callable[[], float]) -> None:
        super().__init__(cluster, plan, clock)
        self._pools: dict[str, list[PoolPlan]] = defaultdict(list)
        for pool in plan.devices.pools:
            self._pools[pool.node].append(pool)
        self._claims = {claim.name: claim for claim in plan.devices.claims}
        self._generations: dict[str, int] = defaultdict(int)
        self.touched: set[str] = set()
        """Names of claims that somebody else than Kerf and Kubernetes has deleted or taken devices from."""

    def publish(self, node: str, without: Callable[[PoolPlan], int] = lambda pool: 0) -> bool:
        """Publish all pools of a node under a new generation, then take the slices before away."""
        for pool in self._pools[node]:
            self._generations[pool.name] += 1
            generation = self._generations[pool.name]
            for made in of_devices.slices(pool, generation, without=without(pool)):
                self._cluster.plane.request("POST", SLICES, made)
            for found in self._slices(node):
                if found["spec"]["pool"]["name"] == pool.name and found["spec"]["pool"]["generation"] != generation:
                    self.delete(f"{SLICES}/{found['metadata']['name']}")
        return True

    def manifest(self, planned: PodPlan) -> Object:
        """A pod as it is created, with its claims."""
        made = dict(manifests.pod_manifest(planned, grouped=self._cluster.has_groups))
        of_devices.name_claims(made, [self._claims[name] for name in planned.claims])
        return made

    def _create(self, planned: PodPlan) -> None:
        for name in planned.claims:
            self._create_claim(name)
        super()._create(planned)

    def _create_claim(self, name: str) -> bool:
        """Whether it is there now; one that is going has to be gone first."""
        path, made = of_devices.claim(self._claims[name])
        try:
            self._cluster.plane.request("POST", path, made)
        except ApiError as error:
            if error.status != 409:
                raise
            return False
        return True

    def fault(self, fault: Fault) -> Step:
        """The step by which a fault takes effect."""
        if fault.kind is Kind.NODE_DELETED and fault.target in self._pools:
            return lambda: self._delete_device_node(fault)
        of_claims = {
            Kind.CLAIM_DELETED: self._delete_claim,
            Kind.CLAIM_STRIPPED: self._strip,
            Kind.CLAIM_EDITED: self._annotate,
            Kind.NODE_CORDONED: self._cordon,
            Kind.NODE_CPU_SHORT: self._starve,
            Kind.SLICES_REPUBLISHED: self._republish,
            Kind.DEVICES_FEWER: self._publish_fewer,
            Kind.DRIVER_GONE: self._take_driver_away,
            Kind.POD_FINISHED: self._finish,
        }
        return (lambda: of_claims[fault.kind](fault)) if fault.kind in of_claims else super().fault(fault)

    # Claims

    def _named(self, fault: Fault) -> list[str]:
        """Names of the claims that the pod of a fault has by now."""
        pod = self._found(fault.target)
        if pod is None:
            return []
        made = {
            item["name"]: item.get("resourceClaimName") for item in pod["status"].get("resourceClaimStatuses") or ()
        }
        named = pod["spec"].get("resourceClaims") or ()
        return [name for item in named if (name := item.get("resourceClaimName") or made.get(item["name"]))]

    def _claim(self, name: str) -> Manifest | None:
        try:
            found: Manifest = self._cluster.plane.request("GET", f"{CLAIMS}/{name}")
        except ApiError as error:
            if error.status != 404:
                raise
            return None
        return found

    def _too_late(self, fault: Fault) -> bool:
        return self._now_s() > fault.at_s + _WITHIN_S

    def _delete_claim(self, fault: Fault) -> bool:
        names = self._named(fault)
        if not names:
            return self._too_late(fault)
        name = self._rng.choice(names)
        self.touched.add(name)
        if self._as_author("DELETE", f"{CLAIMS}/{name}", {}):
            self.counts[fault.kind] += 1
        if name in self._claims:
            again = self._now_s()
            self.schedule.at(again, lambda: self._create_claim(name) or self._now_s() > again + _WITHIN_S)
        return True

    def _strip(self, fault: Fault) -> bool:
        """Once it has devices of Kerf's and its pod a node. Others then come that would like to have these."""
        bound = [pod for pod in self._seen() if pod["spec"].get("nodeName") and not holdings.finished(pod)]
        named = [found for pod in bound for found in self._planned_claims(pod)]
        claims = [(planned, claim) for planned, name in named if (claim := self._claim(name)) and _has_ours(claim)]
        if not claims:
            return self._too_late(fault)
        planned, claim = self._rng.choice(claims)
        name = claim["metadata"]["name"]
        self.touched.add(name)
        self._as_author("PATCH", f"{CLAIMS}/{name}", {"metadata": {"finalizers": None}})
        if self._as_author("DELETE", f"{CLAIMS}/{name}", {}):
            self.counts[fault.kind] += 1
        for number in range(_NUM_THIRSTY):
            thirsty = f"thirsty-{len(self._claims)}-{number}"
            self._claims[thirsty] = replace(planned, name=thirsty, template=False)
            self.pods[thirsty] = PodPlan(thirsty, fault.at_s, 0, 0, gated=True, claims=(thirsty,))
            self.schedule.at(self._now_s(), self.creation(self.pods[thirsty]))
        return True

    def _planned_claims(self, pod: Manifest) -> list[tuple[ClaimPlan, str]]:
        """The plans of a pod's claims, and what these are called."""
        made = {
            item["name"]: item.get("resourceClaimName") for item in pod["status"].get("resourceClaimStatuses") or ()
        }
        named = pod["spec"].get("resourceClaims") or ()
        names = {item["name"]: item.get("resourceClaimName") or made.get(item["name"]) for item in named}
        return [(self._claims[planned], name) for planned, name in names.items() if name and planned in self._claims]

    def _annotate(self, fault: Fault, until_s: float = 0.0) -> bool:
        """Again and again, whichever claims there are."""
        until_s = until_s or self._now_s() + fault.for_s
        claims = self._cluster.plane.request("GET", CLAIMS)["items"]
        for claim in self._rng.sample(claims, min(_NUM_EDITED, len(claims))):
            words = {"metadata": {"annotations": {"example.com/note": str(self._rng.random())}}}
            if self._as_author("PATCH", f"{CLAIMS}/{claim['metadata']['name']}", words):
                self.counts[fault.kind] = max(self.counts[fault.kind], 1)
        if self._now_s() < until_s:
            self.schedule.at(self._now_s() + _EDIT_EACH_S, lambda: self._annotate(fault, until_s))
        return True

    def _finish(self, fault: Fault) -> bool:
        """The containers of a pod with claims have ended; its kubelet says so."""
        running = [pod for pod in self._seen() if pod["spec"].get("nodeName") and not holdings.finished(pod)]
        names = [pod["metadata"]["name"] for pod in running if pod["spec"].get("resourceClaims")]
        if not names:
            return self._too_late(fault)
        path = f"{_PODS}/{self._rng.choice(names)}/status"
        self._cluster.plane.request("PATCH", path, {"status": {"phase": "Succeeded"}}, _MERGE)
        self.counts[fault.kind] += 1
        return True

    # Nodes and their drivers

    def _slices(self, node: str) -> list[Manifest]:
        found: list[Manifest] = self._cluster.plane.request("GET", f"{SLICES}?fieldSelector=spec.nodeName={node}")[
            "items"
        ]
        return found

    def _delete_device_node(self, fault: Fault) -> bool:
        """Its slices go with it."""
        if not self.delete(f"{_NODES}/{fault.target}"):
            return True
        self.counts[fault.kind] += 1
        self._withdraw(fault.target)
        if fault.for_s:
            self.schedule.at(self._now_s() + fault.for_s, lambda: self._bring_back(fault.target))
        return True

    def _bring_back(self, node: str) -> bool:
        return self._create_node(self._nodes[node]) and self.publish(node)

    def _withdraw(self, node: str) -> None:
        self._cluster.plane.request("DELETE", f"{SLICES}?fieldSelector=spec.nodeName={node}")
        for pool in self._pools[node]:
            self._generations[pool.name] = 0

    def _cordon(self, fault: Fault) -> bool:
        return self._change(fault, "", {"spec": {"unschedulable": True}}, {"spec": {"unschedulable": None}})

    def _starve(self, fault: Fault) -> bool:
        enough = self._cluster.plane.request("GET", f"{_NODES}/{fault.target}")["status"]["capacity"]["cpu"]
        short, back = ({"status": {"allocatable": {"cpu": cpu}}} for cpu in ("1m", enough))
        return self._change(fault, "/status", short, back)

    def _change(self, fault: Fault, part: str, change: Object, back: Object) -> bool:
        """A node is other than it was, for a while or for good."""
        path = f"{_NODES}/{fault.target}{part}"
        self._cluster.plane.request("PATCH", path, change, _MERGE)
        self.counts[fault.kind] += 1
        if fault.for_s:
            self.schedule.at(self._now_s() + fault.for_s, lambda: self._change_back(path, back))
        return True

    def _change_back(self, path: str, back: Object) -> bool:
        try:
            self._cluster.plane.request("PATCH", path, back, _MERGE)
        except ApiError as error:
            if error.status != 404:
                raise
        return True

    def _republish(self, fault: Fault) -> bool:
        self.counts[fault.kind] += 1
        return self.publish(fault.target)

    def _publish_fewer(self, fault: Fault) -> bool:
        self.counts[fault.kind] += 1
        self.publish(fault.target, lambda pool: (pool.num_devices + 1) // 2)
        if fault.for_s:
            self.schedule.at(self._now_s() + fault.for_s, lambda: self.publish(fault.target))
        return True

    def _take_driver_away(self, fault: Fault) -> bool:
        self.counts[fault.kind] += 1
        self._withdraw(fault.target)
        self.schedule.at(self._now_s() + fault.for_s, lambda: self.publish(fault.target))
        return True


def _has_ours(claim: Manifest) -> bool:
    """Whether a claim has devices that Kerf allocates."""
    return any(taking.key.driver in OWNED for taking in takings_of(claim))
