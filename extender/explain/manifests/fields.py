"""Finds unknown fields in manifests, which the API server drops or refuses.

Field names are those of Kubernetes 1.37, `staging/src/k8s.io/api`. Of other kinds only the fields that Kerf reads are
known, so only near misses of these are reported.
"""

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from itertools import islice
from typing import Any, Final

from extender.core.texts import printable
from extender.explain.manifests.batches import Batch

_MOST: Final = 8
_MAX_KEY: Final = 80
_ALIKE: Final = 0.6
_MISSPELT: Final = 0.87
"""Similarity from which a field of an unknown API counts as a misspelling."""
_MAX_DEPTH: Final = 12


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_OBJECT: Final = _names("apiVersion kind metadata spec status")
_METADATA: Final = _names(
    "annotations creationTimestamp deletionGracePeriodSeconds deletionTimestamp finalizers generateName generation "
    "labels managedFields name namespace ownerReferences resourceVersion selfLink uid"
)
_TEMPLATE: Final = _names("metadata spec")
_POD: Final = _names(
    "activeDeadlineSeconds affinity automountServiceAccountToken containers dnsConfig dnsPolicy enableServiceLinks "
    "ephemeralContainers evictionResponders hostAliases hostIPC hostNetwork hostPID hostUsers hostname "
    "hostnameOverride imagePullSecrets initContainers nodeName nodeSelector os overhead preemptionPolicy priority "
    "priorityClassName readinessGates resourceClaims resources restartPolicy runtimeClassName schedulerName "
    "schedulingGates schedulingGroup securityContext serviceAccount serviceAccountName setHostnameAsFQDN "
    "shareProcessNamespace subdomain terminationGracePeriodSeconds tolerations topologySpreadConstraints volumes "
    "workloadRef"
)
_CONTAINER: Final = _names(
    "args command env envFrom image imagePullPolicy lifecycle livenessProbe name ports readinessProbe resizePolicy "
    "resources restartPolicy restartPolicyRules securityContext startupProbe stdin stdinOnce terminationMessagePath "
    "terminationMessagePolicy tty volumeDevices volumeMounts workingDir"
)
_JOB: Final = _names(
    "activeDeadlineSeconds backoffLimit backoffLimitPerIndex completionMode completions managedBy manualSelector "
    "maxFailedIndexes parallelism podFailurePolicy podReplacementPolicy scheduling selector successPolicy suspend "
    "template ttlSecondsAfterFinished"
)
_IN_POD: Final = {
    "tolerations": _names("effect key operator tolerationSeconds value"),
    "topologySpreadConstraints": _names(
        "labelSelector matchLabelKeys maxSkew minDomains nodeAffinityPolicy nodeTaintsPolicy topologyKey "
        "whenUnsatisfiable"
    ),
    "schedulingGates": _names("name"),
    "resourceClaims": _names("name resourceClaimName resourceClaimTemplateName"),
    "affinity": _names("nodeAffinity podAffinity podAntiAffinity"),
    "resources": _names("claims limits requests"),
}
_SPECS: Final = {
    "Job": _JOB,
    "CronJob": _names(
        "concurrencyPolicy failedJobsHistoryLimit jobTemplate schedule startingDeadlineSeconds "
        "successfulJobsHistoryLimit suspend timeZone"
    ),
    "Deployment": _names(
        "minReadySeconds paused progressDeadlineSeconds replicas revisionHistoryLimit selector strategy template"
    ),
    "ReplicaSet": _names("minReadySeconds replicas selector template"),
    "ReplicationController": _names("minReadySeconds replicas selector template"),
    "StatefulSet": _names(
        "minReadySeconds ordinals persistentVolumeClaimRetentionPolicy podManagementPolicy replicas "
        "revisionHistoryLimit selector serviceName template updateStrategy volumeClaimTemplates"
    ),
    "Pod": _POD,
}
_READ_OF_OTHERS: Final = _names(
    "replicas parallelism completions replicatedJobs leaderWorkerTemplate leaderTemplate workerTemplate "
    "pytorchReplicaSpecs tfReplicaSpecs mpiReplicaSpecs jaxReplicaSpecs paddleReplicaSpecs xgbReplicaSpecs "
    "headGroupSpec workerGroupSpecs rayClusterSpec rayClusterConfig minAvailable minMember template"
)


def unknown_fields(manifest: dict[str, Any], batches: Sequence[Batch]) -> list[str]:
    """A sentence for each unknown field of an object and its pod templates, at most `_MOST`."""
    return list(islice(dict.fromkeys(_found(manifest, batches)), _MOST))


def _found(manifest: dict[str, Any], batches: Sequence[Batch]) -> Iterator[str]:
    kind, group = str(manifest["kind"]), str(manifest.get("apiVersion", "")).partition("/")[0]
    spec = manifest.get("spec")
    built_in = kind in _SPECS and group in ("", "v1", "apps", "batch")
    yield from _unknown_in(manifest.get("metadata"), _METADATA, "metadata")
    if built_in:
        yield from _unknown_in(manifest, _OBJECT, "")
        yield from _unknown_in(spec, _SPECS[kind], "spec")
        if kind == "CronJob" and isinstance(spec, dict) and isinstance(made := spec.get("jobTemplate"), dict):
            yield from _unknown_in(made, _TEMPLATE, "spec.jobTemplate")
            yield from _unknown_in(made.get("spec"), _JOB, "spec.jobTemplate.spec")
    else:
        yield from _misspelt(spec, "spec", {batch.path for batch in batches})
    for batch in batches:
        yield from _of_template(batch.template, batch.path)


def _of_template(template: dict[str, Any], path: str) -> Iterator[str]:
    """Sentences for the unknown fields of a pod or pod template."""
    before = f"{path}." if path else ""
    spec = template.get("spec")
    if path:
        yield from _unknown_in(template, _TEMPLATE, path)
        yield from _unknown_in(template.get("metadata"), _METADATA, f"{before}metadata")
        yield from _unknown_in(spec, _POD, f"{before}spec")
    if not isinstance(spec, dict):
        return
    for name, known in _IN_POD.items():
        yield from _unknown_in_each(spec.get(name), known, f"{before}spec.{name}")
    for name in ("containers", "initContainers"):
        containers = spec.get(name)
        for number, container in enumerate(containers if isinstance(containers, list) else ()):
            at = f"{before}spec.{name}[{number}]"
            yield from _unknown_in(container, _CONTAINER, at)
            if isinstance(container, dict):
                yield from _unknown_in(container.get("resources"), _IN_POD["resources"], f"{at}.resources")


def _unknown_in_each(value: Any, known: frozenset[str], path: str) -> Iterator[str]:
    if isinstance(value, list):
        for number, item in enumerate(value):
            yield from _unknown_in(item, known, f"{path}[{number}]")
    else:
        yield from _unknown_in(value, known, path)


def _unknown_in(value: Any, known: frozenset[str], path: str) -> Iterator[str]:
    """Sentences for the fields of an object at a path that are not among the known ones."""
    for key in value if isinstance(value, dict) else ():
        if key not in known:
            yield _sentence(key, path, _closest(str(key), known, _ALIKE))


def _misspelt(value: Any, path: str, templates: set[str], depth: int = 0) -> Iterator[str]:
    """Sentences for near misses of fields that Kerf reads, in an unknown API; pod templates are skipped."""
    if depth > _MAX_DEPTH or path in templates:
        return
    if isinstance(value, list):
        for number, item in enumerate(value):
            yield from _misspelt(item, f"{path}[{number}]", templates, depth + 1)
    for key, item in value.items() if isinstance(value, dict) else ():
        meant = "" if key in _READ_OF_OTHERS else _closest(str(key), _READ_OF_OTHERS, _MISSPELT)
        if meant and meant not in value:
            yield _sentence(key, path, meant)
        yield from _misspelt(item, f"{path}.{str(key)[:_MAX_KEY]}", templates, depth + 1)


def _closest(key: str, known: frozenset[str], least: float) -> str:
    """The closest known name, "" if none is close."""
    names = {name.lower(): name for name in sorted(known)}
    return next((names[word] for word in get_close_matches(key[:_MAX_KEY].lower(), names, 1, least)), "")


def _sentence(key: object, path: str, meant: str) -> str:
    at = f"{path}." if path else ""
    return f"{at}{printable(str(key))[:_MAX_KEY]}: no such field{f'; do you mean {meant}?' if meant else ''}"
