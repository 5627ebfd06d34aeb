"""Settings that every test of phantom_core shares."""

from hypothesis import settings

# A slow example is no failure: the machine may be busy.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")
