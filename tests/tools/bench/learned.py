"""What the learned rank costs: filter with policy `kerf` beside `bestfit`, on the same cluster and the same bodies.

Two apps in this process, each on a cluster in memory of the same nodes: of 8 GPUs, each with pods of its own, so that
hardly two nodes are in the same state. Requests go to both in turn. Of each `filter_ms`:
- `cached`: one class of request, again and again; each decision reserves, so that one node has changed since;
- `new, whole` and `new, share`: every request asks for CPU that none has asked for before, a class that nothing is
  remembered of (best fit does not look at CPU: its values are remembered).

Times are processor time of the whole verb on a body that names all nodes, decoding included: what else the machine
does is not counted.
"""

import itertools
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from extender.api.service import Service
from extender.core.annotations import SHARE
from extender.core.valuenet.potentials import fragments_only
from extender.kube.memory import Manifest
from extender.ranking import files
from tests.nvidia import COUNT_LABEL, GPU_RESOURCE, MEMORY_LABEL, PRODUCT_LABEL
from tests.tools.bench import reports, requests
from tests.tools.bench.ledgers import no_collection, quantiles, running
from tests.tools.bench.servers import GPUS_PER_NODE, BenchError

_NUM_WARMING = 10
_SEED = 20261121
_KINDS = ("cached", "new, whole", "new, share")
_BUSY_FRAC = 0.6
"""Part of the nodes' GPUs that is in use."""


@dataclass(frozen=True)
class Plan:
    """What to measure."""

    nodes: int = 5000
    requests: int = 300
    model: Path | None = None
    """None: the one that comes with this version, or FGD's own potential."""

    num_steps: int = 1 + len(_KINDS)


def measure(plan: Plan, tell: Callable[[str], None]) -> reports.Report:
    """Run the plan. Raises BenchError when Kerf answers anything but a placement, or serves no model."""
    tell(f"{plan.nodes} nodes")
    names = [f"node-{number:05}" for number in range(plan.nodes)]
    objects = list(cluster(names))
    with tempfile.TemporaryDirectory(prefix="kerf-bench-") as folder:
        flags = {"telemetry.source": "off", "model.prices": "plain", "model.path": str(_model(plan, Path(folder)))}
        with (
            running(objects, {**flags, "decisions.policy": "kerf"}) as kerf,
            running(objects, {**flags, "model.mode": "off", "decisions.policy": "tightest"}) as bestfit,
            no_collection(),
        ):
            if kerf.rank.why_not:
                raise BenchError(f"the model is not served: {kerf.rank.why_not}")
            found = {}
            for kind in _KINDS:
                tell(kind)
                found[kind] = _times(plan, names, kind, {"kerf": kerf, "bestfit": bestfit})
            sha256 = kerf.rank.model.manifest.sha256 if kerf.rank.model else ""
    return {
        **{"nodes": plan.nodes, "requests": plan.requests, "model": sha256},
        "filter_ms": {
            kind: {
                **{policy: quantiles(seconds, 1e3) for policy, seconds in times.items()},
                "ratio": round(statistics.median(times["kerf"]) / statistics.median(times["bestfit"]), 3),
            }
            for kind, times in found.items()
        },
        "machine": reports.machine(),
    }


def _model(plan: Plan, folder: Path) -> Path:
    if plan.model is not None:
        return plan.model
    if (files.RELEASED / files.MANIFEST).exists():
        return files.RELEASED
    files.write(folder, fragments_only(), 1.0, {"mode": "none"}, ())
    return folder


def _times(plan: Plan, names: Sequence[str], kind: str, services: dict[str, Service]) -> dict[str, list[float]]:
    """Seconds of each call by policy."""
    seconds: dict[str, list[float]] = {policy: [] for policy in services}
    for number in range(_NUM_WARMING + plan.requests):
        body = _body(kind, number, names)
        for policy in sorted(services, reverse=number % 2 == 0):
            began = time.thread_time()
            answer = services[policy].verbs.filter(body)
            taken = time.thread_time() - began
            if not msgspec.json.decode(answer)["NodeNames"]:
                raise BenchError(f"Kerf places no pod: {answer[:300]!r}")
            if number >= _NUM_WARMING:
                seconds[policy].append(taken)
    return seconds


def _body(kind: str, number: int, names: Sequence[str]) -> bytes:
    pod = requests.pending_pod(f"{kind.replace(', ', '-')}-{number}", 1)
    resources = pod["spec"]["containers"][0]["resources"]
    if kind != "cached":
        resources["requests"]["cpu"] = f"{4000 + number}m"
    if kind == "new, share":
        pod["metadata"]["annotations"][SHARE] = "300"
        for amounts in resources.values():
            del amounts[GPU_RESOURCE]
    return json.dumps({"Pod": pod, "Nodes": None, "NodeNames": names}, separators=(",", ":")).encode()


def cluster(names: Sequence[str]) -> Iterator[Manifest]:
    """Nodes, and pods on them: whole GPUs, shares of GPUs, and CPU and memory of no two alike."""
    rng = random.Random(_SEED)
    labels = {PRODUCT_LABEL: "NVIDIA-A100-SXM4-80GB", COUNT_LABEL: str(GPUS_PER_NODE), MEMORY_LABEL: "81920"}
    numbers = itertools.count()
    for name in names:
        allocatable = {"cpu": "128", "memory": "1Ti", "pods": "110", GPU_RESOURCE: str(GPUS_PER_NODE)}
        yield {
            **{"apiVersion": "v1", "kind": "Node"},
            "metadata": {"name": name, "uid": name, "labels": labels},
            "status": {"allocatable": allocatable},
        }
        for gpu in range(GPUS_PER_NODE):
            if rng.random() < _BUSY_FRAC:
                milli = rng.choice((1000, 1000, 1000, 470, 650, 810))
                yield _held(next(numbers), name, gpu, milli, rng)


def _held(number: int, node: str, gpu: int, milli: int, rng: random.Random) -> Manifest:
    """A pod that has a GPU or a share of it."""
    asked = {"cpu": f"{rng.randrange(2000, 12000)}m", "memory": f"{rng.randrange(4096, 98304)}Mi"}
    annotations = {"kerf.dev/assigned-gpus": str(gpu)}
    if milli == 1000:
        asked[GPU_RESOURCE] = "1"
    else:
        annotations |= {SHARE: str(milli), "kerf.dev/assigned-share": str(milli), "kerf.dev/assigned-memory-mib": "0"}
    name = f"held-{number}"
    return {
        **{"apiVersion": "v1", "kind": "Pod"},
        "metadata": {"name": name, "namespace": "default", "uid": name, "annotations": annotations},
        "spec": {"nodeName": node, "containers": [{"name": "c", "resources": {"requests": asked}}]},
        "status": {"phase": "Running"},
    }
