"""The `ghostwatt` command."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from client import demo as demonstration
from client.client import DEFAULT_URL, GhostwattClient
from client.command_support import print_json, read_document, reported
from client.comparison_table import ComparisonTable, answer_sentences, is_comparable
from client.consoles import messages, output
from client.errors import ExitCode
from client.find_command import find
from client.models import Comparison, ExperimentDetail
from client.options import ApiKey, AsJson, ExperimentId, SpecFile, Timeout, Url
from client.progress import ExperimentProgress, Waiting, state_text
from client.queue_commands import queue_commands
from client.service_commands import key_commands, run_service
from client.tables import experiments_table, runs_table, validation_table

EPILOG = """\
Exit codes: 0 done (of watch, submit --wait and demo: the experiment succeeded); 1 the experiment failed, was
cancelled or lost; 2 the command line or the spec is wrong; 3 no service answers, or none could be started;
4 no verdict; 5 the service refused (unknown id, missing key, wrong state); 6 the service met an error
of its own; 7 --timeout passed; 130 ctrl-c; 143 SIGTERM.

Variables: GHOSTWATT_URL, the service's address; GHOSTWATT_API_KEY, the key to send.
"""

app = typer.Typer(
    help="How many joules a way of splitting a large feed-forward network costs, and how many another saves.",
    epilog=EPILOG,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
app.add_typer(key_commands, name="keys")
app.add_typer(queue_commands, name="queue")
app.command()(find)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command and ends the process with its exit code."""
    app(arguments, prog_name="ghostwatt")


@app.command()
@reported
def submit(
    file: SpecFile,
    wait: Annotated[
        bool, typer.Option("--wait", help="Follow it to its end and print the comparison.")
    ] = False,
    idempotency_key: Annotated[
        str | None, typer.Option(help="Repeats with the same key and spec make no second experiment.")
    ] = None,
    timeout: Timeout = None,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
) -> ExitCode | None:
    """Submits an experiment and prints its id."""
    document = read_document(file)
    with GhostwattClient(url, api_key) as client:
        submitted = client.submit(document, idempotency_key=idempotency_key)
        if not wait:
            print_json(submitted) if as_json else print(submitted.id)
            return None
        if not as_json:
            print(submitted.id)
        return _follow(client, submitted.id, timeout, as_json)


@app.command()
@reported
def watch(
    experiment_id: ExperimentId,
    timeout: Timeout = None,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
) -> ExitCode | None:
    """Follows an experiment to its end, then prints the comparison. Ctrl-c leaves it running."""
    with GhostwattClient(url, api_key) as client:
        return _follow(client, experiment_id, timeout, as_json)


@app.command("list")
@reported
def list_experiments(
    state: Annotated[str | None, typer.Option(help="Only those in this state.")] = None,
    name: Annotated[str | None, typer.Option(help="Only those whose name contains this.")] = None,
    tag: Annotated[str | None, typer.Option(help="Only those with this tag, as key=value.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 20,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
) -> None:
    """Lists experiments, newest first."""
    with GhostwattClient(url, api_key) as client:
        experiments = list(client.experiments(state=state, name=name, tag=tag, limit=limit))
    if as_json:
        print_json(experiments)
    else:
        output().print(experiments_table(experiments))


@app.command()
@reported
def show(
    experiment_id: ExperimentId, as_json: AsJson = False, url: Url = DEFAULT_URL, api_key: ApiKey = None
) -> None:
    """Shows an experiment and its runs."""
    with GhostwattClient(url, api_key) as client:
        experiment = client.experiment(experiment_id)
        if as_json:
            print_json(experiment)
            return
        runs = client.runs(experiment_id)
    console = output()
    console.print(Text(f"{experiment.name}  ") + state_text(experiment), soft_wrap=True)
    if experiment.ray_dashboard_url:
        console.print(Text(f"Ray's dashboard: {experiment.ray_dashboard_url}"), soft_wrap=True)
    console.print(runs_table(runs))


@app.command()
@reported
def compare(
    experiment_id: ExperimentId,
    baseline: Annotated[
        str | None, typer.Option(help="Arm to compare with; the experiment's own by default.")
    ] = None,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
) -> ExitCode:
    """Prints the comparison: ratio with interval, verdict, flags. 4 if no arm has a verdict yet."""
    with GhostwattClient(url, api_key) as client:
        comparison = client.comparison(experiment_id, baseline=baseline)
    _print_comparison(output(), comparison, as_json)
    return ExitCode.OK if is_comparable(comparison) else ExitCode.NOT_COMPARABLE


@app.command()
@reported
def validate(
    file: SpecFile, as_json: AsJson = False, url: Url = DEFAULT_URL, api_key: ApiKey = None
) -> ExitCode:
    """Says what a spec would need, without running it. 2 if it would be refused."""
    document = read_document(file)
    with GhostwattClient(url, api_key) as client:
        validation = client.validate(document)
    if as_json:
        print_json(validation)
    else:
        output().print(validation_table(validation))
    return ExitCode.OK if validation.valid else ExitCode.USAGE


@app.command()
@reported
def cancel(
    experiment_id: ExperimentId, as_json: AsJson = False, url: Url = DEFAULT_URL, api_key: ApiKey = None
) -> None:
    """Asks an experiment to end. It is cancelled once its job has stopped."""
    with GhostwattClient(url, api_key) as client:
        answer = client.cancel(experiment_id)
    print_json(answer) if as_json else print(f"{answer.id} will be cancelled; it is {answer.state} now")


@app.command()
@reported
def delete(
    experiment_id: ExperimentId,
    yes: Annotated[
        bool, typer.Option("--yes", help="Don't ask; needed where there is no terminal to ask on.")
    ] = False,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
) -> ExitCode | None:
    """Deletes an experiment and all that was measured. One that has not ended is cancelled first."""
    if not yes:
        if not sys.stdin.isatty():
            messages().print("this deletes measurements; say --yes if that is meant")
            return ExitCode.USAGE
        typer.confirm(f"Delete {experiment_id} and all that was measured?", abort=True)
    with GhostwattClient(url, api_key) as client:
        client.delete(experiment_id)
    print(f"{experiment_id} is deleted, or will be once its job has stopped")
    return None


@app.command()
@reported
def serve(
    host: Annotated[
        str | None, typer.Option(help="Address to listen on; GHOSTWATT_HOST or 127.0.0.1.")
    ] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65_535, help="Port; GHOSTWATT_PORT or 8411.")] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="Folder for everything that the service keeps.")
    ] = None,
) -> ExitCode:
    """Serves until ctrl-c. Starts a Ray head of its own unless RAY_ADDRESS names a cluster."""
    return run_service(host, port, data_dir)


@app.command()
@reported
def demo(
    once: Annotated[bool, typer.Option("--once", help="End after the answer instead of serving on.")] = False,
    data_dir: Annotated[
        Path | None, typer.Option(help="Folder to keep everything in; a new one under .ghostwatt by default.")
    ] = None,
) -> ExitCode:
    """Answers one question from nothing. Starts a service, runs tensor against phantom parallelism and its
    controls on real data, prints the comparison, and serves on until ctrl-c.
    """
    folder = demonstration.new_data_dir() if data_dir is None else data_dir.absolute()
    return demonstration.run_demo(demonstration.Demo(folder, once), output())


def _follow(client: GhostwattClient, experiment_id: str, timeout_s: float | None, as_json: bool) -> ExitCode:
    """Waits with progress on standard error, so that standard output holds the answer alone."""
    try:
        with Waiting(messages()) as waiting:
            progress = ExperimentProgress(waiting, client.runs)
            experiment = client.watch(experiment_id, timeout_s=timeout_s, on_change=progress.update)
    except KeyboardInterrupt:
        messages().print(
            f"{experiment_id} goes on; `ghostwatt watch {experiment_id}` looks again", soft_wrap=True
        )
        raise
    return _answer(client, experiment, as_json)


def _answer(client: GhostwattClient, experiment: ExperimentDetail, as_json: bool) -> ExitCode:
    comparison = client.comparison(experiment.id)
    _print_comparison(output(), comparison, as_json)
    if experiment.state != "succeeded":
        messages().print(Text("the experiment ") + state_text(experiment), soft_wrap=True)
        return ExitCode.EXPERIMENT_ENDED_BADLY
    return ExitCode.OK


def _print_comparison(console: Console, comparison: Comparison, as_json: bool) -> None:
    if as_json:
        print_json(comparison)
        return
    console.print(ComparisonTable(comparison))
    for sentence in answer_sentences(comparison):
        console.print(Text(sentence), soft_wrap=True)
