"""Tables on the command line."""

from collections.abc import Sequence

import click


def print_table(header: tuple[str, ...], lines: Sequence[tuple[str, ...]]) -> None:
    """Print lines under a header, in columns that are as wide as what stands in them."""
    widths = [max(len(line[n]) for line in [header, *lines]) for n in range(len(header))]
    for line in [header, *lines]:
        click.echo("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())
