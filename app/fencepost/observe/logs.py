"""Structured logs: one line an event, for people or as JSON, with the request's id."""

import logging
import sys
from typing import Literal

import structlog

from fencepost.observe.events import Accepted, CatalogLoaded, Event, ListenerLost, Refused

log = structlog.stdlib.get_logger("fencepost")


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
    # uvicorn tells of every start and stop in five lines; `serve` says it in one.
    logging.getLogger("uvicorn.error").setLevel(max(logging.root.level, logging.WARNING))


def on_event(event: Event) -> None:
    """Log an event. A refusal is news (somebody's lock was lost), an acceptance is not."""
    match event:
        case Accepted(table, verb, rows):
            log.debug("accepted", table=table, verb=verb, rows=rows)
        case Refused(table, verb, code, detail, resource, presented, current):
            # Somebody who asks for a row that is not there is no news.
            log.log(
                logging.DEBUG if verb == "read" else logging.INFO,
                "refused",
                table=table,
                verb=verb,
                code=code,
                detail=detail,
                resource=resource,
                presented=presented,
                current=current,
            )
        case CatalogLoaded(version, tables, protected):
            log.info("catalog loaded", version=version, tables=tables, protected=protected)
        case ListenerLost(reason):
            log.warning("lost the connection that hears of changed tables; making it anew", reason=reason)
