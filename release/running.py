"""Running the programs that make a release, and telling what came of it."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from release.errors import ReleaseError

ROOT = Path(__file__).parents[1]
"""The checkout."""


def run(*command: str | Path, env: Mapping[str, str] | None = None) -> str:
    """What a program prints, both streams together; it runs in the checkout. Raises ReleaseError."""
    words = [str(word) for word in command]
    try:
        done = subprocess.run(  # noqa: S603 - the programs of this room, with words of its own
            words,
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
            env=os.environ | dict(env or {}),
        )
    except OSError as error:
        raise ReleaseError(f"{words[0]} can't be run: {error.strerror}") from None
    if done.returncode != 0:
        raise ReleaseError(f"{' '.join(words[:3])}... failed:\n{done.stdout[-4000:]}")
    return done.stdout


def tell(**found: str) -> None:
    """Print what was found out, and hand it to later steps by the file that GitHub Actions names.

    Raises ReleaseError where it is more than a line.
    """
    lines = [f"{name}={value}" for name, value in found.items()]
    if any("\n" in line for line in lines):
        raise ReleaseError(f"more than one line: {lines}")
    print("\n".join(lines))
    if path := os.environ.get("GITHUB_OUTPUT"):
        with Path(path).open("a") as outputs:
            outputs.writelines(f"{line}\n" for line in lines)


def epoch() -> int:
    """Unix time that everything in a release is dated to: SOURCE_DATE_EPOCH, else the commit's. Raises ReleaseError."""
    given = os.environ.get("SOURCE_DATE_EPOCH") or run("git", "log", "-1", "--format=%ct").strip()
    if not given.isdecimal():
        raise ReleaseError(f"SOURCE_DATE_EPOCH is {given!r}, not a number of seconds")
    return int(given)
