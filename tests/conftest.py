"""Fixtures that every test may ask for, how long examples may take, and what a run says at its end."""

import os
from collections.abc import Iterator

import pytest
import re2
from hypothesis import HealthCheck, settings

from tests.changes import PROMISED, belongings, belongs, changed_files
from tests.golden import Golden
from tests.skips import not_tested

pytest_plugins = [
    "tests.api.fixtures",
    "tests.controlplane.fixtures",
    "tests.docs.example",
    "tests.e2e.fixtures",
    "tests.realnode.fixtures",
]

# Go programs collect garbage less often: there is memory enough, and the cores are what the tests wait for.
os.environ.setdefault("GOGC", "400")

# A busy machine is no fault: without this an example that takes 0.2 s is one.
settings.register_profile("kerf", deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", settings.get_profile("kerf"), max_examples=10)  # make test-unit
settings.load_profile("kerf")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--changed`, for `make test-changed`, and `--goldens`, for `make goldens`."""
    told = "Of the nightly tests those alone that belong to what differs from the merge base with main."
    parser.addoption("--changed", action="store_true", help=told)
    parser.addoption("--goldens", action="store_true", help="Those tests alone that have golden files: rewrite them.")


def pytest_itemcollected(item: pytest.Item) -> None:
    """A test on a control plane is nightly; one that guarantees.md names belongs to each verdict."""
    if item.get_closest_marker("controlplane") and not item.get_closest_marker("nightly"):
        item.add_marker(pytest.mark.nightly(of=belongings(item.nodeid.partition("::")[0])))
    if getattr(item, "originalname", "") in PROMISED:
        item.add_marker(pytest.mark.verdict)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With `--changed`, leave out nightly tests that no change asks for; with `--goldens`, those without golden files.

    Files with long tests come first, so that no worker runs one alone at the end.
    """
    long = {item.path for item in items if item.get_closest_marker("slow") or item.get_closest_marker("controlplane")}
    items.sort(key=lambda item: item.path not in long)
    if config.getoption("changed"):
        changed = changed_files(config.rootpath)
        left_out = [
            item
            for item in items
            if (mark := item.get_closest_marker("nightly")) and not belongs(mark.kwargs.get("of", ()), changed)
        ]
    elif config.getoption("goldens"):
        left_out = [item for item in items if "golden" not in getattr(item, "fixturenames", ())]
    else:
        return
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in set(left_out)]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Iterator[None]:
    """Behind all other summaries; where tests run in processes of their own, it is asked in the first alone."""
    yield
    if told := not_tested(terminalreporter.stats.get("skipped", ())):
        terminalreporter.write_line(told, yellow=True)


@pytest.fixture
def golden(pytestconfig: pytest.Config) -> Golden:
    """Holds what a surface says against its file in tests/goldens: `golden("reasons.txt", text)`."""
    return Golden(rewrite=bool(pytestconfig.getoption("goldens")))


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that re2 compiles, as it does."""
    texts: list[str] = []
    compile_text = re2.compile

    def count(text: str, options: re2.Options) -> object:
        texts.append(text)
        return compile_text(text, options)

    monkeypatch.setattr(re2, "compile", count)
    return texts
