"""Measured against peers in the same run; `results/` holds what real hardware gave."""
