"""What holds for every test."""

from hypothesis import settings

# A busy machine is no bug: how long an example takes says nothing here.
settings.register_profile("ottla", deadline=None)
settings.load_profile("ottla")
