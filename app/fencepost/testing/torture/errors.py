"""Why a run could not be had, or not to its end."""


class BadInputError(Exception):
    """What was asked for cannot be run; the message says what to change. Nothing was written."""


class RunFailedError(Exception):
    """The harness itself failed: a worker or a server ended that no fault had ended. No verdict can be had."""
