"""Runs the demo with a service whose jobs train nothing: `python -m tests.client.demo_driver DATA_DIR [--once]`."""

import os
import sys
from pathlib import Path

from client import demo
from client.command_support import reported
from client.consoles import output
from client.service_process import ServiceProcess
from phantom_core.spec import load_spec

SPEC = """
name: small demo
task: {kind: digits}
model: {width: 64}
training: {stop: {kind: target_loss, target_loss: 0.2}}
arms:
  - {name: tensor, strategy: tensor, world_size: 2}
  - {name: phantom, strategy: phantom, ghosts: 4, world_size: 2}
controls: false
measurement: {rounds: 3}
"""


def make_service(environment: dict[str, str], log: Path) -> ServiceProcess:
    module = os.environ.get("DEMO_SERVICE", "tests.api.simulated_service")
    command = [sys.executable, "-m", module, "serve", "--until-stdin-closes"]
    return ServiceProcess(
        environment, log=log, command=command, stop_s=float(os.environ.get("DEMO_STOP_S", "30"))
    )


if __name__ == "__main__":
    setattr(demo, "choose_demo", lambda fits: load_spec(SPEC))  # noqa: B010 - a name it only imports
    settings = demo.Demo(Path(sys.argv[1]), once="--once" in sys.argv)
    reported(lambda: demo.run_demo(settings, output(), make_service=make_service))()
