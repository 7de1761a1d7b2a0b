"""The kinds of refusals that come from PostgreSQL itself. They have no code of their own: the SQLSTATE is the code."""

from typing import Final

from fencepost.server.fence.problem_type import ProblemType

CONSTRAINT_VIOLATION: Final = ProblemType(
    None,
    409,
    "constraint-violation",
    "A constraint refused the write",
    "The fence accepted the token, and a constraint of the table refused the data. The whole request was undone: the "
    "token is not spent. A duplicate key or a missing reference is 409, another constraint 400.",
    "The members constraint and column name what refused; mend the data.",
)
INVALID_VALUE: Final = ProblemType(
    None,
    400,
    "invalid-value",
    "A value does not fit its column",
    "PostgreSQL could not take a value: wrong type, out of range, too long, or a generated column. Nothing changed.",
    "The detail names the value, and the column where it is known.",
)
PERMISSION_DENIED: Final = ProblemType(
    None,
    403,
    "permission-denied",
    "The gateway's database role may not do this",
    "PostgreSQL refused for lack of a privilege, or by a row security policy.",
    "GRANT the privilege to the role of the caller, or, where it has none, to the role in FENCEPOST_DATABASE_URL. The "
    "status is 401 where the request has no credential: with one it may have the privilege.",
)
DATABASE_BUSY: Final = ProblemType(
    None,
    503,
    "database-busy",
    "The database did not finish in time",
    "The statement ran into a lock or time limit and was undone. Nothing was changed.",
    "Try again. If it keeps happening, look for a long transaction that holds the row: in pg_stat_activity, and, if it"
    " was prepared and not ended, in pg_prepared_xacts.",
    retryable=True,
)
DATABASE_REFUSED: Final = ProblemType(
    None,
    400,
    "database-refused",
    "The database refused the statement",
    "A trigger, a rule or PostgreSQL itself refused; the code is its SQLSTATE. Nothing was changed.",
    "The detail is the database's own message.",
)

DATABASE_PROBLEM_TYPES: Final = (
    CONSTRAINT_VIOLATION,
    INVALID_VALUE,
    PERMISSION_DENIED,
    DATABASE_BUSY,
    DATABASE_REFUSED,
)
