"""One kind of error that a caller can meet."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProblemType:
    """One kind of error. `meaning` and `action` are the text of its page under /problems/; `on_call`, where it is not
    empty, is for who operates the gateway.
    """

    code: str | None
    status: int
    slug: str
    title: str
    meaning: str
    action: str
    retryable: bool = False
    on_call: str = ""
