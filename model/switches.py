"""What must fail: each rule switched off, in the scene that goes wrong without it."""

from dataclasses import dataclass
from typing import Final

from model.checks import Check, scene


@dataclass(frozen=True, slots=True)
class Switch:
    """A part of a rule that can be taken out, as `-DNO_<name>`, and the scene that then goes wrong."""

    name: str
    without: str
    wrong: str
    check: Check

    @property
    def rule(self) -> int:
        """The number of the rule."""
        return int(self.name.partition("_")[0].removeprefix("R"))

    @property
    def title(self) -> str:
        """How it is called on the command line."""
        return f"NO_{self.name}"

    @property
    def run(self) -> Check:
        """The check with the part taken out."""
        check = self.check
        return Check(check.scene, (*check.defines, self.title), check.kind, check.optimized)


SWITCHES: Final = (
    Switch(
        "R1",
        "a mark takes its own token again: `mark <= t` under strict",
        "Token 1 is accepted a second time.",
        scene("protocol"),
    ),
    Switch(
        "R1_OWN",
        "in a batch, a mark that the same transaction wrote counts as the operation's own",
        "Two requests of one batch are accepted under one token.",
        scene("batch"),
    ),
    Switch(
        "R2",
        "an equal mark refuses under epoch: `mark < t`",
        "The only holder is refused, and there is no newer one.",
        scene("protocol", "EPOCH"),
    ),
    Switch(
        "R3",
        "the client does not distinguish stale from spent, and repeats a 409",
        "The loop does not end: it is refused for ever.",
        Check("retry", (), "liveness"),
    ),
    Switch(
        "R4",
        "the mark is compared in one statement and the row written in a later one, without a comparison",
        "Token 1 is accepted after token 2: the newer holder's mark is overwritten.",
        scene("protocol"),
    ),
    Switch(
        "R4_ANSWER",
        "the answer leaves before COMMIT",
        "The caller has been answered success, and nothing is committed.",
        scene("protocol"),
    ),
    Switch(
        "R4_BATCH",
        "each write of a batch is answered when its statement has run",
        "A neighbour's error undoes the batch, and the first write had been answered.",
        scene("batch"),
    ),
    Switch(
        "R5",
        "no row is answered 404",
        "The answer is not true: in every committed state there was a row.",
        scene("replace"),
    ),
    Switch(
        "R5_STALE",
        "no row is answered 409",
        "The answer is not true: no mark refuses the token.",
        scene("replace"),
    ),
    Switch(
        "R6",
        "an INSERT looks for the mark in its own snapshot, from before its wait",
        "A's older token is accepted after B's claim, which found no row.",
        scene("protocol"),
    ),
    Switch(
        "R6_MARK",
        "a DELETE leaves no mark",
        "The row is back under a token that was accepted before.",
        scene("protocol"),
    ),
    Switch(
        "R6_FLOOR",
        "pruning forgets a mark and raises no floor",
        "The older holder makes the row that the newer one deleted.",
        scene("protocol"),
    ),
    Switch(
        "R6_HORIZON",
        "pruning does not wait for grants that have drawn a token and are not committed",
        "A's lease is live, no other holder writes its key, and yet the floor refuses its token.",
        scene("pruning"),
    ),
    Switch(
        "R7",
        "a new holder reads the row without a claim",
        "B overwrites what it has not seen: A's write is lost.",
        scene("protocol"),
    ),
    Switch(
        "R7_BESIDE",
        "the claim answers with the row as its snapshot had it, from before its wait",
        "B overwrites what it has not seen: A's write is lost.",
        scene("protocol"),
    ),
    Switch(
        "R7_LOOK",
        "the claim of a key without a row does not look whether there is a row by now",
        "B has been answered that there is no row, and overwrites the one that A has made.",
        scene("protocol", optimized=True),
    ),
    Switch(
        "R8",
        "the scope's mark is raised by the statement that reads the rows",
        "What B has read is not what is there: A's write came in between.",
        scene("scope"),
    ),
    Switch(
        "R9",
        "the token is drawn before the lock's row is locked",
        "A holds the lock after B, and its token is below B's.",
        scene("grants"),
    ),
    Switch(
        "R9_ENDED",
        "a grant does not end the lease that it supersedes",
        "The clock steps back, and two leases of one lock are live.",
        scene("grants"),
    ),
    Switch(
        "R9_DRAWS",
        "a draw writes no row, and so its COMMIT is not flushed",
        "The same token is handed out twice.",
        scene("grants"),
    ),
    Switch(
        "R10",
        "a row whose mark refuses is one that does not match: `UPDATE … WHERE mark < t` of several rows",
        "The write is accepted, and one of its rows is left out.",
        scene("many"),
    ),
    Switch(
        "R10_ORDER",
        "rows are locked in the order in which they are found",
        "A waits for B's row and B for A's: neither can go on.",
        scene("many"),
    ),
    Switch(
        "R11",
        "of two headers with a token one is taken",
        "A writes with B's token, and B, which has written nothing, is answered that it is spent.",
        scene("source"),
    ),
    Switch(
        "R12",
        "a token that was never issued is taken",
        "A's lease is live, no newer token was handed out, and yet it is refused: a number that C made up is the mark.",
        scene("source"),
    ),
    Switch(
        "R12_BACKWARDS",
        "a service's number is not compared with what is recorded",
        "The same token is handed out twice.",
        scene("source"),
    ),
    Switch(
        "R12_LATER",
        "a number is compared with what was known before it was asked for, and not with what is recorded by now",
        "The same token is handed out twice.",
        scene("source"),
    ),
    Switch(
        "R12_BEFORE",
        "the generation is read after the service was asked",
        "A's grant is of a copy of the service that is gone, and has a token of the new generation.",
        scene("source"),
    ),
    Switch(
        "R13",
        "a write without a token is let through",
        "A write that no mark was asked about is accepted.",
        scene("protocol"),
    ),
    Switch(
        "R14",
        "no trigger judges what direct SQL writes",
        "C holds no token, and overwrites what it has not seen: B's write is lost.",
        scene("direct"),
    ),
    Switch(
        "R14_ECHO",
        "a mark that is written back as it was loaded counts as a token (epoch)",
        "A overwrites what it has not seen: C wrote with the mark that it had loaded.",
        scene("direct", "EPOCH"),
    ),
    Switch(
        "R15",
        "the mark is read while the old backend may still commit (strict)",
        "The write is refused, and it has landed.",
        scene("unknown"),
    ),
    Switch(
        "R15_EPOCH",
        "the same under epoch",
        "The write has landed twice.",
        scene("unknown", "EPOCH"),
    ),
    Switch(
        "R16",
        "no second look-up after the key's lock",
        "The request is refused as spent, and it has landed.",
        scene("idempotent"),
    ),
    Switch(
        "R16_RECORD",
        "the record is written in a transaction of its own, after the write's (epoch)",
        "The request has landed twice.",
        scene("idempotent", "EPOCH"),
    ),
    Switch(
        "R18",
        "whose the mark is is asked before the verdict",
        "A is refused, and the holder that is named did not come after it.",
        scene("source"),
    ),
    Switch(
        "R19",
        "connections do not compare the timeline (epoch)",
        "A's older token is accepted after B's acknowledged write.",
        scene("failover", "EPOCH"),
    ),
    Switch(
        "R19_VOID",
        "an operator lets the promoted standby write, and older tokens are not void (epoch)",
        "A's older token is accepted after B's acknowledged write.",
        scene("failover", "EPOCH"),
    ),
    Switch(
        "R20",
        "a write locks a row before it enters the row's scope",
        "B waits for C's row and C for B's scope: neither can go on, and A waits for both.",
        scene("order"),
    ),
)
"""Every part that can be taken out, by rule."""

OUTSIDE: Final = {
    17: "not built yet",
}
"""Rules that are not in the model, and why."""
