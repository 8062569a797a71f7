"""kubectl: installed, or built once from its Go module."""

import hashlib
import shutil
from pathlib import Path

from tests.controlplane.binaries import cached, go_build

_SOURCES = Path(__file__).parent / "go"


def find_kubectl() -> Path:
    """The command. Raises BuildError."""
    if installed := shutil.which("kubectl"):
        return Path(installed)
    digest = hashlib.sha256(b"\0".join(path.read_bytes() for path in sorted(_SOURCES.iterdir()))).hexdigest()
    return cached(f"kubectl-{digest[:12]}", _build) / "kubectl"


def _build(into: Path) -> None:
    go_build(_SOURCES, into, ["."])
