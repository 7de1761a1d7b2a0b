"""Structured logs: one line an event, for people or as JSON, with the request's id."""

import logging
import sys
from collections import Counter
from typing import Final, Literal, assert_never

import structlog

from fencepost.observe.events import (
    Accepted,
    BatchesFail,
    CatalogLoaded,
    ConnectionTrouble,
    Event,
    HolderUnknown,
    LeaseAsked,
    ListenerLost,
    OriginJudged,
    Pruned,
    PruningFailed,
    QueueFailed,
    Refused,
    SourceFroze,
    SourceTrouble,
    Upkeep,
)

log = structlog.stdlib.get_logger("fencepost")

MOST_REFUSALS: Final = 100
"""How many refusals are logged one by one, in a second and by a worker."""


def configure(level: Literal["debug", "info", "warning", "error"], style: Literal["console", "json"]) -> None:
    """Send everything, the libraries' records too, to stderr in one form."""
    shared: list[structlog.typing.Processor] = [
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
    last: list[structlog.typing.Processor] = (
        [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
        if style == "json"
        else [
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(),
                # The prettier ones show local variables: tokens, and the database's password.
                exception_formatter=structlog.dev.plain_traceback,
            )
        ]
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
        )
    )
    logging.root.handlers[:] = [handler]
    logging.root.setLevel(level.upper())
    # uvicorn logs every start and stop in five lines; `serve` prints one.
    logging.getLogger("uvicorn.error").setLevel(max(logging.root.level, logging.WARNING))


class EventLog:
    """Logs events. A refusal is news (a lock was lost), an acceptance is not.

    A client that tries again and again must not fill the disk, nor take the time of others: MOST_REFUSALS are logged
    one by one between two calls of `log_withheld`, and it counts the rest.
    """

    def __init__(self) -> None:
        self._refusals = 0
        self._withheld: Counter[tuple[str, str, str]] = Counter()

    def on_event(self, event: Event) -> None:
        """Log an event."""
        # structlog would look for itself, and take longer than all the rest of an event.
        level = _level(event)
        if not logging.root.isEnabledFor(level):
            return
        if isinstance(event, Refused):
            self._refusals += 1
            if self._refusals > MOST_REFUSALS:
                self._withheld[event.table, event.verb, event.code] += 1
                return
        _log(level, event)

    def log_withheld(self) -> None:
        """Log how many refusals were not logged one by one since the last call."""
        withheld, self._withheld, self._refusals = self._withheld, Counter(), 0
        for (table, verb, code), count in withheld.items():
            log.info("refused, and not logged one by one", table=table, verb=verb, code=code, count=count)


def _level(event: Event) -> int:  # noqa: PLR0911 - one for each kind
    match event:
        case Accepted():
            return logging.DEBUG
        case Refused(verb=verb):  # a read of a row that is not there is no news
            return logging.DEBUG if verb == "read" else logging.INFO
        case LeaseAsked(verdict=verdict):  # nor is a lock that is held; a lease that was lost is
            return logging.INFO if verdict == "FP012" else logging.DEBUG
        case CatalogLoaded() | Pruned():
            return logging.INFO
        case (
            QueueFailed()
            | HolderUnknown()
            | ListenerLost()
            | PruningFailed()
            | BatchesFail()
            | SourceTrouble()
            | ConnectionTrouble()
        ):
            return logging.WARNING
        case OriginJudged(accepted=True):
            return logging.INFO
        case OriginJudged() | SourceFroze():
            return logging.ERROR
        case _:
            assert_never(event)


def _log(level: int, event: Event) -> None:
    match event:
        case Accepted(table, verb, rows):
            log.log(level, "accepted", table=table, verb=verb, rows=rows)
        case Refused(table, verb, code, detail, resource, presented, current):
            log.log(
                level,
                "refused",
                table=table,
                verb=verb,
                code=code,
                detail=detail,
                resource=resource,
                presented=presented,
                current=current,
            )
        case LeaseAsked(lease_verb, verdict, locks, lease_id, owner, waited, tokens):
            log.log(
                level,
                "lease",
                verb=lease_verb,
                verdict=verdict,
                locks=locks,
                lease=lease_id,
                owner=owner,
                waited=round(waited, 3),
                tokens=tokens,
            )
        case _:
            _log_upkeep(level, event)


def _log_upkeep(level: int, event: Upkeep) -> None:  # noqa: C901, PLR0912 - one case for each kind
    match event:
        case OriginJudged(accepted, generation, reason):
            if accepted:
                log.log(level, "writes are let through to this database", generation=generation)
            else:
                log.log(level, "writes are refused: not the database that tokens were issued on", reason=reason)
        case SourceFroze(source, reason):
            log.log(level, "a token source is frozen: its numbers went backwards", source=source, reason=reason)
        case SourceTrouble(source, reason):
            log.log(level, "token source", source=source, reason=reason)
        case Pruned(what, records):
            log.log(level, "pruned", what=what, records=records)
        case PruningFailed(reason):
            log.log(level, "pruning", reason=reason)
        case BatchesFail(reason):
            log.log(
                level,
                "writes do not go together in batches, which is slow; `fencepost doctor` may show why",
                reason=reason,
            )
        case QueueFailed(reason):
            log.log(level, "queues of locks", reason=reason)
        case HolderUnknown(table, reason):
            log.log(level, "who superseded a refused holder could not be found out", table=table, reason=reason)
        case CatalogLoaded(version, tables, protected):
            log.log(level, "catalog loaded", version=version, tables=tables, protected=protected)
        case ListenerLost(reason):
            log.log(level, "lost the connection that listens for changed tables; making it anew", reason=reason)
        case ConnectionTrouble(reason):
            log.log(level, "connections to PostgreSQL", reason=reason)
        case _:
            assert_never(event)
