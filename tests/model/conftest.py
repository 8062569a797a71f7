"""Settings of property tests: quick, and without a verdict on how busy the machine is."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "simulator", max_examples=60, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("simulator")
