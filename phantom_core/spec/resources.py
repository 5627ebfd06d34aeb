"""What an experiment may take from the cluster, and for how long."""

from typing import Literal

from pydantic import Field

from phantom_core.spec.fields import Number, SpecModel, Whole


class ResourceSpec(SpecModel):
    """What the experiment may take from the cluster."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto`: GPUs if the cluster has enough for the largest arm, CPUs otherwise."""
    priority: Whole = Field(0, ge=-100, le=100)
    """Place in the queue: what has a higher one begins first, and among equals those who submit take turns. Above 0 it
    pushes past others, and so needs an admin key where keys are in use."""
    cpus_per_rank: Number = Field(1.0, gt=0, le=256)
    """CPU cores reserved for each rank."""
    scheduling_deadline_s: Number = Field(600.0, gt=0, le=604_800)
    """Seconds that the experiment may wait for its worker group before it fails with `scheduling_deadline`."""
    deadline_s: Number = Field(14_400.0, gt=0, le=2_592_000)
    """Seconds from its first start on, all attempts together, after which the experiment is stopped and failed."""
    progress_deadline_s: Number = Field(300.0, ge=60, le=604_800)
    """Seconds for which all ranks may live without one of them getting on (a step, an evaluation, a window's edge)
    before they count as stuck and another attempt is made. Set-up may take half an hour without; windows, evaluations
    and checkpoints ten times what steps measured so far, or their size, let expect."""
    checkpoint_interval_s: Number | None = Field(600.0, gt=0, le=604_800)
    """Seconds of a run after which its ranks save its state between two windows, so that another attempt goes on from
    there after a fault of the machines; null saves nothing, and a run that is cut off begins anew."""
