"""Pods as somebody makes them who wants to hurt others, by kind: each kind a function of a name and a number."""

import random
import string
from collections.abc import Callable, Sequence
from typing import Any, Final

Object = dict[str, Any]
"""A manifest; `deep` maps marks in it to JSON that is too deep for Python's encoder."""

_READ: Final = (
    *("gpu-count", "gpu-share", "gpu-memory-each", "gpu-memory-total", "gpu-model", "gpu-model-exclude", "gpu-uuid"),
    *(
        "gpu-uuid-exclude",
        "policy",
        "gang",
        "gang-size",
        "gang-topology",
        "gpu-containers",
        "queued-by",
        "planned-node",
    ),
    *("planned-by", "skipped", "skipped-count", "woken", "explanation", "nomination-lost"),
)
"""Annotations of Kerf's own that are read or written, but for those of an assignment."""
_ASSIGNED: Final = {
    "kerf.dev/assigned-gpus": "0,1,2,3,4,5,6,7",
    "kerf.dev/assigned-share": "1",
    "kerf.dev/assigned-memory-mib": "1",
    "kerf.dev/assigned-uuids": "GPU-1,GPU-2",
    "kerf.dev/assigned-by": "kerf/9 forged",
}
_GATE: Final[dict[str, Any]] = {"schedulingGates": [{"name": "kerf.dev/queue"}]}
_MAX_ANNOTATIONS: Final = 256 * 1024
_DEEP: Final = 1_100


def pod(
    name: str,
    annotations: dict[str, str] | None = None,
    *,
    gpus: str = "1",
    labels: dict[str, str] | None = None,
    limits: dict[str, str] | None = None,
    metadata: Object | None = None,
    **spec: Any,
) -> list[Object]:
    """A pod of one container that asks for GPUs by resource."""
    asked = {"nvidia.com/gpu": gpus} if gpus else {}
    container = {"name": "main", "image": "train", "resources": {"limits": asked | (limits or {})}}
    meta = {"name": name, "annotations": annotations or {}, "labels": labels or {}} | (metadata or {})
    return [{"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": [container]} | spec}]


def plain(name: str) -> list[Object]:
    """A harmless one, for comparison."""
    return pod(name)


def _kerf(**annotations: str) -> dict[str, str]:
    return {f"kerf.dev/{key.replace('_', '-')}": value for key, value in annotations.items()}


def _heavy(number: int) -> str:
    """Another pattern for each number, as large as they may be."""
    rng = random.Random(number)
    return "|".join("".join(rng.choices(string.ascii_lowercase, k=20)) + ".{9}" for _ in range(10))


def _nested(depth: int) -> str:
    return '{"f:a":' * depth + "{}" + "}" * depth


def _deep_claim(name: str) -> list[Object]:
    parameters = {"driver": "gpu.nvidia.com", "parameters": "DEEP"}
    spec = {
        "devices": {
            "requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}],
            "config": [{"opaque": parameters}],
        }
    }
    claim = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name}, "spec": spec}
    claims = [{"name": "gpu", "resourceClaimName": name}]
    return [claim | {"deep": {"DEEP": _nested(_DEEP)}}, *pod(name, gpus="", resourceClaims=claims)]


def _deep_fields(name: str) -> list[Object]:
    entry = {
        "manager": "author",
        "operation": "Update",
        "apiVersion": "v1",
        "fieldsType": "FieldsV1",
        "fieldsV1": "DEEP",
    }
    [made] = pod(name, metadata={"managedFields": [entry]})
    return [made | {"deep": {"DEEP": _nested(_DEEP)}}]


def _garbage(number: int) -> str:
    rng = random.Random(number)
    return "".join(rng.choices(string.printable + "éü\u2028\u202e", k=200))


def _uuids(number: int) -> str:
    return ",".join(f"GPU-{number:05}-{index:03}" for index in range(100))


_Kind = Callable[[str, int, Sequence[str]], list[Object]]

KINDS: Final[dict[str, _Kind]] = {
    "annotations": lambda name, number, nodes: pod(name, {"author/text": "x" * (_MAX_ANNOTATIONS - 4096)}),
    "assigned": lambda name, number, nodes: pod(name, _ASSIGNED),
    "assigned-bound": lambda name, number, nodes: pod(
        name, _ASSIGNED, gpus="", nodeName=nodes[number % len(nodes)], schedulerName="nobody"
    ),
    "containers": lambda name, number, nodes: pod(
        name, containers=[{"name": f"c{index}", "image": "x"} for index in range(400)]
    ),
    "control-characters": lambda name, number, nodes: pod(
        name, _kerf(gpu_model=f"*{number}\n2026-01-01 ERROR kerf: forged\r\x1b[2J", policy="a\nb", gang="a\nb")
    ),
    "deep-claims": lambda name, number, nodes: _deep_claim(name),
    "deep-fields": lambda name, number, nodes: _deep_fields(name),
    "foreign-scheduler": lambda name, number, nodes: pod(name, schedulerName="nobody", **_GATE),
    "function": lambda name, number, nodes: pod(
        name, {"com.openfaas.function.spec": '{"limits": {"cpu": ' + "9" * 200_000 + "}}"}, **_GATE
    ),
    "gangs": lambda name, number, nodes: pod(name, _kerf(gang=name, gang_size="1"), **_GATE),
    "gangs-incomplete": lambda name, number, nodes: pod(name, _kerf(gang=name, gang_size="3"), **_GATE),
    "garbage": lambda name, number, nodes: pod(
        name, {f"kerf.dev/{key}": _garbage(number + index) for index, key in enumerate(_READ)}
    ),
    "garbage-gated": lambda name, number, nodes: pod(
        name, {f"kerf.dev/{key}": _garbage(number + index) for index, key in enumerate(_READ)}, **_GATE
    ),
    "garbage-of-one": lambda name, number, nodes: pod(
        name, {f"kerf.dev/{_READ[number % len(_READ)]}": _garbage(number)}
    ),
    "gpushare": lambda name, number, nodes: pod(
        name,
        {"ALIYUN_COM_GPU_MEM_IDX": "0", "ALIYUN_COM_GPU_MEM_POD": "1", "ALIYUN_COM_GPU_MEM_ASSIGNED": "true"},
        gpus="",
        nodeName=nodes[number % len(nodes)],
    ),
    "hami": lambda name, number, nodes: pod(
        name,
        {"hami.io/vgpu-devices-allocated": "GPU-1,NVIDIA,1,1:;" * 3000, "hami.io/vgpu-node": nodes[0]},
        nodeName=nodes[number % len(nodes)],
    ),
    "kinds-of-compute": lambda name, number, nodes: pod(
        name, gpus="", limits={"cpu": f"{1 + number}m", "memory": f"{1 + number}Mi"}
    ),
    "kinds-of-nodes": lambda name, number, nodes: pod(name, nodeSelector={"author/number": str(number)}, **_GATE),
    "kinds-of-requests": lambda name, number, nodes: pod(
        name, _kerf(gpu_memory_each=str(1000 + number), gpu_share=str(1 + number % 999)), gpus=""
    ),
    "mig-profiles": lambda name, number, nodes: pod(
        name, gpus="", limits={f"nvidia.com/mig-{index}g.{number}gb": "1" for index in range(300)}
    ),
    "opted-out": lambda name, number, nodes: pod(name, labels={"kerf.dev/queue": "disabled"}, **_GATE),
    "patterns": lambda name, number, nodes: pod(name, _kerf(gpu_model=_heavy(number))),
    "patterns-bound": lambda name, number, nodes: pod(
        name, _kerf(gpu_model=_heavy(-number)), nodeName=nodes[number % len(nodes)]
    ),
    "patterns-excluded": lambda name, number, nodes: pod(name, _kerf(gpu_model_exclude=_heavy(10_000 + number))),
    "patterns-gated": lambda name, number, nodes: pod(name, _kerf(gpu_model=_heavy(20_000 + number)), **_GATE),
    "planned": lambda name, number, nodes: pod(name, _kerf(planned_node=nodes[number % len(nodes)], planned_by="x")),
    "priorities": lambda name, number, nodes: pod(name, labels={"genius/priority": "999999999"}, gpus="512"),
    "quantities": lambda name, number, nodes: pod(
        name, gpus="2147483647", limits={"cpu": "9E18", "memory": "9223372036854775807", "x.io/y": "1e18"}
    ),
    "uuids": lambda name, number, nodes: pod(name, _kerf(gpu_uuid=_uuids(number))),
}
"""By name."""
