"""Which ends of a pod may speak against its node."""

from typing import Any

import msgspec
import pytest

from extender.kube import objects
from extender.parts.set_aside.quarantine import _early_failure, _has_restarted, _runs

NOW = objects.unix_time("2026-11-26T10:00:00Z")
EARLY_S, WINDOW_S = 60.0, 600.0


def ended(lasted_s: int = 2, code: int = 1, reason: str = "Error", *, ago_s: int = 10) -> dict[str, Any]:
    """A container's end, some seconds before NOW; of one that never started with -1."""

    def time(before_s: int) -> str:
        return f"2026-11-26T09:{59 - before_s // 60:02}:{59 - before_s % 60:02}Z"

    started = "1970-01-01T00:00:00Z" if lasted_s < 0 else time(ago_s + lasted_s)
    return {"terminated": {"exitCode": code, "reason": reason, "startedAt": started, "finishedAt": time(ago_s)}}


def pod(*containers: dict[str, Any], phase: str = "Running", reason: str = "", **metadata: Any) -> objects.Pod:
    status = {"phase": phase, "reason": reason, "containerStatuses": list(containers)}
    return msgspec.convert({"metadata": metadata, "status": status}, objects.Pod)


def waiting(reason: str, last: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"state": {"waiting": {"reason": reason}}, "lastState": last or {}}


RUNNING: dict[str, Any] = {"state": {"running": {"startedAt": "2026-11-26T09:00:00Z"}}, "lastState": {}}


@pytest.mark.parametrize(
    ("found", "why"),
    [
        pytest.param(pod({"state": ended()}, phase="Failed"), "exit code 1", id="ended in two seconds"),
        pytest.param(pod({"state": ended(59)}, phase="Failed"), "exit code 1", id="in 59"),
        pytest.param(pod({"state": ended(60)}, phase="Failed"), "", id="in 60"),
        pytest.param(pod({"state": ended(90)}, {"state": ended()}, phase="Failed"), "", id="one ran for longer"),
        pytest.param(pod({"state": ended(code=0)}, {"state": ended()}, phase="Failed"), "exit code 1", id="one failed"),
        pytest.param(
            pod({"state": ended(-1, 128, "StartError")}, phase="Failed"), "StartError", id="never started, in 1970"
        ),
        pytest.param(pod({"state": ended(reason="OOMKilled", code=137)}, phase="Failed"), "", id="over its memory"),
        pytest.param(pod({"state": ended(code=143)}, phase="Failed"), "", id="asked to end"),
        pytest.param(pod(phase="Failed"), "", id="nothing is told"),
        pytest.param(
            pod(phase="Failed", reason="UnexpectedAdmissionError"), "UnexpectedAdmissionError", id="refused by plugin"
        ),
        pytest.param(pod(phase="Failed", reason="OutOfnvidia.com/gpu"), "OutOfnvidia.com/gpu", id="no GPUs left"),
        pytest.param(pod({"state": ended()}, phase="Failed", reason="Evicted"), "", id="evicted"),
        pytest.param(pod({"state": ended()}, phase="Failed", reason="DeadlineExceeded"), "", id="out of time"),
        pytest.param(
            pod({"state": ended()}, phase="Failed", deletionTimestamp="2026-11-26T09:59:00Z"), "", id="deleted"
        ),
        pytest.param(pod({"state": ended(code=0)}, phase="Succeeded"), "", id="well"),
        pytest.param(pod(waiting("CrashLoopBackOff", ended())), "exit code 1", id="again and again"),
        pytest.param(pod(RUNNING | {"lastState": ended()}), "exit code 1", id="runs once more"),
        pytest.param(pod(waiting("CrashLoopBackOff", ended(61))), "", id="after a minute each time"),
        pytest.param(pod(RUNNING | {"lastState": ended(ago_s=601)}), "", id="long ago"),
        pytest.param(pod(waiting("RunContainerError")), "RunContainerError", id="can't be run"),
        pytest.param(pod(waiting("CreateContainerConfigError")), "", id="its ConfigMap is missing"),
        pytest.param(pod(waiting("ImagePullBackOff")), "", id="its image is missing"),
        pytest.param(pod(waiting("ContainerCreating"), phase="Pending"), "", id="on its way"),
        pytest.param(pod(RUNNING), "", id="runs"),
    ],
)
def test_what_is_an_early_failure(found: objects.Pod, why: str) -> None:
    assert _early_failure(found, EARLY_S, NOW, WINDOW_S) == why


@pytest.mark.parametrize(
    ("found", "is_running", "restarted"),
    [
        (pod(RUNNING, RUNNING), True, False),
        (pod(), True, False),
        (pod(RUNNING, waiting("CrashLoopBackOff")), False, True),
        (pod(RUNNING | {"lastState": ended()}), True, True),
        (pod(RUNNING, {"state": ended(code=0)}), False, False),
        (pod(phase="Pending"), False, False),
    ],
)
def test_who_runs_and_who_has_started_anew(found: objects.Pod, is_running: bool, restarted: bool) -> None:
    assert (_runs(found), _has_restarted(found)) == (is_running, restarted)
