"""All planted bugs."""

from tests.torture.bugs import answers, clients, keys, locks, marks, servers, statements
from tests.torture.planted import Planted

PLANTED: list[Planted] = [
    *marks.BUGS,
    *statements.BUGS,
    *answers.BUGS,
    *keys.BUGS,
    *locks.BUGS,
    *clients.BUGS,
    *servers.BUGS,
]
