"""Golden files: what a surface says, in one file of tests/goldens. `make goldens` rewrites them all; read the diff."""

import difflib
from collections.abc import Iterable
from pathlib import Path

FOLDER = Path(__file__).with_name("goldens")


class Golden:
    """Holds texts against files, or writes the files."""

    def __init__(self, *, rewrite: bool, folder: Path = FOLDER) -> None:
        self._rewrite = rewrite
        self._folder = folder

    def __call__(self, name: str, text: str | Iterable[str]) -> None:
        """The file of that name has this text, or one of these on each line. Raises AssertionError with the diff."""
        path = self._folder / name
        said = (text if isinstance(text, str) else "\n".join(text)).rstrip("\n") + "\n"
        known = path.read_text() if path.exists() else ""
        if self._rewrite:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(said)
        elif said != known:
            before, now = known.splitlines(keepends=True), said.splitlines(keepends=True)
            diff = "".join(difflib.unified_diff(before, now, f"tests/goldens/{name}", "what it says now"))
            raise AssertionError(f"{diff}`make goldens` rewrites the files, where this is what it should say")
