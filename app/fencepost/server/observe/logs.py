"""Structured logs: one line an event, for people or as JSON, with the request's id."""

import logging
import sys
from collections import Counter
from typing import Final, Literal

import structlog
from structlog.typing import EventDict, Processor

from fencepost.server.fence.resource import MOST_OF_A_TEXT, bounded, in_json
from fencepost.server.observe.events import Event, Refused, RequestTurnedAway

log = structlog.stdlib.get_logger("fencepost")

MOST_OF_A_TRACEBACK: Final = 4000
"""Bytes of a traceback, which ends with the exception's text."""
MOST_REFUSALS: Final = 100
"""How many refusals are logged one by one, in a second and by a worker."""
MOST_TURNED_AWAY: Final = 5
"""How many requests that were turned away are logged one by one, in a second and by a worker."""
MOST_PEERS: Final = 100
"""Of how many peers, with the codes of what was refused, the rest is counted; of others together."""


def configure(level: Literal["debug", "info", "warning", "error"], style: Literal["console", "json"]) -> None:
    """Send everything, the libraries' records too, to stderr in one form."""
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    last: list[Processor] = [bounded_values, structlog.processors.JSONRenderer()]
    if style == "console":
        plain = structlog.dev.plain_traceback  # prettier ones show local variables: tokens, and the database's password
        console = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=plain)
        last = [without_control_characters, bounded_values, console]
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                *last,
            ],
        )
    )
    logging.root.handlers[:] = [handler]
    logging.root.setLevel(level.upper())
    # uvicorn logs every start and stop in five lines; `serve` prints one.
    logging.getLogger("uvicorn.error").setLevel(max(logging.root.level, logging.WARNING))


def bounded_values(_logger: object, _method: str, entry: EventDict) -> EventDict:
    """Bound what a line has of requests, so that no line has more than 8 kB: a client that is refused again and again
    must not fill the disk.
    """
    for key, value in entry.items():
        if isinstance(value, str):
            entry[key] = bounded(value, MOST_OF_A_TRACEBACK if key == "exception" else MOST_OF_A_TEXT, in_json)
        elif not isinstance(value, int | float | None) and len(in_json(written := repr(value))) > MOST_OF_A_TEXT:
            entry[key] = bounded(written, MOST_OF_A_TEXT, in_json)
    return entry


_CONTROL: Final = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))} | {
    code: f"\\u{code:04x}" for code in (0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
}


def spelled_out(text: str) -> str:
    """Spell control characters out: a terminal would obey them."""
    return text if text.isprintable() else text.translate(_CONTROL)


def without_control_characters(_logger: object, _method: str, entry: EventDict) -> EventDict:
    """Spell control characters of values out. Names and paths are their callers', and a terminal would obey them: it
    could be made to show lines that were never logged. A traceback keeps its lines.
    """
    for key, value in entry.items():
        if isinstance(value, str) and key != "exception":
            entry[key] = spelled_out(value)
    return entry


class EventLog:
    """Logs events. A refusal is news (a lock was lost), an acceptance is not.

    A client that tries again and again must not fill the disk, nor take the time of others: MOST_REFUSALS are logged
    one by one between two calls of `log_withheld`, and it counts the rest.
    """

    def __init__(self) -> None:
        self._refusals = 0
        self._withheld: Counter[tuple[str, str, str]] = Counter()
        self._turned_away = 0
        self._peers: Counter[tuple[str, str]] = Counter()

    def on_event(self, event: Event) -> None:
        # structlog would look for itself, and take longer than all the rest of an event.
        name, unlike = event.but_where
        level, words = unlike.get(getattr(event, name, None), (event.level, event.words))
        if not logging.root.isEnabledFor(level):
            return
        if isinstance(event, Refused):
            self._refusals += 1
            if self._refusals > MOST_REFUSALS:
                self._withheld[event.table, event.verb, event.code] += 1
                return
        if isinstance(event, RequestTurnedAway):
            self._turned_away += 1
            if self._turned_away > MOST_TURNED_AWAY:
                whose = (event.peer, event.code)
                self._peers[whose if whose in self._peers or len(self._peers) < MOST_PEERS else ("others", "")] += 1
                return
        log.log(level, words, **event.shown())

    def log_withheld(self) -> None:
        """Log how many refusals were not logged one by one since the last call."""
        withheld, self._withheld, self._refusals = self._withheld, Counter(), 0
        for (table, verb, code), count in withheld.items():
            log.info("refused, and not logged one by one", table=table, verb=verb, code=code, count=count)
        peers, self._peers, self._turned_away = self._peers, Counter(), 0
        for (peer, code), count in peers.items():
            log.warning("turned away, and not logged one by one", peer=peer, code=code, count=count)
