"""Fixtures of the service's tests."""

import gc
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import pytest

from extender.api import openapi
from extender.api.posts import Call
from tests.api.services import Kerf, Shared, running
from tests.explain.here import Here


@pytest.fixture(autouse=True, scope="session")
def no_settings_from_environment() -> Iterator[None]:
    """Remove settings from the environment."""
    with pytest.MonkeyPatch.context() as patch:
        for name in os.environ:
            if name.startswith("KERF_") and not name.startswith(("KERF_TEST_", "KERF_REFERENCE")):
                patch.delenv(name)
        yield


@pytest.fixture(autouse=True, scope="session")
def rare_collections() -> None:
    """Freeze loaded objects and collect garbage as rarely as the service does."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


@pytest.fixture(autouse=True, scope="session")
def cached_schemas() -> Iterator[None]:
    """Cache the schemas of bodies: they are slow to make and equal for most services."""

    def schemas(calls: Sequence[Call], reads: Mapping[str, type]) -> dict[str, Any]:
        key = frozenset(kind for call in calls for kind in (call.asks, call.answers)), frozenset(reads.values())
        if key not in known:
            known[key] = components(calls, reads)
        return known[key]

    known: dict[object, dict[str, Any]] = {}
    components = openapi._components  # noqa: SLF001
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(openapi, "_components", schemas)
        yield


@pytest.fixture
def answered_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answer questions in this process instead of a child process."""
    monkeypatch.setattr("extender.explain.processes.Child", Here)


@pytest.fixture(scope="module")
def shared() -> Iterator[Shared]:
    """Services for tests that do not change them."""
    with ExitStack() as stack:
        yield Shared(stack)


@pytest.fixture
def kerf() -> Iterator[Kerf]:
    """Kerf in its default settings on the small cluster of `bodies`."""
    with running() as service:
        yield service
