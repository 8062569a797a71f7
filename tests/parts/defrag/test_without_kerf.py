"""The process that works out moves does not go on without the Kerf that it answers."""

import pytest

from tests.explain.killed import ends_when_kerf_was_killed
from tests.test_weights import loaded_by

pytestmark = pytest.mark.slow


def test_it_ends_when_its_kerf_was_killed() -> None:
    ends_when_kerf_was_killed("extender.parts.defrag.process", b'{"gpus": 1}')


def test_it_loads_what_it_needs() -> None:
    assert loaded_by("extender.parts.defrag.process", ["fastapi", "pydantic", "rich"]) == []
