"""The harness itself, on the real thing: rights, scheduling, the echo extender, the load generator, a clean end."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import urllib3

from tests.controlplane import ApiError, ControlPlane, Process, find_binaries, objects, processes, wait_until

pytestmark = pytest.mark.controlplane

SCHEDULER = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection: {qps: 5000, burst: 5000}
profiles: [{schedulerName: NAME}]
"""
EXTENDER = """
extenders:
- urlPrefix: http://replaced.invalid
  filterVerb: filter
  prioritizeVerb: prioritize
  bindVerb: bind
  weight: 1
  nodeCacheCapable: true
"""
MANIFEST = """
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: applied}
value: 7
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: applied, namespace: applied}
rules: [{apiGroups: [""], resources: [pods], verbs: [get]}]
"""


@contextlib.contextmanager
def stopping(process: Process) -> Iterator[Process]:
    try:
        yield process
    finally:
        process.stop()


def bound_node(plane: ControlPlane, name: str, namespace: str = "default") -> str:
    """The node of a pod, once it has one."""

    def node_name() -> str:
        pod = plane.request("GET", f"/api/v1/namespaces/{namespace}/pods/{name}")
        return str(pod["spec"].get("nodeName", ""))

    return wait_until(node_name, 20.0, f"binding of {name}")


def test_kerf_has_only_granted_rights(control_plane: ControlPlane) -> None:
    with contextlib.closing(control_plane.api("kerf")) as kerf:
        with pytest.raises(ApiError, match="cannot list resource") as refused:
            kerf.request("GET", "/api/v1/pods")
        assert refused.value.status == 403
        control_plane.grant("kerf", {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]})
        assert kerf.request("GET", "/api/v1/pods")["kind"] == "PodList"


def test_apply_finds_the_path_of_every_kind(control_plane: ControlPlane) -> None:
    applied = control_plane.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "applied"}},
        MANIFEST,
        objects.pod("applied", namespace="applied", nodeName="elsewhere") | {"status": {"phase": "Running"}},
    )
    assert [stored["kind"] for stored in applied] == ["Namespace", "PriorityClass", "Role", "Pod"]
    assert applied[1]["value"] == 7
    assert applied[3]["status"]["phase"] == "Running"


def test_plain_scheduler_binds(control_plane: ControlPlane) -> None:
    control_plane.apply(objects.gpu_node("plain", allocatable={"test/plain": "1"}), objects.cpu_node("without"))
    with stopping(control_plane.start_scheduler(SCHEDULER, "plain", replace={"NAME": "plain"})):
        control_plane.apply(objects.pod("plain", gpus=8, scheduler_name="plain"))
        assert bound_node(control_plane, "plain") == "plain"


def test_echo_extender_binds(control_plane: ControlPlane, tmp_path: Path) -> None:
    # With two feasible nodes the scheduler asks all three verbs.
    control_plane.apply(*(objects.cpu_node(f"echo-{i}", labels={"test": "echo"}) for i in range(2)))
    url = f"http://127.0.0.1:{processes.free_port()}"
    kubeconfig = control_plane.kubeconfig("scheduler")
    command = [str(control_plane.binaries.echo), f"-listen={url.removeprefix('http://')}", f"-kubeconfig={kubeconfig}"]
    with stopping(processes.start_process("echo", command, tmp_path / "echo.log", url)) as echo:
        echo.wait_ready(lambda: processes.answers(f"{url}/healthz"))
        with urllib3.PoolManager() as pool:
            assert len(pool.request("POST", f"{url}/raw?bytes=100", body=b"{}").json()) == 100 - len('""')
        config = SCHEDULER.replace("NAME", "echo") + EXTENDER
        with stopping(control_plane.start_scheduler(config, "echo", extender_url=url)):
            control_plane.apply(objects.pod("echo", scheduler_name="echo", nodeSelector={"test": "echo"}))
            assert bound_node(control_plane, "echo").startswith("echo-")
        assert echo.tail().splitlines()[1:] == [], "echo reports errors only"


def alive(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def run_load(plane: ControlPlane, *arguments: str) -> Mapping[str, Any]:
    command = [str(plane.binaries.load), arguments[0], f"-kubeconfig={plane.kubeconfig()}", *arguments[1:]]
    result = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    printed: Mapping[str, Any] = json.loads(result.stdout or "{}")
    return printed


def test_load_measures(tmp_path: Path) -> None:
    with ControlPlane(tmp_path / "plane") as plane:
        run_load(plane, "nodes", "-count=20", "-gpus=4")
        run_load(plane, "pods", "-bound=20", "-pod-gpus=1", "-namespace=running")
        plane.start_scheduler(SCHEDULER.replace("NAME", "default-scheduler"))
        # 20 nodes * 4 GPUs - 20 running pods * 1 GPU = 60 free; 50 pods of one GPU fit.
        fits = run_load(plane, "measure", "-count=50", "-pod-gpus=1", "-namespace=fits")
        assert (fits["pods"], fits["bound"], fits["unbound"]) == (50, 50, 0)
        assert fits["over_capacity_nodes"] == 0
        assert fits["max_per_node"] == 4
        assert fits["pods_per_s"] > 0
        # Every node runs a pod already, so none has its four GPUs free.
        too_big = run_load(plane, "measure", "-count=3", "-pod-gpus=4", "-namespace=big", "-timeout=2s")
        assert (too_big["bound"], too_big["unbound"]) == (0, 3)
        # Bound by hand past what is there: 20 more pods of four GPUs on nodes of four.
        run_load(plane, "pods", "-bound=20", "-pod-gpus=4", "-namespace=over")
        assert run_load(plane, "measure", "-count=0")["over_capacity_nodes"] == 20


def test_what_ends_by_itself_is_started_again(tmp_path: Path) -> None:
    with ControlPlane(tmp_path) as plane:
        scheduler = plane.start_scheduler(SCHEDULER.replace("NAME", "default-scheduler"))
        assert plane.revive_ended() == []
        os.kill(scheduler.pid, signal.SIGKILL)
        wait_until(lambda: not scheduler.running, 10.0, "it has ended")
        assert plane.revive_ended() == ["scheduler"]
        plane.apply(objects.cpu_node("n"), objects.pod("p", gpus=0))
        assert bound_node(plane, "p") == "n"


def test_stop_leaves_nothing(tmp_path: Path) -> None:
    plane = ControlPlane(tmp_path)
    with plane:
        plane.start_scheduler(SCHEDULER.replace("NAME", "default-scheduler"))
        pids = [process.pid for process in plane.running]
        assert len(pids) == 3
    assert not any(map(alive, pids))
    assert not (tmp_path / "etcd").exists()


def test_failed_start_shows_the_log(tmp_path: Path) -> None:
    with ControlPlane(tmp_path) as plane, pytest.raises(processes.ProcessError, match=r"no kind .*Nonsense"):
        plane.start_scheduler("apiVersion: kubescheduler.config.k8s.io/v1\nkind: Nonsense\n")


def test_children_die_with_their_parent(tmp_path: Path) -> None:
    script = (
        "import os, pathlib, sys; from tests.controlplane import start_process;"
        "print(start_process('sleep', ['sleep', '60'], pathlib.Path(sys.argv[1])).pid, flush=True); os._exit(1)"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "log")]
    parent = subprocess.run(command, check=False, capture_output=True, text=True)
    child = int(parent.stdout)
    wait_until(lambda: not alive(child), 5.0, "end of the orphan")


def test_cached_binaries_are_found_again() -> None:
    assert find_binaries() == find_binaries()
