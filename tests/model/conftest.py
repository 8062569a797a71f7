"""How the tests of the simulator run in a quick look."""

import os

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """`make test-unit` runs the engine's functions as the Python that they are: compiling takes a process 40 s.

    That what is compiled does the same, `make test` tells, and whoever sets NUMBA_DISABLE_JIT=0.
    """
    if config.getoption("hypothesis_profile") == "quick":
        os.environ.setdefault("NUMBA_DISABLE_JIT", "1")
