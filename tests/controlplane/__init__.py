"""A real control plane for tests and benchmarks: etcd, kube-apiserver and kube-scheduler on loopback.

See README.md. The names below are the whole interface, apart from `objects` (plain dicts), `kerf` (its process) and
`fixtures` (pytest).
"""

from tests.controlplane.api import Api, ApiError
from tests.controlplane.binaries import Binaries, BuildError, find_binaries
from tests.controlplane.plane import ControlPlane
from tests.controlplane.processes import Process, ProcessError, free_port, start_process, wait_until

__all__ = [
    "Api",
    "ApiError",
    "Binaries",
    "BuildError",
    "ControlPlane",
    "Process",
    "ProcessError",
    "find_binaries",
    "free_port",
    "start_process",
    "wait_until",
]
