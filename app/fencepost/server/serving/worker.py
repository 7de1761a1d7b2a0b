"""What uvicorn loads in each gateway process: the application, which never outlives its parent."""

import logging
import multiprocessing

from fastapi import FastAPI

from fencepost.server.ops.parent_death import die_with_parent
from fencepost.server.serve import create_app as build


def create_app() -> FastAPI:
    """Make the application from the FENCEPOST_* variables. uvicorn calls this once per process."""
    parent = multiprocessing.parent_process()
    if parent is not None and parent.pid is not None:  # a worker, not `fencepost serve` itself
        die_with_parent(parent.pid)
    logging.getLogger("uvicorn.error").addFilter(without_expected_traceback)
    return build()


def without_expected_traceback(record: logging.LogRecord) -> bool:
    """Reduce to one line what uvicorn logs with a traceback though nothing is wrong with the program.

    An error of the lifespan comes as the text of its traceback, which Starlette made; others as exc_info.
    """
    error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
    last = f"{type(error).__qualname__}: {error}" if error else record.getMessage().strip().rpartition("\n")[2]
    kind, _, explanation = last.partition(": ")
    match kind.rpartition(".")[2]:
        case "StartupError":
            record.msg, record.args, record.exc_info = explanation, (), None
        case "CancelledError":
            record.msg, record.args, record.exc_info = "cut off by the shutdown", (), None
    return True
