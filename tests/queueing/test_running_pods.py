"""GPUs in use by running pods, and their expected run times."""

import asyncio
from typing import Any

import msgspec
import pytest

from extender.core.durations import Durations
from extender.kube.cache import Cache
from extender.kube.objects import Pod
from extender.queueing.pods.objects import decode_pod
from extender.queueing.running_pods import RunningPods, learn_finished, owners_of

STARTED, STARTED_S = "2026-01-01T00:00:10Z", 1767225610.0
TRAIN = ("ns/Pod/train/2 GPUs", "ns/2 GPUs", "ns")
Manifest = dict[str, Any]


def manifest(
    name: str, gpus: int = 2, *, start: str = STARTED, resource: str = "nvidia.com/gpu", **annotations: str
) -> Manifest:
    found = {f"kerf.dev/{key.replace('_', '-')}": value for key, value in annotations.items()}
    return {
        "metadata": {"name": name, "namespace": "ns", "uid": f"uid-{name}", "annotations": found},
        "spec": {"nodeName": "n", "containers": [{"resources": {"limits": {resource: gpus}}}]},
        "status": {"phase": "Running", "startTime": start},
    }


class Runs:
    """Pods that run, and the clock."""

    def __init__(self) -> None:
        self.now = STARTED_S
        self.durations = Durations()
        self.pods = Cache[Pod, Pod](lambda pod: pod)
        self.running = RunningPods(self.pods, self.durations, lambda: self.now)
        self.pods.subscribe(self.running.changed)

    def start(self, name: str, **more: Any) -> None:
        self.pods.upsert(decode_pod(manifest(name, **more)))

    def end(self, name: str) -> None:
        self.pods.remove(decode_pod(manifest(name)))


def test_pods_that_run_count_their_gpus_and_teach_how_long_they_ran() -> None:
    runs = Runs()
    for _ in range(2):
        runs.start("train-20260101-7")
    runs.start("b", gpus=1)
    runs.start("mig", gpus=3, resource="nvidia.com/mig-1g.10gb")
    assert runs.running.gpus == {"ns": 6.0}
    runs.now += 40.0
    runs.end("train-20260101-7")
    assert (runs.running.gpus, runs.durations.num_owners) == ({"ns": 4.0}, 3)
    assert runs.durations.expected_s(TRAIN) == 40.0
    deleted = decode_pod(manifest("b", 1))
    deleted.metadata.deletion_timestamp = "2026-01-01T00:00:20Z"
    runs.pods.upsert(deleted)
    runs.pods.remove(deleted)
    runs.start("never-started", gpus=1, start="")
    runs.end("never-started")
    runs.pods.retain_only(set(), 0.0)  # a new list without the others: when they ended is unknown
    assert (runs.running.gpus, runs.durations.num_owners) == ({"ns": 0.0}, 3), "nothing is learned of these"


def test_a_pod_is_expected_to_run_as_long_as_others_like_it_did() -> None:
    runs = Runs()
    runs.durations.finished(TRAIN, 100.0)
    runs.start("train-1")
    assert ("uid-train-1" in runs.running, "uid-unknown" in runs.running) == (True, False)
    runs.now += 99.5
    assert runs.running.left_s("uid-train-1") == pytest.approx(0.5)
    runs.now = STARTED_S + 100.0
    assert runs.running.left_s("uid-train-1") is None, "it has run for as long as those"
    assert runs.running.left_s("uid-unknown") is None


def test_of_a_pod_like_none_before_it_or_that_has_not_started_nothing_is_expected() -> None:
    runs = Runs()
    runs.durations.finished(("other/Pod/train/2 GPUs", "other/2 GPUs", "other"), 100.0)
    runs.start("train-1")
    assert runs.running.left_s("uid-train-1") is None
    for owners, seconds in ((("ns/Pod/train/1 GPUs", "ns/1 GPUs", "ns"), 1e6), (TRAIN[:1], 100.0)):
        runs.durations.finished(owners, seconds)
    assert runs.running.left_s("uid-train-1") == pytest.approx(runs.durations.expected_s(TRAIN))
    runs.start("train-2", start="")
    assert runs.running.left_s("uid-train-2") is None


@pytest.mark.parametrize(("seen_after_s", "ran_s"), [(0.0, 10.0), (0.75, 9.25), (1.0, 10.0), (-1.0, 10.0)])
def test_a_run_that_was_seen_within_the_second_of_its_start_is_timed_from_then(
    seen_after_s: float, ran_s: float
) -> None:
    """The API server's times have whole seconds."""
    runs = Runs()
    runs.now += seen_after_s
    runs.start("a")
    runs.now = STARTED_S + 10.0
    runs.end("a")
    assert runs.durations.expected_s(()) == ran_s


def test_shares_count_as_parts_of_a_gpu_in_use() -> None:
    runs = Runs()
    share = {"gpu_share": "500", "assigned_gpus": "0", "assigned_share": "500", "assigned_memory_mib": "40"}
    for name in ("a", "b"):
        runs.start(name, gpus=0, **share)
    assert runs.running.gpus == {"ns": 1.0}
    assert owners_of(decode_pod(manifest("a-17")), 0.5) == ("ns/Pod/a/1 GPUs", "ns/1 GPUs", "ns")
    assert owners_of(decode_pod(manifest("1-2")), 2.0) == ("ns/Pod/1-2/2 GPUs", "ns/2 GPUs", "ns")
    owner = {"kind": "Job", "name": "train-3", "controller": True}
    job = decode_pod({"metadata": {"name": "x", "namespace": "ns", "ownerReferences": [owner]}})
    assert owners_of(job, 2.0)[0] == "ns/Job/train/2 GPUs"


def test_pods_that_have_ended_are_asked_for_alone_and_learned_from_in_the_order_of_their_ends() -> None:
    asked = list[tuple[str, dict[str, str]]]()

    def ended(name: str, *ends: str | None, start: str | None = STARTED) -> Manifest:
        states: list[Manifest] = [{"state": {"terminated": {"finishedAt": end}}} for end in ends]
        states += [{"state": {"terminated": None}}, {"state": None}, {}]
        return manifest(name) | {"status": {"phase": "Failed", "containerStatuses": states, "startTime": start}}

    class Api:
        async def get(self, path: str, query: dict[str, str]) -> bytes:
            asked.append((path, query))
            items = [ended("late", "2026-01-01T00:00:13Z", "2026-01-01T00:00:40Z")]
            items += [ended(name, None, "2026-01-01T00:00:20Z") for name in ("one", "other")]
            items += [ended("unknown"), ended("unknown", None), ended("odd", "2026-01-01T00:00:20Z", start=None)]
            return msgspec.json.encode({"items": items})

    durations = Durations()
    asyncio.run(learn_finished(Api(), durations))  # type: ignore[arg-type]
    expected = Durations()
    for name, seconds in (("one", 10.0), ("other", 10.0), ("late", 30.0)):
        expected.finished((f"ns/Pod/{name}/2 GPUs", "ns/2 GPUs", "ns"), seconds)
    assert durations == expected
    [(path, query)] = asked
    assert path == "/api/v1/pods"
    left_out = "spec.nodeName!=,status.phase!=Pending,status.phase!=Running,status.phase!=Unknown"
    assert query["fieldSelector"] == left_out
