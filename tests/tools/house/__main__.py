"""`python -m tests.tools.house`: how large the house is, and which files a call walks through.

`--against REVISION` shows the figures of a git revision beside them: its own code, measured by this tool. What an older
revision needs and this environment lacks can be given by PYTHONPATH.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.tools.house import walks
from tests.tools.house.counts import counts
from tests.tools.house.sources import Tree


def measured(root: Path) -> dict[str, Any]:
    """The figures of a checkout: `counts`, and `walks` as of `walks.walk_of`, or why they could not be run."""
    path = os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])
    run = subprocess.run(
        [sys.executable, walks.__file__],
        cwd=root,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    walked = (
        json.loads(run.stdout) if run.returncode == 0 else {"fault": (run.stderr.splitlines() or ["no output"])[-1]}
    )
    return {"counts": counts(Tree.of(root)), "walks": walked}


def measured_at(revision: str) -> dict[str, Any]:
    """The figures of a revision, of a checkout that is gone afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "checkout"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", str(made), revision], check=True)
        try:
            return measured(made)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(made)], check=True)


def table(found: dict[str, Any]) -> list[str]:
    """The figures as lines, a column for each that is measured."""
    names = list(found)
    lines = [f"{'':44}" + "".join(f"{name[:20]:>22}" for name in names)]
    for what in found[names[-1]]["counts"]:
        lines.append(f"{what:44}" + "".join(f"{found[name]['counts'][what]:22,}" for name in names))
    for walk in walks.WALKS:
        for what in ("files", "ways", "entries"):
            figures = [_figure(found[name]["walks"].get(walk), what) for name in names]
            lines.append(f"{f'{walk}: {what}':44}" + "".join(f"{figure:>22}" for figure in figures))
    lines += [f"{name}: no walks: {found[name]['walks']['fault']}" for name in names if "fault" in found[name]["walks"]]
    newest = found[names[-1]]["walks"]
    for walk in walks.WALKS:
        lines += ["", walk, *(f"  {file}" for file in newest.get(walk, {}).get("files", ()))]
    return lines


def _figure(walk: dict[str, Any] | None, what: str) -> str:
    if walk is None:
        return "?"
    return str(len(walk[what]) if what == "files" else walk[what])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.house", description=__doc__)
    parser.add_argument(
        "--against", metavar="REVISION", help="a git revision whose figures stand beside the checkout's"
    )
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the figures there as well")
    asked = parser.parse_args()
    found = {asked.against: measured_at(asked.against)} if asked.against else {}
    found["checkout"] = measured(Path.cwd())
    print("\n".join(table(found)))
    if asked.json is not None:
        asked.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
