"""What hostile authors write: objects, and edits of pods that run.

What need not be readable, and never gets a node, lies in a namespace of its own, at which nobody looks but Kerf.
"""

import random
from collections.abc import Callable, Mapping
from typing import Any, Final

from tests.controlplane.api import Object
from tests.controlplane.objects import pod
from tests.tools.chaos.faults import Kind

NAMESPACE: Final = "hostile"

_MARKER: Final = "kerf.dev/gpu"
_ASSIGNED: Final = "kerf.dev/assigned-gpus"
_ANNOTATIONS_BYTES: Final = 256 * 1024
"""What the API server takes in all, keys included."""
_NUM_PODS: Final = 40

Edit = dict[str, str | None]
"""Annotations to write, None for those to take off."""


def edit(kind: Kind, found: Mapping[str, Any], num_gpus: int, rng: random.Random) -> Edit:
    """What the author of a pod that runs on a node of so many GPUs writes."""
    annotations = found["metadata"].get("annotations") or {}
    own = [key for key in annotations if key.startswith("kerf.dev/")]
    match kind:
        case Kind.EDIT_DROPPED:
            return dict.fromkeys(own)
        case Kind.EDIT_MOVED:
            held = [int(gpu) for gpu in annotations.get(_ASSIGNED, "0").split(",")]
            return {_ASSIGNED: ",".join(str((gpu + 1) % num_gpus) for gpu in held), "kerf.dev/assigned-uuids": None}
        case Kind.EDIT_SHRUNK | Kind.EDIT_SHARE_FORGED:
            forged = ("kerf.dev/gpu-share", "kerf.dev/assigned-share", "kerf.dev/assigned-memory-mib")
            return {**dict.fromkeys(forged, "1"), "kerf.dev/gpu-memory-each": "1Mi"}
        case Kind.EDIT_PLUGIN_FORGED:
            plugin = rng.choice(
                (
                    {"ALIYUN_COM_GPU_MEM_IDX": str(num_gpus - 1), "ALIYUN_COM_GPU_MEM_POD": "1"},
                    {"hami.io/vgpu-devices-allocated": "GPU-forged,NVIDIA,1,1:;"},
                )
            )
            return {**dict.fromkeys(key for key in own if key.startswith("kerf.dev/assigned-")), **plugin}
    raise ValueError(f"{kind} is no edit of a pod that runs")


def marks(rng: random.Random) -> Edit:
    """The marks that fence Bindings off, gone or made up."""
    forged = rng.choice((None, f"forged.{rng.randrange(1 << 32):08x}"))
    return dict.fromkeys(("kerf.dev/epoch", "kerf.dev/epoch-kerf", "kerf.dev/sealed"), forged)


def cpu_holder(name: str, node: str, num_gpus: int) -> Object:
    """A pod without GPUs that says it holds all of its node's."""
    held = {_ASSIGNED: ",".join(map(str, range(num_gpus))), "kerf.dev/assigned-by": "kerf/0.1.0 bestfit"}
    return pod(name, annotations=held, cpu="10m", scheduler_name="nobody", nodeName=node)


def objects(kind: Kind, rng: random.Random) -> list[tuple[str, bytes | Object]]:
    """Paths and bodies of what an author creates."""
    pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
    if kind is Kind.DEEP_CLAIM:
        claims = f"/apis/resource.k8s.io/v1/namespaces/{NAMESPACE}/resourceclaims"
        return [(claims, _deep_claim(rng.randint(1_200, 4_500)))]
    if kind is Kind.DEEP_POD:
        return [(pods, _deep_pod(rng.randint(1_200, 4_500)))]
    return [(pods, made) for made in _PODS[kind](rng)]


def _deep_claim(levels: int) -> bytes:
    parameters = '{"a":' + "[" * levels + "]" * levels + "}"
    opaque = f'{{"opaque":{{"driver":"gpu.nvidia.com","parameters":{parameters}}}}}'
    requests = '[{"name":"gpu","exactly":{"deviceClassName":"gpu.nvidia.com"}}]'
    return (
        '{"apiVersion":"resource.k8s.io/v1","kind":"ResourceClaim","metadata":{"name":"deep"},'
        f'"spec":{{"devices":{{"requests":{requests},"config":[{opaque}]}}}}}}'
    ).encode()


def _deep_pod(levels: int) -> bytes:
    fields = '{"f:a":' * levels + "{}" + "}" * levels
    entry = f'{{"manager":"me","operation":"Update","apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{fields}}}'
    container = '{"name":"main","image":"registry.k8s.io/pause:3.10","resources":{"limits":{"nvidia.com/gpu":"1"}}}'
    return (
        f'{{"apiVersion":"v1","kind":"Pod","metadata":{{"name":"deep","managedFields":[{entry}]}},'
        f'"spec":{{"schedulerName":"nobody","containers":[{container}]}}}}'
    ).encode()


def _unmarkable(rng: random.Random) -> list[Object]:
    key = "example.com/notes"
    written = {key: "x" * (_ANNOTATIONS_BYTES - len(key) - rng.randint(0, 16))}
    return [pod("unmarkable", gpus=1, namespace=NAMESPACE, annotations=written, scheduler_name="nobody")]


def _costly(rng: random.Random) -> list[Object]:
    """No node has such a model, and to find that out takes an automaton of its own for each."""

    def pattern(number: int) -> str:
        return f"(x|y{number}|z){{1,{rng.randint(100, 300)}}}(a|b.*){{1,{rng.randint(50, 150)}}}no-such-model$"

    return [_asking(f"costly-{number}", {"kerf.dev/gpu-model": pattern(number)}) for number in range(_NUM_PODS)]


def _planned(rng: random.Random) -> list[Object]:
    """They fit nowhere, and were never behind a gate."""
    forged = {"kerf.dev/planned-node": "node-00", "kerf.dev/planned-by": "greedy", "kerf.dev/gpu-model": "no-such"}
    return [_asking(f"planned-{number}", forged) for number in range(_NUM_PODS)]


def _asking(name: str, annotations: Mapping[str, str]) -> Object:
    made = pod(name, namespace=NAMESPACE, annotations={"kerf.dev/gpu-count": "1", **annotations}, cpu="2")
    made["spec"]["containers"][0]["resources"]["limits"] = {_MARKER: "1"}
    return made


_PODS: Final[Mapping[Kind, Callable[[random.Random], list[Object]]]] = {
    Kind.UNMARKABLE: _unmarkable,
    Kind.COSTLY_PATTERNS: _costly,
    Kind.PLANS_FORGED: _planned,
}
