"""Fixtures that every test may ask for, and how long examples may take."""

from hypothesis import settings

pytest_plugins = ["tests.controlplane.fixtures", "tests.e2e.fixtures"]

# A busy machine is no fault: without this an example that takes 0.2 s is one.
settings.register_profile("kerf", parent=settings(), deadline=None)
settings.load_profile("kerf")
