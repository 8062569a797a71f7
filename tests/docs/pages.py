"""The Markdown pages of the project: their links, headings, commands and tables."""

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
DOCS = ROOT / "docs"

_FENCE = re.compile(r"^(```+|~~~+).*?^\1`*\s*$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]\[]*(?:\[[^\]]*\][^\]\[]*)*\]\(([^)\s]+)\)")


def tracked(*patterns: str) -> list[Path]:
    """Files of the checkout that git knows, or would; all of them where no pattern is given."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns]
    listed = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout
    return sorted(path for name in listed.splitlines() if (path := ROOT / name).is_file())


def pages() -> list[Path]:
    """Every Markdown page."""
    return tracked("*.md")


def prose(text: str) -> str:
    """A page without its blocks of code."""
    return _FENCE.sub("", text)


def links(text: str) -> list[str]:
    """Targets of a page's links, in order; those in code are none."""
    return _LINK.findall(re.sub(r"`[^`\n]+`", "`code`", prose(text)))


def anchors(text: str) -> set[str]:
    """What `#...` may name on a page: its headings, as GitHub writes them."""
    found: set[str] = set()
    for heading in re.findall(r"^#{1,6} +(.+?)(?: +#+)?$", prose(text), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        numbered, number = slug, 0
        while numbered in found:
            number += 1
            numbered = f"{slug}-{number}"
        found.add(numbered)
    return found


def sections(text: str) -> dict[str, str]:
    """A page's parts by their heading of the second level."""
    parts = re.split(r"^## +(.+)$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@dataclass(frozen=True, slots=True)
class Command:
    """One command of a block of shell, its continuation lines and here-document included."""

    text: str
    status: int = 0
    """What it ends with, by a comment that says `exit status N`."""


def commands(text: str) -> Iterator[Command]:
    """The commands of a page's blocks of shell, in order."""
    for block in re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        pending: list[str] = []
        for line in block.splitlines():
            if not pending and (not line.strip() or line.startswith("#")):
                continue
            pending.append(line)
            command = "\n".join(pending)
            if _is_whole(command):
                status = re.search(r"#.*exit status (\d+)", command)
                yield Command(command, int(status[1]) if status else 0)
                pending = []
        if pending:
            raise AssertionError(f"a command without an end: {pending}")


def outputs(text: str) -> Iterator[tuple[list[Command], list[str]]]:
    """The commands of each block of shell that a block of output follows at once, and the lines of that."""
    fences = list(re.finditer(r"^```(\w*)\n(.*?)^```\n", text, re.MULTILINE | re.DOTALL))
    for block, told in pairwise(fences):
        if block[1] == "sh" and told[1] in ("", "json") and block.end() == told.start():
            yield list(commands(block[0])), told[2].splitlines()


def _is_whole(command: str) -> bool:
    """Whether a shell would run it, rather than wait for more."""
    if command.endswith("\\"):
        return False
    if here := re.search(r"<<-?\s*'?(\w+)'?", command):
        return bool(re.search(rf"^{here[1]}$", command, re.MULTILINE))
    return subprocess.run(["bash", "-nc", command], check=False, capture_output=True).returncode == 0
