"""Options and arguments that commands share."""

from pathlib import Path
from typing import Annotated

import typer

Url = Annotated[str, typer.Option(envvar="GHOSTWATT_URL", help="Address of the service.")]
ApiKey = Annotated[
    str | None,
    typer.Option(envvar="GHOSTWATT_API_KEY", hidden=True, help="Key; better set in the environment."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the service's answer as JSON.")]
ExperimentId = Annotated[str, typer.Argument(metavar="ID", help="Id of the experiment.")]
SpecFile = Annotated[
    Path,
    typer.Argument(metavar="FILE", help="Spec in YAML or JSON; - reads standard input.", allow_dash=True),
]
Timeout = Annotated[
    float | None, typer.Option(min=0, help="Seconds to wait at most; the experiment goes on.")
]
