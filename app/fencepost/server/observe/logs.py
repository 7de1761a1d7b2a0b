"""Structured logs: one line an event, for people or as JSON, with the request's id."""

import logging
import sys
from collections import Counter
from typing import Final, Literal, assert_never

import structlog

from fencepost.server.fence.resource import MOST_OF_A_TEXT, bounded, in_json
from fencepost.server.observe.events import (
    Accepted,
    BatchesFail,
    CallerRefused,
    CatalogLoaded,
    ConnectionTrouble,
    ConsumerFailed,
    ConsumerPaused,
    ConsumerResumed,
    DeadLettered,
    Event,
    HolderUnknown,
    KeysFetched,
    KeysNotFetched,
    LeaseAsked,
    ListenerLost,
    OfQueues,
    OriginJudged,
    Pruned,
    PruningFailed,
    QueueBlocked,
    QueueFailed,
    Refused,
    RequestTurnedAway,
    SealKeysRead,
    SealKeysUnreadable,
    SourceQuarantined,
    SourceTrouble,
    Upkeep,
)

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
        [bounded_values, structlog.processors.JSONRenderer()]
        if style == "json"
        else [
            without_control_characters,
            bounded_values,
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(),
                # The prettier ones show local variables: tokens, and the database's password.
                exception_formatter=structlog.dev.plain_traceback,
            ),
        ]
    )
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


def bounded_values(_logger: object, _method: str, entry: structlog.typing.EventDict) -> structlog.typing.EventDict:
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


def without_control_characters(
    _logger: object, _method: str, entry: structlog.typing.EventDict
) -> structlog.typing.EventDict:
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
        level = _level(event)
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
        _log(level, event)

    def log_withheld(self) -> None:
        """Log how many refusals were not logged one by one since the last call."""
        withheld, self._withheld, self._refusals = self._withheld, Counter(), 0
        for (table, verb, code), count in withheld.items():
            log.info("refused, and not logged one by one", table=table, verb=verb, code=code, count=count)
        peers, self._peers, self._turned_away = self._peers, Counter(), 0
        for (peer, code), count in peers.items():
            log.warning("turned away, and not logged one by one", peer=peer, code=code, count=count)


def _level(event: Event) -> int:
    match event:
        case Accepted() | CallerRefused():
            return logging.DEBUG
        case Refused(verb=verb):  # a read of a row that is not there is no news
            return logging.DEBUG if verb == "read" else logging.INFO
        case LeaseAsked(verdict=verdict):  # nor is a lock that is held; a lease that was lost is
            return logging.INFO if verdict == "FP012" else logging.DEBUG
        case CatalogLoaded(changed=False):
            return logging.DEBUG
        case CatalogLoaded() | Pruned() | SealKeysRead() | KeysFetched():
            return logging.INFO
        case (
            RequestTurnedAway()
            | QueueFailed()
            | HolderUnknown()
            | ListenerLost()
            | PruningFailed()
            | BatchesFail()
            | SourceTrouble()
            | ConnectionTrouble()
            | SealKeysUnreadable()
            | KeysNotFetched()
        ):
            return logging.WARNING
        case ConsumerPaused() | ConsumerFailed() | DeadLettered() | QueueBlocked():
            return logging.WARNING
        case OriginJudged(accepted=True) | ConsumerResumed():
            return logging.INFO
        case OriginJudged() | SourceQuarantined():
            return logging.ERROR
        case _:
            assert_never(event)


def _log(level: int, event: Event) -> None:
    match event:
        case Accepted(table, verb, rows):
            log.log(level, "accepted", table=table, verb=verb, rows=rows)
        case Refused(table, verb, code, detail, resource, presented, current, caller, peer):
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
                caller=caller,
                peer=peer,
            )
        case CallerRefused(caller, code, detail):
            log.log(level, "refused for who the caller is", caller=caller, code=code, detail=detail)
        case RequestTurnedAway(code, detail, peer):
            log.log(level, "a request was turned away", peer=peer, code=code, detail=detail)
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
        case ConsumerPaused() | ConsumerResumed() | ConsumerFailed() | DeadLettered() | QueueBlocked():
            _log_queues(level, event)
        case _:
            _log_upkeep(level, event)


def _log_queues(level: int, event: OfQueues) -> None:
    match event:
        case ConsumerPaused(queue, reason):
            log.log(level, "queued writes are not applied for now", queue=queue, reason=reason)
        case ConsumerResumed(queue):
            log.log(level, "queued writes are applied again", queue=queue)
        case ConsumerFailed(queue, reason):
            log.log(level, "a queued write could not be applied, by a fault of the gateway", queue=queue, reason=reason)
        case DeadLettered(queue, resource, partition, offset, reason):
            log.log(
                level,
                "a queued write is a dead letter; `fencepost dead` lists them",
                queue=queue,
                resource=resource,
                partition=partition,
                offset=offset,
                reason=reason,
            )
        case QueueBlocked(queue, resource, partition, offset, reason):
            log.log(
                level,
                "a queued write is tried in vain, and those of its resource wait",
                queue=queue,
                resource=resource,
                partition=partition,
                offset=offset,
                reason=reason,
            )
        case _:
            assert_never(event)


def _log_upkeep(level: int, event: Upkeep) -> None:
    match event:
        case OriginJudged(True, generation):
            log.log(level, "writes are let through to this database", generation=generation)
        case OriginJudged(_, _, reason):
            log.log(level, "writes are refused: not the database that tokens were issued on", reason=reason)
        case SourceQuarantined(source, reason):
            log.log(level, "a token source is quarantined: its numbers went backwards", source=source, reason=reason)
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
        case SealKeysRead(ids):
            log.log(level, "the keys that seal tokens were read", seals=ids[0], verify=ids)
        case SealKeysUnreadable(reason):
            log.log(level, "the keys that seal tokens cannot be read, and stay as they were", reason=reason)
        case KeysFetched(keys, skipped):
            log.log(level, "keys that verify JWTs", keys=keys, skipped=skipped)
        case KeysNotFetched(reason):
            log.log(level, "keys that verify JWTs were not fetched; the last ones are in use", reason=reason)
        case _:
            assert_never(event)
