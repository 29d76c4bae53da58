"""What holds for every test."""

from hypothesis import HealthCheck, settings

# A busy machine is no bug: how long an example takes, or its making, says nothing here.
settings.register_profile("ottla", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ottla")
