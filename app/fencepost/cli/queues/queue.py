"""`fencepost queue`: the queues, how far each is applied, and what is wrong with it."""

import json
from typing import TYPE_CHECKING, Final

import click

from fencepost.cli.options import settings_options
from fencepost.cli.queues.looking import look_at_queues, queue_as_json
from fencepost.cli.tables import print_table
from fencepost.server.settings import Settings

if TYPE_CHECKING:
    from fencepost.server.queue_status import QueueStatus

_HEADER: Final = (
    "QUEUE", "PARTITIONS", "LAG", "OLDEST", "APPLIED", "REFUSED", "FAILED", "REDELIVERED", "DEAD", "STATE",
)  # fmt: skip


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a queue, with its partitions.")
@settings_options("database_url", "data_dir", "queues")
def queue(settings: Settings, as_json: bool) -> None:
    """List the queues that were ever configured: how far they are applied, dead letters, what is wrong.

    LAG counts positions that are not decided, OLDEST is the age of the oldest such message. The logs of queues that are
    not in FENCEPOST_QUEUES here are not asked: what is known of those is what their consumers have recorded. Exit
    code 1 when one of them is quarantined.
    """
    seen, trouble = look_at_queues(settings)
    if as_json:
        for each in seen:
            click.echo(json.dumps(queue_as_json(each), ensure_ascii=False))
    else:
        print_table(_HEADER, [_line(each) for each in seen])
        for text in trouble:
            click.echo(text, err=True)
    if quarantined := [each.known.name for each in seen if each.known.quarantined is not None]:
        click.echo(f"when its log can be vouched for: fencepost source raise {quarantined[0]} --reason …", err=as_json)
        raise SystemExit(1)


def _line(status: "QueueStatus") -> tuple[str, ...]:
    known = status.known
    return (
        known.name,
        _or_dash(max(len(known.partitions), len(status.lags)) or None),
        _or_dash(status.lag),
        f"{status.oldest_s:.1f} s" if status.oldest_s else "-",
        *(str(count) for count in status.counts.values()),
        _or_dash(status.letters),
        ", ".join([f"generation {known.generation}", *status.faults()]),
    )


def _or_dash(value: int | None) -> str:
    return "-" if value is None else str(value)
