"""What can go wrong between the gateway and PostgreSQL, and the one place where foreign errors become ours.

StorageError
├── UnavailableError      nothing was done: no connection, overload, shutting down
│   ├── ReadOnlyError     PostgreSQL takes no writes: the operator, or a full disk, has made it read-only
│   ├── SessionError      the session is not the connection's own, or has not in force what was set
│   ├── StandbyError      the server is in recovery: it can only be read
│   └── QuarantinedError  not the system and timeline that writes were allowed on (R19)
├── OutcomeUnknownError   the connection broke after a write was sent: it may have landed (R15)
│   └── UncommittedError  before COMMIT was sent: over, or will be when its backend is ended
├── RefusedError          PostgreSQL refused, with an SQLSTATE; the statement was undone
└── RoleError             the gateway does not act as the caller's role; nothing was sent
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import asyncpg

RETRIED: Final = frozenset({"40001", "40P01"})
"""Serialization failure and deadlock: nothing happened, and the same statement may succeed now (R4)."""

# One of PostgreSQL's internal errors, whose texts it does not translate.
_INTERNAL: Final = "XX000"
_SYNTAX_ERROR: Final = "42601"
LOCK_NOT_AVAILABLE: Final = "55P03"
"""A lock was waited for in vain."""
DATA_EXCEPTION: Final = "22"
VIOLATION: Final = "23"
"""Classes of SQLSTATEs: a value that its type cannot have; a constraint, also a domain's."""
_INVALID_TEXT: Final = "22P02"
_LOOKUP_FAILED: Final = "cache lookup failed for "

_OUTDATED_STATES: Final = frozenset({"23514", "FP000", "FP005", "FP428", _INTERNAL})
_OUTDATED_CLASSES: Final = ("0A", "22", "3F", "42")

# Routines that report that a value has another type than when the session planned an expression of a PL/pgSQL function.
# By name: the text is in any language.
_DATATYPE_MISMATCH: Final = "42804"
_PLANNED_BEFORE: Final = ("ExecEvalParamExtern", "plpgsql_param_eval_")

# Their DETAIL has all columns of the row, "Failing row contains (…)", in any language; unless a function of a trigger
# raised it, or the search for a partition, which shows the partition's key only.
_OF_WHOLE_ROWS: Final = frozenset({"23502", "23514", "44000"})
_RAISED: Final = "exec_stmt_raise"
_SHOWS_LITTLE: Final = frozenset({_RAISED, "ExecFindPartition"})

_ACL_CHECKED: Final = "aclcheck_error"
_REQUIRES_WRITER: Final = "fencepost.require_writer("

# Class 57P: the server ends the connection. Class 08: it is gone. A commit may have been under way.
_CONNECTION_CLASSES: Final = ("08", "57P")
_OVERLOAD_CLASSES: Final = ("53",)
_READ_ONLY: Final = "25006"
_PRIVILEGE: Final = "42501"
# A prepared statement that is not there, or is there already: the session is another one than it was.
_FOREIGN_SESSION: Final = frozenset({"26000", "42P05"})


class StorageError(Exception):
    """Root of all errors that storage raises; the message is for the caller of the API."""


class UnavailableError(StorageError):
    """The database could not be asked; nothing was done."""


class ReadOnlyError(UnavailableError):
    """PostgreSQL refused a write as its transaction was read-only (`ReadOnly`, database.py); nothing was written."""


class SessionError(UnavailableError):
    """The session behind a connection is not its own, or has not in force what was set there (connection.py)."""


class StandbyError(UnavailableError):
    """The database is a standby: nothing can be written there until it is promoted."""


class QuarantinedError(UnavailableError):
    """The database is not the one that was recorded: nothing is written until an operator raises the generation (R19).

    `members` say which system and timeline were found, and which are known: for the problem's body.
    """

    def __init__(self, reason: str, members: Mapping[str, object]) -> None:
        super().__init__(reason)
        self.members = dict(members)


class OutcomeUnknownError(StorageError):
    """A write was sent and its answer never came."""


class UncommittedError(OutcomeUnknownError):
    """The connection broke before COMMIT was sent: the transaction is over, or will be when its backend is ended."""


class RoleError(StorageError):
    """The gateway cannot act as this role, or does not."""

    def __init__(self, role: str, reason: str) -> None:
        super().__init__(reason)
        self.role = role


class RefusedError(StorageError):
    """PostgreSQL refused a statement. Nothing of it remains."""

    def __init__(self, error: asyncpg.PostgresError) -> None:
        super().__init__(error.message or str(error))
        self.sqlstate: str = error.sqlstate or "XX000"
        self.detail: str | None = error.detail
        self.hint: str | None = error.hint
        self.table: str | None = error.table_name
        self.column: str | None = error.column_name
        self.constraint: str | None = error.constraint_name
        self.schema: str | None = error.schema_name
        self.context: str = error.context or ""
        """Where it was raised: a line or more for each function and statement, the outermost last, in any language."""
        self._raised_by: str = getattr(error, "server_source_function", None) or ""

    @property
    def shows_a_row(self) -> bool:
        """Whether the detail has all columns, the mark too, whatever the request named and its caller may see."""
        return self.sqlstate in _OF_WHOLE_ROWS and self._raised_by not in _SHOWS_LITTLE

    @property
    def of_an_old_query_plan(self) -> bool:
        """Whether the session has a query plan that DDL has made useless: there, it fails each time; in a new session
        it does not. In a trigger's function, since a type was changed; or in a prepared statement that had found a
        function before it waited for a lock, and that was dropped meanwhile.
        """
        if self.sqlstate == _INTERNAL:
            return str(self).startswith(_LOOKUP_FAILED)
        return self.sqlstate == _DATATYPE_MISMATCH and self._raised_by.startswith(_PLANNED_BEFORE)

    @property
    def lacks_privilege(self) -> bool:
        """Whether the statement is one that its role may not run, whichever values it has: PostgreSQL looked at the
        privileges for the tables, columns and functions that it names, or our functions at those for a scope's tables.
        By name: the text is in any language. What a function raises, or a foreign key meets, may be about the values.
        """
        if self.sqlstate != _PRIVILEGE or self.of_the_gateway:
            return False
        if self._raised_by == _RAISED:
            return self.table is not None and _REQUIRES_WRITER in self.context
        return self._raised_by.startswith(_ACL_CHECKED) and not self.context

    @property
    def of_the_gateway(self) -> bool:
        """Whether it is the gateway's login that lacks a privilege, though a caller's role was on (as_gateway.sql)."""
        return self.sqlstate == _PRIVILEGE and self.schema == "fencepost" and self._raised_by == _RAISED

    @property
    def of_a_policy(self) -> bool:
        """Whether a policy of row security refused a row as it would be."""
        return self.sqlstate == _PRIVILEGE and self._raised_by == "ExecWithCheckOptions"

    @property
    def may_be_of_a_value(self) -> bool:
        """Whether a type, maybe an extension's, could not read a value, or may have called it an internal error."""
        return self.is_internal or self.sqlstate.startswith(DATA_EXCEPTION) or self.sqlstate == _SYNTAX_ERROR

    @property
    def is_internal(self) -> bool:
        """Whether it is an internal error, and none of an old query plan."""
        return self.sqlstate == _INTERNAL and not self.of_an_old_query_plan

    def blame(self, column: str) -> None:
        """Name the column whose value is at fault: that is no internal error, then, and none of syntax."""
        self.column = column
        if self.sqlstate in (_INTERNAL, _SYNTAX_ERROR):
            self.sqlstate = _INVALID_TEXT

    @property
    def may_be_outdated(self) -> bool:
        """Whether a statement that was built from an outdated catalog could have met this: worth a look."""
        return self.sqlstate in _OUTDATED_STATES or self.sqlstate.startswith(_OUTDATED_CLASSES)


def words_of(error: asyncpg.PostgresError) -> str:
    """Return what PostgreSQL said, with its detail and hint. asyncpg adds a hint of its own to errors about prepared
    statements: advice to programmers, who would set another option of asyncpg.
    """
    return error.message or f"{error.args[0]}" if error.sqlstate in _FOREIGN_SESSION else f"{error}"


def _map_server_error(error: asyncpg.PostgresError, *, writing: bool) -> StorageError:
    state = error.sqlstate or ""
    # With severity ERROR it is a statement's own: for example of a foreign data wrapper whose server is away.
    if state.startswith(_CONNECTION_CLASSES) and error.severity_en != "ERROR":
        if writing:
            return OutcomeUnknownError(f"the connection to PostgreSQL ended during the write: {error}")
        return UnavailableError(f"the connection to PostgreSQL ended: {error}")
    if state in _FOREIGN_SESSION:
        return SessionError(
            f"nothing was done: {words_of(error)}. A connection pooler in transaction or statement mode gives sessions"
            " to others; the gateway needs session mode"
        )
    if state == _READ_ONLY:
        return ReadOnlyError(f"PostgreSQL refused the write, and nothing was written: {error}")
    if state.startswith(_OVERLOAD_CLASSES):
        return UnavailableError(f"PostgreSQL cannot take this now: {error}")
    return RefusedError(error)


_LOCAL_ERRORS: Final = (OSError, TimeoutError, asyncpg.InterfaceError, asyncpg.InternalClientError)
"""What is raised on this side of the connection, and says nothing of how the statement ended."""


def may_be_running(error: BaseException) -> bool:
    """Whether a statement may still be under way on the connection that this was met on."""
    if isinstance(error, UnavailableError):
        return isinstance(error.__cause__, _LOCAL_ERRORS)
    return not isinstance(error, Exception) or isinstance(error, (OutcomeUnknownError, *_LOCAL_ERRORS))


FOREIGN: Final = (asyncpg.PostgresError, *_LOCAL_ERRORS)
"""What a statement raises, and connecting."""


def ours(error: BaseException, *, writing: bool) -> StorageError:
    """Turn one of FOREIGN into an error of ours. `writing`: a statement that changes data may be under way."""
    if isinstance(error, asyncpg.PostgresError):
        return _map_server_error(error, writing=writing)
    reason = str(error) or type(error).__name__
    if writing:
        return OutcomeUnknownError(f"the connection to PostgreSQL broke during the write: {reason}")
    return UnavailableError(f"PostgreSQL cannot be reached: {reason}")


def at_login(error: BaseException) -> StorageError:
    """Turn what connecting raised into an UnavailableError: a refusal too (no such role, wrong password)."""
    mapped = error if isinstance(error, StorageError) else ours(error, writing=False)
    if isinstance(mapped, RefusedError):
        return UnavailableError(f"PostgreSQL does not let the gateway in: {mapped}")
    return mapped


def conflict(reason: str) -> RefusedError:
    """Give the error by which a write starts over from the beginning, as after a serialization failure (R4)."""
    return RefusedError(asyncpg.SerializationError(reason))


def cancelled(reason: str) -> RefusedError:
    """Give the error of a statement that took too long."""
    return RefusedError(asyncpg.QueryCanceledError(reason))


@contextmanager
def map_errors() -> Iterator[None]:
    """Turn what fails into ours, where that is no statement of a session's: connecting, a cursor."""
    try:
        yield
    except FOREIGN as error:
        raise ours(error, writing=False) from error
