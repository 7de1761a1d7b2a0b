"""What keeps the gateway from starting."""


class StartupError(Exception):
    """The gateway cannot start. The message is one line for the operator: what is wrong, what to do."""
