"""What holds for all tests."""

from hypothesis import HealthCheck, settings

# A slow machine is no fault of the code: what is too slow to be generated in time elsewhere is generated all the same.
settings.register_profile("tarry", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tarry")
