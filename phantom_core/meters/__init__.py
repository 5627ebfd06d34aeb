"""Energy meters behind one interface (`base`): what a device used, how that was read, how sure it is. No torch.

`choose` opens the best meter of a device: `nvml_meter` (over `nvml_library`, `nvml_board`, `nvml_lookup`),
`amd_meter`, `rapl`, `cpu_estimate`, or `unreadable`. `windows` makes energies of readings, `integration` of
power samples; `sampling` takes those; `idle` measures the baseline; `company` tells who is on
a board. docs/energy.md explains all of it.
"""
