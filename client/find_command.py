"""`ghostwatt find`: verdicts across experiments."""

from datetime import UTC, datetime
from typing import Annotated, Literal

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from client.client import DEFAULT_URL, GhostwattClient
from client.command_support import print_json, reported
from client.comparison_table import ESTIMATE_LABEL, VERDICT_STYLES
from client.consoles import messages, output
from client.figures import number
from client.models import Finding
from client.options import ApiKey, AsJson, Url

Day = Annotated[
    datetime | None, typer.Option(formats=["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S"], metavar="DATE", help="In UTC.")
]


@reported
def find(
    strategy: Annotated[str | None, typer.Option(help="Only arms of this strategy.")] = None,
    board: Annotated[str | None, typer.Option(help="Part of a board's model name, such as H100.")] = None,
    saving: Annotated[
        float | None,
        typer.Option(
            metavar="PERCENT", min=-1e8, max=99.999, help="Only arms that saved so many per cent or more."
        ),
    ] = None,
    equal_loss: Annotated[
        bool, typer.Option("--equal-loss", help="Only arms that reached their baseline's loss.")
    ] = False,
    measured: Annotated[bool, typer.Option("--measured", help="No estimates.")] = False,
    verdict: Annotated[
        list[str] | None,
        typer.Option(
            help="Only this verdict (saves, costs_more, no_difference_shown, not_comparable); may be repeated."
        ),
    ] = None,
    metric: Annotated[
        str | None, typer.Option(help="Verdicts on this metric; each experiment's own by default.")
    ] = None,
    min_width: Annotated[int | None, typer.Option(min=1, help="Smallest width.")] = None,
    max_width: Annotated[int | None, typer.Option(min=1, help="Largest width.")] = None,
    world_size: Annotated[int | None, typer.Option(min=1, help="Ranks.")] = None,
    dtype: Annotated[str | None, typer.Option(help="Number format, such as bfloat16.")] = None,
    tag: Annotated[
        list[str] | None, typer.Option(help="Only experiments with this tag, as key=value; may be repeated.")
    ] = None,
    after: Day = None,
    before: Day = None,
    order: Annotated[Literal["newest", "largest_saving"], typer.Option(help="Which comes first.")] = "newest",
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 50,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
) -> None:
    """Finds verdicts across experiments.

    All phantom arms on H100s that saved more than 30 % at equal loss:
    ghostwatt find --strategy phantom --board H100 --saving 30 --verdict saves --equal-loss
    """
    with GhostwattClient(url, api_key) as client:
        found = list(
            client.findings(
                limit=limit,
                strategy=strategy,
                board=board,
                saving_at_least=None if saving is None else saving / 100,
                equal_loss=equal_loss,
                measured=measured,
                verdict=verdict or (),
                metric=metric,
                width_at_least=min_width,
                width_at_most=max_width,
                world_size=world_size,
                dtype=dtype,
                tag=tag or (),
                submitted_after=_utc(after),
                submitted_before=_utc(before),
                order=order,
            )
        )
    if as_json:
        print_json(found)
    elif found:
        output().print(findings_table(found))
    else:
        messages().print("nothing is known that fits")


def findings_table(found: list[Finding]) -> Table:
    """Findings, one a line, each with its interval and what stands beside it."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("experiment", "arm", "n", "p", "board", "ratio [95 % interval]", "verdict", "flags"):
        table.add_column(title, justify="right" if title in ("n", "p") else "left")
    for each in found:
        table.add_row(
            Text(each.experiment_id),
            Text(each.arm),
            str(each.width),
            str(each.world_size),
            Text(", ".join(each.devices) or "-"),
            _ratio(each),
            Text(each.sentence, VERDICT_STYLES[each.verdict]),
            Text(", ".join(([ESTIMATE_LABEL] if each.estimated else []) + list(each.flags))),
        )
    return table


def _ratio(each: Finding) -> str:
    if each.ratio is None:
        return "-"
    return f"{number(each.ratio)} [{number(each.ratio_low)}, {number(each.ratio_high)}]"


def _utc(moment: datetime | None) -> datetime | None:
    return None if moment is None else moment.replace(tzinfo=UTC)
