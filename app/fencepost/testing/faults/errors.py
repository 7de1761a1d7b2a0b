"""What goes wrong with a fault."""


class FaultError(Exception):
    """A fault cannot be brought about as asked. The message says why, and what to do instead."""


class FaultUnavailableError(FaultError):
    """This machine cannot bring the fault about. The message says what to install."""
