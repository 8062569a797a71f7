"""The table tests of kube-scheduler's allocator as cases: Go values, written down by the tests themselves."""

import hashlib
import json
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Final

from tests.controlplane import binaries

_GO: Final = Path(binaries.__file__).parent / "go"
_SOURCE: Final = _GO / "allocatortable" / "main.go"
_MODULE: Final = "k8s.io/dynamic-resource-allocation"
_PACKAGE: Final = "structured/allocatortable"


def table_cases() -> list[dict[str, Any]]:
    """All cases of the tables, with the features that each needs. Raises BuildError."""
    digest = hashlib.sha256(_SOURCE.read_bytes() + (_GO / "go.mod").read_bytes()).hexdigest()[:12]
    program = binaries.cached(f"allocatortable-{digest}", _build) / "allocatortable"
    lines = subprocess.run([program], check=False, capture_output=True, text=True).stdout.splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]  # the rest is Go's report of its tests


def _build(into: Path) -> None:
    """The tests are internal to their module: the program is built as a package of a copy of it."""
    text = (_GO / "go.mod").read_text()
    version = re.search(rf"^\s*{re.escape(_MODULE)} (v\S+)", text, re.MULTILINE)
    if version is None:
        raise binaries.BuildError(f"go/go.mod does not require {_MODULE}")
    with tempfile.TemporaryDirectory(prefix="kerf-go-") as folder:
        copy, package = Path(folder) / "module", Path(folder) / "module" / _PACKAGE
        shutil.copytree(binaries.module_folder(f"{_MODULE}@{version[1]}"), copy, copy_function=shutil.copyfile)
        package.mkdir()
        shutil.copy(_SOURCE, package)
        lines = re.sub(rf"^(\s*{re.escape(_MODULE)} => ).*$", rf"\g<1>{copy}", text, flags=re.MULTILINE)
        (Path(folder) / "go.mod").write_text(lines)
        shutil.copy(_GO / "go.sum", folder)
        binaries.go_build(_GO, into, [f"{_MODULE}/{_PACKAGE}"], modfile=Path(folder) / "go.mod")
