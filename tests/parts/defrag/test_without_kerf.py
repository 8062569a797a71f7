"""The process that works out moves does not go on without the Kerf that it answers."""

import pytest

from tests.explain.killed import ends_when_kerf_was_killed
from tests.test_weights import loaded_by


@pytest.mark.parametrize("question", [b'{"gpus": 1}', b""], ids=["after-its-question", "before-any"])
def test_it_ends_when_its_kerf_was_killed(question: bytes) -> None:
    ends_when_kerf_was_killed("extender.parts.defrag.process", question)


def test_it_loads_what_it_needs() -> None:
    assert loaded_by("extender.parts.defrag.process", ["fastapi", "pydantic", "rich"]) == []
