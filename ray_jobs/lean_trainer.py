"""Ray Train's trainer without the helpers that an experiment has no use for, each an actor with a process of its own.

Every such process loads Ray Train before the ranks begin: on two cores, seconds of each start. What is left out:

- the manager of Ray Data's datasets: ranks load their data themselves;
- the cleaner of placement groups, which only matters where a driver outlives its controller: ours ends with it,
  and Ray frees what an ended job held;
- the watcher for nodes that are about to be taken away: a rank that is lost ends the group anyway.
"""

import os

from ray.train.v2._internal.callbacks.datasets import DatasetsCallback
from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback
from ray.train.v2._internal.constants import ENABLE_PREEMPTION_WATCHER_ENV_VAR
from ray.train.v2._internal.execution.callback import RayTrainCallback
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
from ray.train.v2.api.result import Result

NOT_NEEDED = (DatasetsCallback, PlacementGroupCleanerCallback)


class LeanTrainer(DataParallelTrainer):  # type: ignore[misc]
    """`DataParallelTrainer`, less three actors."""

    def fit(self) -> Result:
        """Runs the ranks to their end; raises what `DataParallelTrainer.fit` does."""
        # Ray Train hands it on to its controller, which has no other switch for it.
        os.environ[ENABLE_PREEMPTION_WATCHER_ENV_VAR] = "0"
        return super().fit()

    def _create_default_callbacks(self) -> list[RayTrainCallback]:
        callbacks = super()._create_default_callbacks()
        return [callback for callback in callbacks if not isinstance(callback, NOT_NEEDED)]
