"""Which nightly tests a change asks for: those that belong to a file that differs from the merge base with `main`.

A test says what it belongs to: `@pytest.mark.nightly(of=("extender/parts/agent/", "Dockerfile"))`, paths from the top,
or what they begin with. One that names nothing belongs to everything. A test on a control plane need not say it: it
belongs to the kernel, to the part in whose folder it is, and to what it is made of.
"""

import re
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
MAINS = ("origin/main", "main")
KERNEL = (
    *sorted(
        f"extender/{path.name}/" for path in (ROOT / "extender").iterdir() if path.is_dir() and path.name != "parts"
    ),
    *("manifests/", "scheduler-config/", "requirements/", "tests/controlplane/", "tests/e2e/"),
)
"""What every test on a control plane depends on."""
PAGE = ("extender/page/", "extender/api/", "extender/explain/", "extender/parts/", "requirements/", "tests/page/")
"""What the tests in a browser depend on."""
PROMISED = frozenset(re.findall(r"`(test_\w+)`", (ROOT / "docs" / "reference" / "guarantees.md").read_text()))
"""Names of the tests by which docs/reference/guarantees.md shows its promises."""


def belongings(test: str) -> tuple[str, ...]:
    """What a test on a control plane belongs to, by the path of its file."""
    folder = test.rpartition("/")[0] + "/"
    part = re.match("tests/(parts/[^/]+/)", folder)
    return (*KERNEL, folder, *([f"extender/{part[1]}"] if part else ()))


def changed_files(root: Path) -> frozenset[str] | None:
    """Paths of what differs from the merge base with `main`, new files included; None without one to compare with.

    On `main` itself it is what its last commit has changed.
    """
    head = _git(root, "rev-parse", "HEAD")
    bases = [base for main in MAINS if (base := _git(root, "merge-base", "HEAD", main))]
    before = next((base for base in bases if base != head), None) or _git(root, "rev-parse", "--verify", "HEAD^")
    if not before:
        return None
    differing = _git(root, "diff", "--name-only", "--no-renames", before)
    untracked = _git(root, "ls-files", "--others", "--exclude-standard")
    return frozenset(filter(None, f"{differing}\n{untracked}".splitlines()))


def belongs(of: Sequence[str], changed: Iterable[str] | None) -> bool:
    """Whether a test that belongs to these paths is asked for by a change; None stands for a change of everything."""
    return changed is None or not of or any(path.startswith(tuple(of)) for path in changed)


def _git(root: Path, *arguments: str) -> str:
    """What git prints, "" where it fails."""
    ran = subprocess.run(["git", *arguments], check=False, capture_output=True, text=True, cwd=root)
    return ran.stdout.strip() if ran.returncode == 0 else ""
