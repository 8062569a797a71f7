"""`python -m tests.kube.bodies`: writes golden/bodies-MINOR.json, what the Go types of each Kubernetes minor write.

Fetches k8s.io/api, apimachinery and kube-scheduler of the releases that stand for the minors from the Go module proxy.
"""

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any, Final

from tests.controlplane import binaries

GOLDEN: Final = Path(__file__).parent / "golden"
MINORS: Final = ("1.29", "1.30", "1.31", "1.32", "1.33", "1.37")
_MODULES: Final = ("api", "apimachinery", "kube-scheduler")


def bodies(minor: str) -> dict[str, Any]:
    """`review`, an AdmissionReview of a pod; and by kind `empty` and `filled` objects."""
    result: dict[str, Any] = json.loads((GOLDEN / f"bodies-{minor}.json").read_bytes())
    return result


def write(minor: str) -> None:
    """Run the program with one minor's types."""
    version = binaries.RELEASES[minor].replace("1.", "v0.", 1)
    with tempfile.TemporaryDirectory(prefix="kerf-bodies-") as name:
        folder = Path(name)
        shutil.copy(GOLDEN / "bodies.go.txt", folder / "main.go")
        requires = "\n".join(f"require k8s.io/{module} {version}" for module in _MODULES)
        (folder / "go.mod").write_text(f"module kerf/bodies\n\ngo 1.24.0\n\n{requires}\n")
        binaries.run_go(["mod", "tidy"], folder)
        told = json.loads(binaries.run_go(["run", "."], folder))
    text = json.dumps(told, sort_keys=True, separators=(",", ":"))
    (GOLDEN / f"bodies-{minor}.json").write_text(text + "\n")


if __name__ == "__main__":
    for each in MINORS:
        write(each)
