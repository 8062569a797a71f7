"""kubectl: installed, or built once from its Go module."""

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from tests.controlplane.binaries import BuildError, cached, go_command

_SOURCES = Path(__file__).parent / "go"


def find_kubectl() -> Path:
    """The command. Raises BuildError."""
    if installed := shutil.which("kubectl"):
        return Path(installed)
    digest = hashlib.sha256(b"\0".join(path.read_bytes() for path in sorted(_SOURCES.iterdir()))).hexdigest()
    return cached(f"kubectl-{digest[:12]}", _build) / "kubectl"


def _build(into: Path) -> None:
    command = [go_command(), "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", str(into / "kubectl")]
    environment = os.environ | {"CGO_ENABLED": "0"}
    result = subprocess.run([*command, "."], check=False, capture_output=True, text=True, cwd=_SOURCES, env=environment)
    if result.returncode != 0:
        raise BuildError(f"go build of kubectl failed:\n{result.stderr[-4000:]}")
