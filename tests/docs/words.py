"""Counts the words of the documentation and finds its long sentences: `python -m tests.docs.words [PAGE...]`.

A word is what stands between blanks, as `wc -w` counts. In the length of a sentence a span of code is one word, and
blocks of code, headings and links' targets are none; a cell of a table, an item of a list and a paragraph each end one.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.docs.pages import DOCS, ROOT, pages, prose

LONGEST = 35
"""Words that a sentence may have."""
OF_RELEASES = ROOT / "CHANGELOG.md"
"""Tells what was, in the words of its time."""

_LINK = re.compile(r"!?\[([^\]\[]*)\]\([^)\s]+\)")
_END = re.compile(r"(?<=[.!?])[)\"*_]*\s+(?=[\"*_`(\[]*[A-Z0-9`])")


def blocks(text: str) -> Iterator[str]:
    """Paragraphs, items of lists and cells of tables, each on one line; no headings and no code."""
    block: list[str] = []
    for line in [*prose(text).splitlines(), ""]:
        begins = re.match(r"\s*(?:[-*] |\d+\. |> |#|\|)", line)
        if begins or not line.strip():
            yield " ".join(block)
            block = []
        if line.lstrip().startswith("|"):
            yield from re.split(r"(?<!\\)\|", line)
        elif not line.startswith("#") and line.strip():
            block.append(re.sub(r"^\s*(?:[-*] |\d+\. |> )", "", line).strip())


def sentences(text: str) -> Iterator[str]:
    """The sentences of a page as a reader sees them, a span of code as one word."""
    for block in blocks(text):
        plain = _LINK.sub(r"\1", re.sub(r"`[^`\n]+`", "`code`", block))
        yield from (sentence for sentence in _END.split(plain) if sentence.strip())


def long_sentences(page: Path) -> list[str]:
    """What is longer than a sentence may be, each with its words."""
    counted = ((len(sentence.split()), sentence) for sentence in sentences(page.read_text()))
    return [f"{words}: {sentence}" for words, sentence in counted if words > LONGEST]


def main(chosen: list[str]) -> None:
    """Prints words and long sentences of the pages, or of the chosen ones and the long sentences themselves."""
    shown = [Path(name).resolve() for name in chosen] or [page for page in pages() if page != OF_RELEASES]
    of_docs = 0
    for page in shown:
        words, found = len(page.read_text().split()), long_sentences(page)
        of_docs += words if page.is_relative_to(DOCS) else 0
        print(f"{words:7,} words {len(found):4} sentences over {LONGEST} words  {page.relative_to(ROOT)}")
        if chosen:
            print(*found, sep="\n")
    print(f"{of_docs:7,} words below docs/")


if __name__ == "__main__":
    main(sys.argv[1:])
