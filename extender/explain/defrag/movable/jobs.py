"""Jobs: whether one outlives that its pods are evicted. A pod that was counts as failed, where nothing else is said."""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from extender.kube import objects
from extender.kube.objects import Metadata

JOBS_PATH: Final = "/apis/batch/v1/jobs"
_INDEX_FAILURES: Final = "batch.kubernetes.io/job-index-failure-count"
_DEFAULT_LIMIT: Final = 6  # the API server's
_EVICTED: Final = "DisruptionTarget"


class _Rule(objects.Object, rename="camel"):
    action: str = ""
    on_pod_conditions: list[objects.Condition] | None = None


class _Policy(objects.Object):
    rules: list[_Rule] | None = None


class _Spec(objects.Object, rename="camel"):
    backoff_limit: int | None = None
    backoff_limit_per_index: int | None = None
    pod_failure_policy: _Policy | None = None


class _Status(objects.Object):
    failed: int = 0


class Job(objects.Named):
    """A Job of `batch/v1`."""

    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)

    @property
    def ignores_evictions(self) -> bool:
        """Whether its failure policy says first of all that a pod which was evicted has not failed."""
        policy = self.spec.pod_failure_policy
        rules = (policy.rules or ()) if policy is not None else ()
        first = rules[0] if rules else _Rule()
        conditions = first.on_pod_conditions or ()
        return first.action == "Ignore" and any(
            item.type == _EVICTED and item.status in ("True", "") for item in conditions
        )


class Jobs:
    """The Jobs of the cluster."""

    def __init__(self, jobs: Iterable[Job], why_not: str = "") -> None:
        """`why_not`: why they can't be read, "" where they were."""
        self._by_uid = {job.metadata.uid: job for job in jobs}
        self._why_not = why_not

    def stays(self, pods: Iterable[Metadata]) -> Mapping[str, str]:
        """Why pods of Jobs stay, by their UID: as many as a Job has may be moved one after another, and each counts."""
        of_job: dict[str, list[Metadata]] = {}
        for pod in pods:
            owner = pod.controller
            if owner is not None and owner.kind == "Job":
                of_job.setdefault(owner.uid, []).append(pod)
        return {
            pod.uid: why for uid, found in of_job.items() for pod in found if (why := self._why(uid, pod, len(found)))
        }

    def _why(self, uid: str, pod: Metadata, num_pods: int) -> str:
        job = self._by_uid.get(uid)
        if job is None:
            return f"its Job can't be read{f': {self._why_not}' if self._why_not else ''}"
        if job.ignores_evictions:
            return ""
        per_index, limit = job.spec.backoff_limit_per_index, job.spec.backoff_limit
        if per_index is not None:
            failures = _number((pod.annotations or {}).get(_INDEX_FAILURES, "0"))
            if failures >= per_index:
                return f"its Job allows {per_index} failures of an index, and it has had them"
            if limit is None:
                return ""
        limit = _DEFAULT_LIMIT if limit is None else limit
        left = limit - job.status.failed
        if left >= num_pods:
            return ""
        return (
            f"its Job allows {max(left, 0)} more failures of its {num_pods} pods, and evictions count "
            "(spec.backoffLimit; a podFailurePolicy that ignores DisruptionTarget would say otherwise)"
        )


def _number(text: str) -> int:
    """What can't be read is more than any limit."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 9 else 2**31
