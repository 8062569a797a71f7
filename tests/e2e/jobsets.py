"""The JobSet API and its controller, as its Go module has them."""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import yaml

from tests.api.certificates import Authority
from tests.controlplane.binaries import cached, go_build, module_folder
from tests.controlplane.plane import ControlPlane
from tests.controlplane.processes import answers, free_port, start_process, wait_until

PATH = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets"

_VERSION = "v0.12.0"
_DEFINITION = "jobset.x-k8s.io_jobsets.yaml"


@contextlib.contextmanager
def controller(plane: ControlPlane, directory: Path) -> Iterator[None]:
    """JobSets in effect; their Jobs need the Job controller. Its webhooks, which fill in defaults, are not called."""
    built = cached(f"jobset-{_VERSION}", _build)
    plane.apply(built / _DEFINITION)
    wait_until(lambda: plane.exists(PATH), 30.0, "JobSets are served")
    for source, name in zip(Authority(directory, "jobset").issue("server"), ("tls.crt", "tls.key"), strict=True):
        shutil.copyfile(source, directory / name)
    health = f"127.0.0.1:{free_port()}"
    config = directory / "config.yaml"
    config.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "config.jobset.x-k8s.io/v1alpha1",
                "kind": "Configuration",
                "internalCertManagement": {"enable": False},
                "webhook": {"host": "127.0.0.1", "port": free_port(), "certDir": str(directory)},
                "health": {"healthProbeBindAddress": health},
                "metrics": {"bindAddress": "0"},
                "leaderElection": {"leaderElect": False},
            }
        )
    )
    command: list[str | Path] = [built / "jobset", "-kubeconfig", plane.kubeconfig(), "-config", config]
    process = start_process("jobset", command, directory / "jobset.log")
    try:
        process.wait_ready(lambda: answers(f"http://{health}/readyz"))
        yield
    finally:
        process.stop()


def _build(into: Path) -> None:
    sources = module_folder(f"sigs.k8s.io/jobset@{_VERSION}")
    go_build(sources, into, ["."])
    shutil.copyfile(sources / "config" / "components" / "crd" / "bases" / _DEFINITION, into / _DEFINITION)
