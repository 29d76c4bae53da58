"""What holds for every test."""

from hypothesis import HealthCheck, settings

# A busy machine is no bug: how long an example takes, or its making, says nothing here.
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# As a simulation's seeds are: what a change breaks is told apart from what a new example has found.
settings.register_profile("ottla", settings.get_profile("explore"), derandomize=True)
settings.load_profile("ottla")
