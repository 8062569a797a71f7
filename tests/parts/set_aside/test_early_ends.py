"""Which ends of a pod may speak against its node."""

from typing import Any

import msgspec

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


def failed(*containers: dict[str, Any], reason: str = "", **metadata: Any) -> objects.Pod:
    return pod(*({"state": one} for one in containers), phase="Failed", reason=reason, **metadata)


def test_what_is_an_early_failure() -> None:
    start_error = ended(-1, 128, "StartError")  # it never started, and its times are of 1970
    for found, why in (
        (failed(ended()), "exit code 1"),
        (failed(ended(59)), "exit code 1"),
        (failed(ended(60)), ""),
        (failed(ended(90), ended()), ""),
        (failed(ended(code=0), ended()), "exit code 1"),
        (failed(start_error), "StartError"),
        (failed(ended(reason="OOMKilled", code=137)), ""),
        (failed(ended(code=143)), ""),  # asked to end
        (failed(), ""),
        (failed(reason="UnexpectedAdmissionError"), "UnexpectedAdmissionError"),
        (failed(reason="OutOfnvidia.com/gpu"), "OutOfnvidia.com/gpu"),
        (failed(ended(), reason="Evicted"), ""),
        (failed(ended(), reason="DeadlineExceeded"), ""),
        (failed(ended(), deletionTimestamp="2026-11-26T09:59:00Z"), ""),
        (pod({"state": ended(code=0)}, phase="Succeeded"), ""),
        (pod(waiting("CrashLoopBackOff", ended())), "exit code 1"),
        (pod(RUNNING | {"lastState": ended()}), "exit code 1"),
        (pod(waiting("CrashLoopBackOff", ended(61))), ""),
        (pod(RUNNING | {"lastState": ended(ago_s=601)}), ""),
        (pod(waiting("RunContainerError")), "RunContainerError"),
        (pod(waiting("CreateContainerConfigError")), ""),
        (pod(waiting("ImagePullBackOff")), ""),
        (pod(waiting("ContainerCreating"), phase="Pending"), ""),
        (pod(RUNNING), ""),
    ):
        assert _early_failure(found, EARLY_S, NOW, WINDOW_S) == why, found


def test_who_runs_and_who_has_started_again() -> None:
    for found, is_running, restarted in (
        (pod(RUNNING, RUNNING), True, False),
        (pod(), True, False),
        (pod(RUNNING, waiting("CrashLoopBackOff")), False, True),
        (pod(RUNNING | {"lastState": ended()}), True, True),
        (pod(RUNNING, {"state": ended(code=0)}), False, False),
        (pod(phase="Pending"), False, False),
    ):
        assert (_runs(found), _has_restarted(found)) == (is_running, restarted)
