"""Texts of manifests: documents, lists and JSON; what is wrong and where; and texts that are to do harm."""

import contextlib
import subprocess
import sys
from typing import Any

import pytest

from extender.explain.manifests.documents import MAX_CHARS, DocumentError, read_documents, read_texts
from tests.spending import at_most

LAUGHS = 'a: &a ["lol", "lol"]\n' + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
MERGES = f"a: &a {{x: 1}}\nb: &b {{<<: [{'*a, ' * 1_000}]}}\nc: {{<<: [{'*b, ' * 1_000}]}}\n"


def test_documents_are_read_one_by_one_and_those_of_lists_in_their_place() -> None:
    text = "# first\n---\na: 1\n---\n---\nkind: List\nitems: [{b: 2}, {kind: PodList, items: [{c: 3}]}]\n---\nd: 4\n"
    documents = read_documents(text)
    assert [document.manifest for document in documents] == [{"a": 1}, {"b": 2}, {"c": 3}, {"d": 4}]
    places = ["document 1", "document 3, items[0]", "document 3, items[1], items[0]", "document 4"]
    assert [document.place for document in documents] == places


def test_several_texts_are_told_apart_and_bounded_together() -> None:
    documents = read_texts(["a: 1", "b: 2\n---\nc: 3"], "manifest")
    places = ["manifest[0], document 1", "manifest[1], document 1", "manifest[1], document 2"]
    assert [document.place for document in documents] == places
    with pytest.raises(DocumentError, match=r"^manifest\[1\], document 1, line 1: \*x is an unknown anchor"):
        read_texts(["a: 1", "b: *x"], "manifest")
    with pytest.raises(DocumentError, match=r"^manifest: more than 1,048,576 characters together"):
        read_texts(["#" * MAX_CHARS, "#"], "manifest")


def test_values_are_read_as_kubernetes_reads_them() -> None:
    cases: list[tuple[str, dict[str, Any]]] = [
        ('{\n\t"a": [1]\n}', {"a": [1]}),  # JSON with tabs, which YAML refuses
        ("a: 2020-13-01\n5: x\non: y\nb: null\nc: {d: null}\n", {"a": "2020-13-01", "5": "x", "true": "y", "c": {}}),
        ("a: &a {x: 1}\nb: *a\nc: {<<: *a, y: 2}\n", {"a": {"x": 1}, "b": {"x": 1}, "c": {"x": 1, "y": 2}}),
        ("a: [0x1f, 0b11, 017, 1.5]", {"a": [31, 3, 15, 1.5]}),
        ("a: [-9223372036854775808, 18446744073709551615]", {"a": [-(2**63), 2**64 - 1]}),
        # What only YAML 1.1 reads as a number or a date
        *((f"a: {text}", {"a": text}) for text in ("12:30", "-190:20:30", "1:30.5")),
        *(("a: !!int 1:30", {"a": "1:30"}), ("a: !!float '1:30.5'", {"a": "1:30.5"}), ("a: !!timestamp x", {"a": "x"})),
    ]
    for text, manifest in cases:
        assert [document.manifest for document in read_documents(text)] == [manifest]


FAULTS = {
    "a: 1\n---\nb: [1}\n": "^document 2, invalid YAML: .*, line 3, column 6",
    "a: 1\n---\n- 1": r"^document 2, line 3 \(a list\): expected an object, not a list",
    "hello": "expected an object, not text",
    "a: *b": r"^document 1, line 1: \*b is an unknown anchor",
    "a: &a [*a]": r"\*a is an unknown anchor",
    "a: &a 1\n---\nb: *a": r"^document 2, line 3: \*a is an unknown anchor",
    "[" * 5_000: "^document 1, line 1: nested deeper than 100 levels",
    '{"a":' * 5_000: "nested deeper than 100 levels",
    LAUGHS: "^document 1, line 7: too large with its anchors expanded",
    MERGES: "too large",
    f'a: &a "{"x" * 900_000}"\nb: [{"*a," * 20_000}]': "too large",
    "!!python/object/apply:os.system [x]": "invalid YAML: could not determine a con",
    "? [a]\n: b": "invalid YAML: found unhashable key",
    "a: " + "9" * 5_000: "a number of more than 100 characters, line 1, column 4",
    "a: 1\nb: 0x" + "f" * 5_000: "a number of more than 100 characters, line 2",
    '{"a": -' + "9" * 5_000 + "}": "a number of more than 100 characters",
    "a: 1." + "9" * 5_000: "a number of more than 100 characters",
    "a: 18446744073709551616": "a number of more than 64 bits, line 1, column 4",
    "a: -9223372036854775809": "a number of more than 64 bits",
    "a: !!int ''": "a number that can't be read, line 1",
    "a: !!float x": "a number that can't be read",
    "a: !!bool x": "true or false that can't be read",
    "%TAG !e! x:\n" * 101 + "---\na: 1": "more than 100 directives",
    "\x00": "invalid YAML",
    "x" * (MAX_CHARS + 1): "more than 1,048,576 characters",
    "---\n{}\n" * 1_001: "more than 1,000 documents",
    "items: [" + "{}, " * 1_001 + "]\nkind: List": "more than 1,000 objects",
}


def test_what_is_wrong_is_told_with_its_place() -> None:
    for text, fault in FAULTS.items():
        with pytest.raises(DocumentError, match=fault):
            read_documents(text)


def test_the_line_of_what_is_wrong_is_found() -> None:
    text = "---\nkind: A\n---\n# of two\nkind: List\nitems:\n- {}\n- metadata:\n    name: x\n    labels: 3\n"
    second = read_documents(text)[2]
    assert str(second.fault("why", "metadata.labels")) == "document 2, items[1], line 10 (x): metadata.labels: why"
    assert str(second.fault("why", "metadata.nothing")).startswith("document 2, items[1], line 8 (x)")
    assert str(second.fault("why")) == "document 2, items[1], line 8 (x): why"


def test_no_text_takes_more_than_its_length() -> None:
    for text in (
        *("a: 1" + ":1" * 500_000, "a: !!int '1" + ":1" * 500_000 + "'", "a: 1" + ":1" * 500_000 + ".5"),  # base 60
        "a: 1" + "_" * 1_000_000 + "x",
        "a: 0" + "7" * 1_000_000,
        "".join(f"{1 + number * (2**61 - 1)}: 1\n" for number in range(1, 40_000)),  # keys of equal hashes
        "".join(f"%TAG !e{number}! x:\n" for number in range(50_000)) + "---\na: 1",
        "a: !!timestamp '2001-01-01" + " " * 1_000_000 + "x'",
        "a: !!binary " + "A" * 1_000_000,
        *("#" * 1_000_000 + "\na: 1", "#\n" * 500_000 + "a: 1"),
        ("a: " + "[" * 90 + "]" * 90 + "\n---\n") * 300,
    ):
        with at_most(3.0), contextlib.suppress(DocumentError):
            read_documents(text)


_READS = """
import sys, time
from pathlib import Path
from extender.explain.manifests.documents import DocumentError, read_documents
try:
    read_documents(sys.stdin.read())
    sys.exit("it was read")
except DocumentError:
    status = Path("/proc/self/status").read_text()
    print(time.process_time(), status.partition("VmHWM:")[2].split()[0])
"""


LARGE = ("[" + "a," * 520_000 + "]", "{" + "a," * 520_000 + "}", "a: &a {}\n" * 100_000)


@pytest.mark.parametrize(
    "text",
    [LAUGHS, *(pytest.param(text, marks=pytest.mark.slow) for text in LARGE)],
    ids=["laughs", "list", "object", "anchors"],
)
def test_the_largest_text_takes_seconds_and_megabytes(text: str) -> None:
    """In its own process: three times what it takes, far below the minute that an answer may take."""
    read = subprocess.run([sys.executable, "-c", _READS], input=text, capture_output=True, text=True, check=True)
    processor_s, peak_kib = read.stdout.split()
    assert float(processor_s) < 20.0
    assert int(peak_kib) < 640 * 1024
