"""How often an experiment's ranks give signs of life: jobs keep to it, services count on it."""

SIGN_S = 20.0
"""Seconds between two signs of all ranks together (`protocol.Alive`)."""
