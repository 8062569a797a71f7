"""What is measured, started on loopback: control planes with nodes, Kerf, and the two echoes it is compared with."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.controlplane import (
    ApiError,
    ControlPlane,
    Process,
    ProcessError,
    free_port,
    processes,
    start_process,
    wait_until,
)
from tests.controlplane import kerf as kerfs
from tests.controlplane.kerf import RBAC, SERVICE_ACCOUNT
from tests.tools.bench import copies

GPUS_PER_NODE = 8

_LOAD_TIMEOUT_S = 900.0
_READY_WITHIN_S = 600.0
"""With 150,000 pods and 15,000 nodes it takes half a minute on a quiet machine."""
_FIRST_NODE = "node-00000"
_ALL_CORES = os.sched_getaffinity(0)


class BenchError(Exception):
    """A measurement that must not be reported; says why."""


@contextlib.contextmanager
def on_core(*, first: bool) -> Iterator[None]:
    """On the first core, or on all others; what is started meanwhile is there too. So Kerf need not wait for others."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core for core in _ALL_CORES if (core == min(_ALL_CORES)) == first} or cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


@contextlib.contextmanager
def workspace() -> Iterator[Path]:
    """A folder for logs and configurations; it is kept, and named, when the measurement fails."""
    directory = Path(tempfile.mkdtemp(prefix="kerf-bench-"))
    try:
        yield directory
    except Exception as error:
        error.add_note(f"logs: {directory}")
        raise
    shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def plane(directory: Path) -> Iterator[ControlPlane]:
    """A fresh control plane, where user `kerf` has the rights of manifests/rbac.yaml alone."""
    with ControlPlane(directory, users={"kerf": SERVICE_ACCOUNT}) as opened:
        opened.apply(RBAC)
        wait_until(lambda: _may_list_nodes(opened), 10.0, f"rights of {RBAC} in effect")
        yield opened


@contextlib.contextmanager
def plane_with_nodes(directory: Path, num_nodes: int) -> Iterator[ControlPlane]:
    """The same with nodes of 8 GPUs."""
    with plane(directory) as opened:
        load(opened, "nodes", "-count=1", f"-gpus={GPUS_PER_NODE}")
        more = ({_FIRST_NODE: f"node-{number:05}"} for number in range(1, num_nodes))
        copies.copy(opened, f"/registry/minions/{_FIRST_NODE}", f"/api/v1/nodes/{_FIRST_NODE}", more)
        yield opened


def run_pods(plane: ControlPlane, count: int, num_nodes: int) -> None:
    """So many running pods, on the nodes in turn: half of them with a GPU each, the rest with none.

    Raises BenchError, OSError.
    """
    with_gpu = count // 2
    _run_alike(plane, with_gpu, num_nodes, 1, "gpu")
    _run_alike(plane, count - with_gpu, num_nodes, 0, "cpu")


def _run_alike(plane: ControlPlane, count: int, num_nodes: int, gpus: int, prefix: str) -> None:
    if not count:
        return
    load(plane, "pods", "-bound=1", f"-pod-gpus={gpus}", f"-prefix={prefix}")
    first = f"{prefix}-bound-00000"
    more = (
        {first: f"{prefix}-bound-{number:05x}", _FIRST_NODE: f"node-{number % num_nodes:05}"}
        for number in range(1, count)
    )
    copies.copy(plane, f"/registry/pods/default/{first}", f"/api/v1/namespaces/default/pods/{first}", more)


def load(plane: ControlPlane, command: str, *flags: str) -> dict[str, Any]:
    """Run the load generator; returns what it prints. Raises BenchError."""
    arguments: list[str | Path] = [plane.binaries.load, command, f"-kubeconfig={plane.kubeconfig()}", *flags]
    try:
        result = subprocess.run(arguments, check=False, capture_output=True, text=True, timeout=_LOAD_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise BenchError(f"load {command} has not ended after {_LOAD_TIMEOUT_S:g} s") from None
    if result.returncode != 0:
        raise BenchError(f"load {command} failed: {result.stderr.strip()}")
    printed: dict[str, Any] = json.loads(result.stdout or "{}")
    return printed


def cpu_seconds(process: Process) -> float:
    """Processor time that a process has used so far."""
    return sum(_times(process.pid)[:2])


def family_cpu_seconds(pid: int) -> float:
    """The same of a process and of all it has started, those that have ended included."""
    seconds = 0.0
    for member in (pid, *children(pid)):
        with contextlib.suppress(OSError):  # it has ended: its parent counts it
            seconds += sum(_times(member))
    return seconds


def _times(pid: int) -> list[float]:
    """A process's utime and stime, and those of its children that have ended, in seconds."""
    # The fields 14 to 17 (proc_pid_stat(5)); the second one, the name, may have spaces.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return [int(ticks) / os.sysconf("SC_CLK_TCK") for ticks in fields[11:15]]


def children(pid: int) -> list[int]:
    """All processes below one, by number."""
    found = []
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, listed.read_text().split()):
                found += [child, *children(child)]
    return found


def memory_mb(process: Process, field: str = "VmRSS") -> float:
    """A line of /proc/PID/status in MB (10^6 bytes; the kernel counts KiB)."""
    return _memory_mb(process.pid, field)


def children_mb(pid: int) -> float:
    """Memory in use by all processes below one, in MB."""
    megabytes = 0.0
    for child in children(pid):
        with contextlib.suppress(OSError, BenchError):  # it has ended
            megabytes += _memory_mb(child, "VmRSS")
    return round(megabytes, 1)


def _memory_mb(pid: int, field: str) -> float:
    match = re.search(rf"^{field}:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    if match is None:
        raise BenchError(f"/proc/{pid}/status has no {field}")
    return round(int(match[1]) * 1024 / 1e6, 1)


@contextlib.contextmanager
def kerf(plane: ControlPlane, mode: str, *arguments: str, port: int = 0) -> Iterator[Process]:
    """Kerf on a control plane, ready; everything but the mode and what is given is as it comes."""
    process = processes.retry_taken_port(lambda: _ready(start_kerf(plane, mode, *arguments, port=port), "readyz"))
    with _stopping(process):
        yield process


def start_kerf(plane: ControlPlane, mode: str, *arguments: str, port: int = 0) -> Process:
    """Start `kerf serve` and return at once; without a port on one that is free."""
    return kerfs.start_kerf(plane, "kerf", url_of(port or free_port()), "--mode", mode, *arguments)


@contextlib.contextmanager
def go_echo(plane: ControlPlane) -> Iterator[Process]:
    """The extender that does the least, in Go: filter, prioritize, bind, and /raw."""
    process = processes.retry_taken_port(lambda: _ready(_start_go_echo(plane), "healthz"))
    with _stopping(process):
        yield process


@contextlib.contextmanager
def bare_extender(plane: ControlPlane) -> Iterator[Process]:
    """The decisive extender that does the least (`bare_extender`)."""
    process = processes.retry_taken_port(lambda: _ready(_start_bare_extender(plane), "healthz"))
    with _stopping(process):
        yield process


@contextlib.contextmanager
def bare_echo(directory: Path) -> Iterator[Process]:
    """The bytes echo on Kerf's own HTTP stack (`echo_app`)."""
    process = processes.retry_taken_port(lambda: _ready(_start_bare_echo(directory), "healthz"))
    with _stopping(process):
        yield process


def _start_go_echo(plane: ControlPlane) -> Process:
    port = free_port()
    kubeconfig = plane.kubeconfig("scheduler")
    command = [str(plane.binaries.echo), f"-listen=127.0.0.1:{port}", f"-kubeconfig={kubeconfig}"]
    return start_process("echo", command, plane.directory / "echo.log", url_of(port))


def _start_bare_extender(plane: ControlPlane) -> Process:
    port = free_port()
    script = Path(__file__).with_name("bare_extender.py")
    command = [sys.executable, "-P", str(script), str(port), str(plane.kubeconfig("scheduler"))]
    return start_process("best", command, plane.directory / "best.log", url_of(port))


def _start_bare_echo(directory: Path) -> Process:
    port = free_port()
    command = [sys.executable, "-P", str(Path(__file__).with_name("echo_app.py")), str(port)]
    return start_process("bare echo", command, directory / "bare-echo.log", url_of(port))


@contextlib.contextmanager
def _stopping(process: Process) -> Iterator[None]:
    try:
        yield
    finally:
        process.stop()


def _ready(process: Process, path: str) -> Process:
    try:
        process.wait_ready(lambda: processes.answers(f"{process.url}/{path}"), _READY_WITHIN_S)
    except ProcessError:
        process.stop()
        raise
    return process


def url_of(port: int) -> str:
    """Of a server on loopback."""
    return f"http://127.0.0.1:{port}"


def _may_list_nodes(plane: ControlPlane) -> bool:
    with contextlib.closing(plane.api("kerf")) as api:
        try:
            api.request("GET", "/api/v1/nodes?limit=1")
        except ApiError as error:
            if error.status != 403:
                raise
            return False
        return True
