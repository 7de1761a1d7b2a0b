"""What is wrong with a history as such, before any model looks at it.

BadHistoryError           a line that is no event, an impossible order of events, a clock that goes backwards
└── CutOffError           the last line has no end: the program that recorded it was killed
"""


class BadHistoryError(Exception):
    """This is not a history that can be checked. The message names the file and the line."""


class CutOffError(BadHistoryError):
    """The file ends in the middle of a line. What stands before that line can be checked, if the caller wants that."""
