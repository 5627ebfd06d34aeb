"""Energy meters: NVML, RAPL and a labelled estimate behind one interface. Loads no torch."""
