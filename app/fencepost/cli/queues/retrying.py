"""The message that retries a dead letter: what the letter's said, under another name; its caller stays whose it was."""

import time
from dataclasses import dataclass, replace

import click

from fencepost.fencing.caller import Caller
from fencepost.fencing.seal import SealKeys
from fencepost.queues.log import DeadLetter, Message
from fencepost.queues.message import CALLER, IDEMPOTENCY_KEY, WRITE_NONCE, MalformedMessageError
from fencepost.queues.signing import sign, unsigned_of, verify


@dataclass(frozen=True, slots=True)
class Retrying:
    """Makes such messages for a queue. `keys` None: none that has a caller. `kept_for`: how many seconds after it was
    signed a message may have become a letter: signed anew, one that came twice would be done twice.
    """

    queue: str
    keys: SealKeys | None
    kept_for: float

    def refuse(self, letter: DeadLetter) -> None:
        """Raise ClickException for a letter that cannot be retried."""
        if letter.left_out:
            lacks = letter.left_out.replace(" and ", " and no ")
            where = f"offset {letter.position.offset} of partition {letter.position.partition} of {self.queue}"
            raise click.ClickException(
                f"{_name(letter)}: its message was too large, and the letter has no {lacks} of it."
                f" The message is at {where}: append it from there, and drop the letter; nothing was done"
            )
        self._caller_of(letter)

    def message(self, letter: DeadLetter, nonce: str) -> Message:
        """Make the message. It has another nonce: with the old one it would be a copy of the message that failed. Its
        Idempotency-Key, the letter's id where the message had none, lets it have one effect, also when the letter is
        retried again: because a retry was cut off, or the letter came back.
        """
        unsigned, caller = unsigned_of(letter.message), self._caller_of(letter)
        kept = [(name, value) for name, value in unsigned.headers if name.lower() != WRITE_NONCE]
        if not any(name.lower() == IDEMPOTENCY_KEY for name, _ in kept):
            kept.append((IDEMPOTENCY_KEY, letter.id.encode()))
        made = replace(unsigned, headers=(*kept, (WRITE_NONCE, nonce.encode())))
        if caller is None or self.keys is None:
            return made
        return sign(made, self.queue, self.keys, caller, _now())

    def _caller_of(self, letter: DeadLetter) -> Caller | None:
        if not any(name.lower() == CALLER for name, _ in letter.message.headers):
            return None
        if self.keys is None:
            raise click.ClickException(
                f"{_name(letter)}: it is the write of a caller, which is to be signed anew: --seal-keys-file"
                " (FENCEPOST_SEAL_KEYS_FILE) names the file with the gateway's keys; nothing was done"
            )
        try:
            signed = verify(letter.message, self.queue, self.keys)
            signed.require_in_time(letter.at, self.kept_for)
        except MalformedMessageError as error:
            raise click.ClickException(f"{_name(letter)}: {error}; drop it: nothing was done") from error
        return signed.caller


def _name(letter: DeadLetter) -> str:
    return f"{letter.id} {letter.message.key.decode('utf-8', 'replace')}"


def _now() -> float:
    return time.time()  # noqa: TID251 - compared with the log's times of messages
