"""What Ghostwatt knows and decides: no HTTP framework, no torch."""
