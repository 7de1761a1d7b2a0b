"""What keeps the gateway from starting."""


class StartupError(Exception):
    """The gateway cannot start. The message is one line for whoever started it: what is wrong, what to do."""
