"""What is written on a node that is set aside, and what of it is believed."""

import msgspec
import pytest

from extender.core.resources.nodes import NodeOffer, NodeReading
from extender.kube import objects
from extender.plugins.nodes import as_noted
from extender.plugins.protocol import UnreadableError
from extender.plugins.set_aside import SET_ASIDE, Note, is_exempt, num_failed, read_note, text_of

NOTE = Note(7, 3, 1_800_000_000, 1_800_001_800, 2, "boot-1")
TEXT = '{"pods":7,"namespaces":3,"since":1800000000,"until":1800001800,"times":2,"boot":"boot-1"}'


def test_a_note_is_read_as_it_was_written() -> None:
    assert text_of(NOTE) == TEXT
    assert read_note({SET_ASIDE: TEXT}) == NOTE


@pytest.mark.parametrize(
    ("text", "failed", "exempt"),
    [
        pytest.param(None, 0, False, id="nothing"),
        pytest.param("", 0, False, id="empty"),
        pytest.param("never", 0, True, id="never"),
        pytest.param(" Never\n", 0, True, id="never, by hand"),
        pytest.param(TEXT, 7, False, id="set aside"),
        pytest.param(TEXT.replace("}", ',"trial":true}'), 0, False, id="on trial"),
    ],
)
def test_who_is_set_aside_and_who_never_is(text: str | None, failed: int, exempt: bool) -> None:
    annotations = {} if text is None else {SET_ASIDE: text}
    assert (num_failed(annotations), is_exempt(annotations)) == (failed, exempt)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("no", id="a word"),
        pytest.param("[" * 2000, id="deep"),
        pytest.param(TEXT[:-1] + " " * 2000 + "}", id="long"),
        pytest.param(TEXT.replace("7", "0"), id="no pods"),
        pytest.param(TEXT.replace("7", "1e99"), id="no whole number"),
        pytest.param(TEXT.replace("1800001800", str(2**40)), id="beyond all calendars"),
        pytest.param(TEXT.replace("boot-1", "b" * 200), id="a long name"),
    ],
)
def test_what_cannot_be_read_sets_nothing_aside_and_is_left_alone(text: str) -> None:
    with pytest.raises(UnreadableError, match="set-aside is ignored"):
        read_note({SET_ASIDE: text})
    assert is_exempt({SET_ASIDE: text})
    node = msgspec.convert({"metadata": {"annotations": {SET_ASIDE: text}}}, objects.Node)
    (warning,) = as_noted(NodeOffer(), node, NodeReading(sets_aside=True)).warnings
    assert warning.endswith("the node takes pods")


def test_a_note_counts_only_where_nodes_are_set_aside() -> None:
    node = msgspec.convert({"metadata": {"annotations": {SET_ASIDE: TEXT}}}, objects.Node)
    assert as_noted(NodeOffer(), node, NodeReading(sets_aside=True)).set_aside == 7
    assert as_noted(NodeOffer(), node, NodeReading()).set_aside == 0
