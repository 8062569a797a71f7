"""No sentence of the pages is too long to be read once, and the count of words sees what it counts."""

from pathlib import Path

import pytest

from tests.docs.pages import ROOT, pages
from tests.docs.words import LONGEST, OF_RELEASES, long_sentences, sentences

PAGE = f"""# A heading of {"many " * 40} words

A sentence with [a link of three](https://example.com/{"x" * 9}). Another, of `one {"span " * 40}`.
It ends here, e.g. now.

| cell. | {"w " * 36}|
|---|---|
- {"item " * 35}
- {"item " * 36}

```
{"code " * 40}
```
"""


@pytest.mark.parametrize(
    "page",
    [page for page in pages() if page != OF_RELEASES],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_no_sentence_is_too_long(page: Path) -> None:
    assert not long_sentences(page)


def test_what_counts_as_a_sentence(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    assert list(sentences(PAGE))[:3] == [
        "A sentence with a link of three.",
        "Another, of `code`.",
        "It ends here, e.g. now.",
    ]
    assert [found.partition(":")[0] for found in long_sentences(page)] == [str(LONGEST + 1)] * 2
