"""The note on a node in quarantine."""

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


def node(text: str) -> objects.Node:
    return msgspec.convert({"metadata": {"annotations": {SET_ASIDE: text}}}, objects.Node)


def test_which_nodes_are_in_quarantine_and_which_are_exempt() -> None:
    assert (num_failed({}), is_exempt({})) == (0, False)
    on_trial = TEXT.replace("}", ',"trial":true}')
    for text, failed, exempt in (("", 0, False), (" Never\n", 0, True), (TEXT, 7, False), (on_trial, 0, False)):
        assert (num_failed({SET_ASIDE: text}), is_exempt({SET_ASIDE: text})) == (failed, exempt)
    assert as_noted(NodeOffer(), node(TEXT), NodeReading(sets_aside=True)).set_aside == 7
    assert as_noted(NodeOffer(), node(TEXT), NodeReading()).set_aside == 0, "there is no quarantine"


def test_a_note_that_can_not_be_parsed_is_left_alone() -> None:
    for text in (
        "no",
        "[" * 2000,
        TEXT[:-1] + " " * 2000 + "}",
        TEXT.replace("7", "0"),
        TEXT.replace("7", "1e99"),
        TEXT.replace("1800001800", str(2**40)),
        TEXT.replace("boot-1", "b" * 200),
    ):
        with pytest.raises(UnreadableError, match=SET_ASIDE):
            read_note({SET_ASIDE: text})
        assert is_exempt({SET_ASIDE: text})
        noted = as_noted(NodeOffer(), node(text), NodeReading(sets_aside=True))
        assert (noted.set_aside, len(noted.warnings)) == (0, 1)
