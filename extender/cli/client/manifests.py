"""Manifests in files, which are sent as they are: the Kerf that is asked reads them, and says what is wrong where."""

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from extender.cli.client.kerf import USAGE, fail

_STDIN: Final = "-"
_TEXT: Final = re.compile(r"^manifest\[(\d{1,4})\], ")


def read_text(name: str) -> str:
    """What a file holds, or standard input for `-`; ends the command where it can't be read."""
    try:
        return sys.stdin.read() if name == _STDIN else Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        fail(f"{name}: {error}", USAGE)


def with_file(text: str, files: Sequence[str]) -> str:
    """What begins with a place in a request, with that in the file in its stead."""
    found = _TEXT.match(text)
    if found is None or int(found[1]) >= len(files):
        return text
    name = files[int(found[1])]
    return f"{'standard input' if name == _STDIN else name}: {text[found.end() :]}"
