"""Pages that end with what the settings' docstrings say. As a program it rewrites them: `make goldens`."""

from pathlib import Path

from extender.parts import NAMES
from extender.settings.load import _describe_kernel, _describe_section
from extender.settings.tree import PARTS
from tests.docs.pages import DOCS


def pages() -> dict[Path, str]:
    """Text by page, as it should be."""
    ends = {
        DOCS / "parts" / f"{part.name}.md": _describe_section(part.name, part.settings)
        for part in PARTS
        if part.name in NAMES
    }
    ends[DOCS / "reference" / "configuration.md"] = _describe_kernel()
    return {page: _with_end(page.read_text(), end.rstrip() + "\n") for page, end in ends.items()}


def _with_end(text: str, end: str) -> str:
    """The text with everything from the first heading of `end` on replaced by it."""
    heading = end.partition("\n")[0]
    before, found, _ = text.partition(f"\n{heading}\n")
    return f"{before}\n{end}" if found else f"{text}\n{end}"


if __name__ == "__main__":
    for page, text in pages().items():
        page.write_text(text)
