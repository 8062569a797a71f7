"""Texts of manifests: documents, lists and JSON; what is wrong and where; and texts that are to do harm."""

import contextlib
import subprocess
import sys

import pytest

from extender.explain.manifests.documents import MAX_CHARS, DocumentError, read_documents, read_texts
from tests.spending import at_most

LAUGHS = 'a: &a ["lol", "lol"]\n' + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
MAX_KIB = 640 * 1024
MERGES = f"a: &a {{x: 1}}\nb: &b {{<<: [{'*a, ' * 1_000}]}}\nc: {{<<: [{'*b, ' * 1_000}]}}\n"


def manifests(text: str) -> list[object]:
    return [document.manifest for document in read_documents(text)]


def test_documents_are_read_one_by_one_and_those_of_lists_in_their_place() -> None:
    text = "# first\n---\na: 1\n---\n---\nkind: List\nitems: [{b: 2}, {kind: PodList, items: [{c: 3}]}]\n---\nd: 4\n"
    documents = read_documents(text)
    assert [document.manifest for document in documents] == [{"a": 1}, {"b": 2}, {"c": 3}, {"d": 4}]
    assert [document.place for document in documents] == [
        "document 1",
        "document 3, items[0]",
        "document 3, items[1], items[0]",
        "document 4",
    ]


def test_several_texts_are_told_apart_and_bounded_together() -> None:
    documents = read_texts(["a: 1", "b: 2\n---\nc: 3"], "manifest")
    assert [document.place for document in documents] == [
        "manifest[0], document 1",
        "manifest[1], document 1",
        "manifest[1], document 2",
    ]
    with pytest.raises(DocumentError, match=r"^manifest\[1\], document 1, line 1: \*x is an unknown anchor"):
        read_texts(["a: 1", "b: *x"], "manifest")
    with pytest.raises(DocumentError, match=r"^manifest: more than 1,048,576 characters together"):
        read_texts(["#" * MAX_CHARS, "#"], "manifest")


def test_json_is_taken_with_the_tabs_that_yaml_refuses() -> None:
    assert manifests('{\n\t"a": [1]\n}') == [{"a": [1]}]


def test_dates_are_text_and_keys_are_text_and_what_is_null_is_not_there() -> None:
    assert manifests("a: 2020-13-01\n5: x\non: y\nb: null\nc: {d: null}\n") == [
        {"a": "2020-13-01", "5": "x", "true": "y", "c": {}}
    ]


@pytest.mark.parametrize("text", ["12:30", "-190:20:30", "1:30.5", "!!int 1:30", "!!float '1:30.5'", "!!timestamp x"])
def test_what_only_yaml_1_1_reads_as_a_number_or_a_date_is_text(text: str) -> None:
    assert manifests(f"a: {text}") == [{"a": text.rsplit(maxsplit=1)[-1].strip("'")}]


def test_numbers_of_64_bits_are_numbers() -> None:
    assert manifests("a: [-9223372036854775808, 18446744073709551615, 0x1f, 0b11, 017, 1.5]") == [
        {"a": [-(2**63), 2**64 - 1, 31, 3, 15, 1.5]}
    ]


def test_anchors_stand_for_what_they_name() -> None:
    assert manifests("a: &a {x: 1}\nb: *a\nc: {<<: *a, y: 2}\n") == [
        {"a": {"x": 1}, "b": {"x": 1}, "c": {"x": 1, "y": 2}}
    ]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        pytest.param("a: 1\n---\nb: [1}\n", "^document 2, invalid YAML: .*, line 3, column 6", id="syntax"),
        pytest.param("a: 1\n---\n- 1", r"^document 2, line 3 \(a list\): expected an object, not a list", id="list"),
        pytest.param("hello", "expected an object, not text", id="text"),
        pytest.param("a: *b", r"^document 1, line 1: \*b is an unknown anchor", id="no anchor"),
        pytest.param("a: &a [*a]", r"\*a is an unknown anchor", id="it holds itself"),
        pytest.param("a: &a 1\n---\nb: *a", r"^document 2, line 3: \*a stands", id="an anchor of another document"),
        pytest.param("[" * 5_000, "^document 1, line 1: nested deeper than 100 levels", id="deep"),
        pytest.param('{"a":' * 5_000, "nested deeper than 100 levels", id="deep JSON"),
        pytest.param("- " * 5_000, "nested deeper than 100 levels", id="deep lists"),
        pytest.param(LAUGHS, "^document 1, line 7: too large with its anchors expanded", id="laughs"),
        pytest.param(MERGES, "too much", id="merges"),
        pytest.param(f'a: &a "{"x" * 900_000}"\nb: [{"*a," * 20_000}]', "too much", id="long text again and again"),
        pytest.param("!!python/object/apply:os.system [x]", "invalid YAML: could not determine a constructor", id="tags"),
        pytest.param("? [a]\n: b", "invalid YAML: found unhashable key", id="a list as a key"),
        pytest.param("a: " + "9" * 5_000, "a number of more than 100 characters, line 1, column 4", id="without end"),
        pytest.param("a: 1\nb: 0x" + "f" * 5_000, "a number of more than 100 characters, line 2", id="hexadecimal"),
        pytest.param('{"a": -' + "9" * 5_000 + "}", "a number of more than 100 characters", id="in JSON"),
        pytest.param("a: 1." + "9" * 5_000, "a number of more than 100 characters", id="a float without end"),
        pytest.param("a: 18446744073709551616", "a number of more than 64 bits, line 1, column 4", id="65 bits"),
        pytest.param("a: -9223372036854775809", "a number of more than 64 bits", id="65 bits below zero"),
        pytest.param("a: !!int ''", "a number that can't be read, line 1", id="nothing as a number"),
        pytest.param("a: !!float x", "a number that can't be read", id="text as a number"),
        pytest.param("a: !!bool x", "true or false that can't be read", id="text as true or false"),
        pytest.param("%TAG !e! x:\n" * 101 + "---\na: 1", "more than 100 directives", id="directives"),
        pytest.param("\x00", "invalid YAML", id="no text"),
        pytest.param("x" * (MAX_CHARS + 1), "more than 1,048,576 characters", id="long"),
        pytest.param("---\n{}\n" * 1_001, "more than 1,000 documents", id="many documents"),
        pytest.param("items: [" + "{}, " * 1_001 + "]\nkind: List", "more than 1,000 objects", id="many objects"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_its_place(text: str, fault: str) -> None:
    with pytest.raises(DocumentError, match=fault):
        read_documents(text)


def test_the_line_of_what_is_wrong_is_found() -> None:
    text = "---\nkind: A\n---\n# of two\nkind: List\nitems:\n- {}\n- metadata:\n    name: x\n    labels: 3\n"
    second = read_documents(text)[2]
    assert str(second.fault("why", "metadata.labels")) == "document 2, items[1], line 10 (x): metadata.labels: why"
    assert str(second.fault("why", "metadata.nothing")).startswith("document 2, items[1], line 8 (x)")
    assert str(second.fault("why")) == "document 2, items[1], line 8 (x): why"


_EQUAL_HASHES = "".join(f"{1 + number * (2**61 - 1)}: 1\n" for number in range(1, 40_000))


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("a: 1" + ":1" * 500_000, id="base 60"),
        pytest.param("a: !!int '1" + ":1" * 500_000 + "'", id="tagged base 60"),
        pytest.param("a: 1" + ":1" * 500_000 + ".5", id="base 60 float"),
        pytest.param("a: 1" + "_" * 1_000_000 + "x", id="nearly a number"),
        pytest.param("a: 0" + "7" * 1_000_000, id="octal"),
        pytest.param(_EQUAL_HASHES, id="keys of equal hashes"),
        pytest.param("".join(f"%TAG !e{number}! x:\n" for number in range(50_000)) + "---\na: 1", id="directives"),
        pytest.param("a: !!timestamp '2001-01-01" + " " * 1_000_000 + "x'", id="nearly a date"),
        pytest.param("a: !!binary " + "A" * 1_000_000, id="binary"),
        pytest.param("#" * 1_000_000 + "\na: 1", id="a long comment"),
        pytest.param("#\n" * 500_000 + "a: 1", id="many comments"),
        pytest.param(("a: " + "[" * 90 + "]" * 90 + "\n---\n") * 300, id="deep flow"),
    ],
)
def test_no_text_takes_more_than_its_length(text: str) -> None:
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


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(LAUGHS, id="laughs"),
        pytest.param("[" + "a," * 520_000 + "]", id="a list", marks=pytest.mark.slow),
        pytest.param("{" + "a," * 520_000 + "}", id="an object", marks=pytest.mark.slow),
        pytest.param("a: &a {}\n" * 100_000, id="anchors", marks=pytest.mark.slow),
    ],
)
def test_the_largest_text_takes_seconds_and_megabytes(text: str) -> None:
    """In a process of its own: three times what it takes, and far from the minute that an answer may take."""
    read = subprocess.run([sys.executable, "-c", _READS], input=text, capture_output=True, text=True, check=True)
    processor_s, peak_kib = read.stdout.split()
    assert float(processor_s) < 20.0
    assert int(peak_kib) < MAX_KIB
