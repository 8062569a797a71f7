"""The release on GitHub: notes and files, by `gh`."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

from release.errors import ReleaseError
from release.running import run


def publish(tag: str, notes: str, files: Sequence[Path]) -> None:
    """Create the release of a tag, or complete one that an earlier try has left; public once all its files are there.

    Raises ReleaseError.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".md", delete=False) as text:
        text.write(notes)
    try:
        try:
            run("gh", "release", "view", tag)
        except ReleaseError:
            title = f"Kerf {tag.removeprefix('v')}"
            run("gh", "release", "create", tag, "--draft", "--verify-tag", "--title", title, "--notes-file", text.name)
        else:
            run("gh", "release", "edit", tag, "--notes-file", text.name)
        run("gh", "release", "upload", tag, "--clobber", *files)
        run("gh", "release", "edit", tag, "--draft=false")
    finally:
        Path(text.name).unlink()
