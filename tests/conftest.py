"""Fixtures that every test may ask for."""

pytest_plugins = ["tests.controlplane.fixtures", "tests.e2e.fixtures"]
