"""The judgement: what was committed, in which order, under which token, against what was promised and what was
answered.

It reads the log (log.py) and the writers' own record of their answers, and shares no code with the product. Promised:

- A write to a protected table is accepted only under a token above all that were accepted for its row before (under
  the rule epoch: not below), whatever happened to the table in between: unprotected and protected again, renamed, of
  another type, in another scope, detached. The same holds for the rows of one scope together. A claim that was
  acknowledged counts as accepted from where the log reports it.
- On a table of the built-in source a token of an earlier generation is not accepted.
- A gateway writes to a table only while it is protected.
- No gateway writes to a restored database before its generation was raised.
- What was answered with success is in the log exactly once; what was refused is not (answers.py).

Not promised, and not judged: direct writes to a table while it is not protected (they raise nothing either). After a
restore that counts which was accepted before the dump began.
"""

import copy
import json
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from tests.robustness.ddl_storm.world import APART, KEYS, PREFIX, Change, Message, Operation, Transaction, group_of

LONGEST = 14
"""How many lines of a row's history are shown."""


@dataclass(frozen=True)
class Standing:
    """How a line's table is protected."""

    rule: str
    source: str
    scope: str | None


@dataclass(frozen=True)
class Accepted:
    """The highest token of a row or scope, who wrote under it, and its line in the history."""

    token: int
    xid: int
    operation: str | None
    at: int


@dataclass
class Memory:
    """All that the judgement goes by. A dump has a copy of it."""

    standing: dict[str, Standing] = field(default_factory=dict)
    rows: dict[str, Accepted] = field(default_factory=dict)
    scopes: dict[str, Accepted] = field(default_factory=dict)
    generation: int = 0
    """The first token of the generation."""
    vouched: bool = True
    """False: a dump was put in the database's place, and the generation was not raised since."""


def line_of(lk: str) -> str:
    return lk.partition(":")[0]


def scope_of(lk: str) -> str:
    return f"{PREFIX}/{group_of(int(lk.partition(':')[2]))}"


class Oracle:
    """Reads transaction by transaction; `wrong` has every violation, each with its shortest relevant history."""

    def __init__(self, operations: dict[str, Operation]) -> None:
        self._operations = operations
        self._memory = Memory()
        self._dumps: dict[str, Memory] = {}
        self._history: list[tuple[str, str]] = []
        """(row, line, scope or "" for all; what happened)"""
        self.applied: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.bare: Counter[str] = Counter()
        """How often each row was deleted by an operation that did not record its name."""
        self._nameless = [each for each in operations.values() if not each.named and each.outcome in ("done", "maybe")]
        self._taken: set[tuple[str, str]] = set()
        self.wrong: list[str] = []
        self.fenced: Counter[str] = Counter()

    def read(self, transaction: Transaction) -> None:
        """Take in what was committed next."""
        output = [e.content for e in transaction.entries if isinstance(e, Message) and e.prefix == "op"]
        output += [
            e.new["key"] or ""
            for e in transaction.entries
            if isinstance(e, Change) and e.schema == "fencepost" and e.new is not None
        ]
        for entry in transaction.entries:
            if isinstance(entry, Message):
                self._read_message(entry)
            elif entry.schema == "public":
                self._see(entry, transaction.xid, output)

    def _note(self, about: str, text: str) -> int:
        self._history.append((about, text))
        return len(self._history) - 1

    # What happened to tables

    def _read_message(self, message: Message) -> None:
        if message.prefix not in ("state", "claimed", "ddl", "generation", "dump", "restored"):
            return
        content: dict[str, Any] = json.loads(message.content)
        match message.prefix:
            case "state":
                self._change_standing(content)
            case "claimed":
                self._claim(content)
            case "ddl":
                self._note(content["line"], content["text"])
            case "generation":
                self._memory.generation = int(content["generation"]) << 48
                self._memory.vouched = True
                self._note("", f"generation {content['generation']} began at {self._memory.generation}")
            case "dump":
                self._dumps[content["name"]] = copy.deepcopy(self._memory)
                self._note("", f"the dump {content['name']} began")
            case "restored":
                self._memory = self._dumps[content["name"]]
                self._memory.vouched = False
                self._note("", f"the dump {content['name']} was restored, and put in this database's place")

    def _change_standing(self, content: dict[str, Any]) -> None:
        line, memory = content["line"], self._memory
        if line is None:
            return
        before = memory.standing.pop(line, None)
        if content["rule"] is not None:
            memory.standing[line] = Standing(content["rule"], content["source"], content["scope"])
        after = memory.standing.get(line)
        if before == after:
            return
        self._note(line, f"{line} was {before or 'unprotected'}, and is {after or 'unprotected'}")
        rows = [f"{line}:{number}" for number in range(KEYS)]
        if before is not None and before.scope is not None and (after is None or after.scope is None):
            for lk in rows:  # marks go along
                _raise(memory.rows, lk, memory.scopes.get(scope_of(lk)))
        if after is not None and after.scope is not None:
            for lk in rows:
                _raise(memory.scopes, scope_of(lk), memory.rows.get(lk))

    def _claim(self, content: dict[str, Any]) -> None:
        about, token = content.get("lk") or content["scope"], int(content["token"])
        at = self._note(about, f"a claim of {about} under {token} had been answered 200")
        self._require_vouched(f"a claim of {about} under {token}")
        held = self._memory.scopes if "scope" in content else self._memory.rows
        _raise(held, about, Accepted(token, 0, "a claim", at))
        if "lk" in content:
            standing = self._memory.standing.get(line_of(about))
            if standing is not None and standing.scope is not None:
                _raise(self._memory.scopes, scope_of(about), held[about])

    def _require_vouched(self, what: str) -> None:
        if not self._memory.vouched:
            self._memory.vouched = True  # once is enough
            self.wrong.append(f"{what}: accepted by a gateway before the generation was raised after a restore")

    # What happened to rows

    def _see(self, change: Change, xid: int, output: list[str]) -> None:
        old, new = change.old, change.new
        if new is None:
            assert old is not None
            lk = old["lk"] or ""
            operation = self._who_deleted(lk, output)
            what = f"deleted by {operation.id if operation else 'an operation that cannot be answer'}"
        else:
            lk = new["lk"] or ""
            if old is not None and old["op"] == new["op"]:
                return  # a claim, or marks written by protect
            operation = self._operations.get(new["op"] or "")
            if operation is not None:
                self.applied[operation.id][lk] += 1
            what = f"{'inserted' if old is None else 'updated'} by {new['op']}"
        token = operation.token if operation is not None else None
        self._judge(lk, xid, operation, token, f"{what} ({operation.what if operation else '?'}) in {change.table}")

    def _who_deleted(self, lk: str, output: list[str]) -> Operation | None:
        """Find the operation: mostly it recorded its name in the transaction."""

        def fits(operation: Operation) -> bool:
            return _may_delete(operation) and operation.may_concern(lk)

        named = [self._operations[each] for each in output if each in self._operations and fits(self._operations[each])]
        if free := [operation for operation in named if not self.applied[operation.id][lk]]:
            found = self._lowest_that_passes(lk, free)
            self.applied[found.id][lk] += 1
            return found
        # A DELETE by HTTP without a key: which one cannot be known. The lowest token that could pass is assumed: true
        # tokens rise, so this never accuses without cause.
        self.bare[lk] += 1
        nameless = [operation for operation in self._nameless if fits(operation)]
        if not (free := [operation for operation in nameless if (operation.id, lk) not in self._taken]):
            return None
        found = self._lowest_that_passes(lk, free)
        self._taken.add((found.id, lk))
        return found

    def _held(self, lk: str) -> list[Accepted]:
        """What a token for this row is compared with: the row's, and its scope's."""
        standing = self._memory.standing.get(line_of(lk))
        scope = self._memory.scopes.get(scope_of(lk)) if standing is not None and standing.scope is not None else None
        return [held for held in (self._memory.rows.get(lk), scope) if held is not None]

    def _lowest_that_passes(self, lk: str, candidates: list[Operation]) -> Operation:
        highest = max((held.token for held in self._held(lk)), default=0)
        standing = self._memory.standing.get(line_of(lk))
        lowest = highest if standing is not None and standing.rule == "epoch" else highest + 1
        passing = [o for o in candidates if (o.token or 0) >= lowest]
        return min(passing, key=lambda o: o.token or 0, default=None) or max(candidates, key=lambda o: o.token or 0)

    def _judge(self, lk: str, xid: int, operation: Operation | None, token: int | None, what: str) -> None:
        memory = self._memory
        standing = memory.standing.get(line_of(lk))
        if standing is None or (operation is not None and operation.what == APART):
            at = self._note(lk, f"{lk} {what}, not protected")
            if operation is not None and operation.what != APART and not operation.what.startswith("direct"):
                self._complain(lk, at - LONGEST, f"{lk} {what}: accepted by a gateway, and it was not protected")
            return
        at = self._note(
            lk, f"{lk} {what} under {token} [{standing.rule}, {standing.source}, {standing.scope or 'rows'}]"
        )
        if token is None:
            self._complain(lk, at - LONGEST, f"{lk} {what}: accepted without a token")
            return
        if operation is not None and not operation.what.startswith("direct"):
            self._require_vouched(f"{lk} {what}")
        name = operation.id if operation is not None else None
        now = Accepted(token, xid, name, at)
        self.fenced[standing.source] += 1
        for before in self._held(lk):
            if self._passes_wrongly(before, now, standing):
                self._complain(lk, before.at, f"{lk} {what}: {token} was accepted after {before.token}")
                # Once is enough: what follows is judged by this one.
                memory.rows.pop(lk, None)
                if standing.scope is not None:
                    memory.scopes.pop(scope_of(lk), None)
        if standing.source == "builtin" and token < memory.generation:
            self._complain(
                lk, at - LONGEST, f"{lk} {what}: {token} is of an earlier generation than {memory.generation}"
            )
        _raise(memory.rows, lk, now)
        if standing.scope is not None:
            _raise(memory.scopes, scope_of(lk), now)

    @staticmethod
    def _passes_wrongly(before: Accepted, now: Accepted, standing: Standing) -> bool:
        if now.token != before.token or standing.rule == "epoch":
            return now.token < before.token
        return now.xid != before.xid or (
            now.operation != before.operation and None not in (now.operation, before.operation)
        )

    def _complain(self, lk: str, since: int, what: str) -> None:
        standing = self._memory.standing.get(line_of(lk))
        about = {lk, line_of(lk), "", *([scope_of(lk)] if standing is not None and standing.scope else [])}
        history = [text for n, (who, text) in enumerate(self._history) if who in about and n >= since]
        cut = [] if len(history) <= LONGEST else [*history[:3], f"… {len(history) - LONGEST} more …"]
        shown = history if not cut else [*cut, *history[3 - LONGEST :]]
        self.wrong.append("\n".join([what, *(f"    {text}" for text in shown)]))


def _may_delete(operation: Operation) -> bool:
    return operation.what in ("DELETE", "DELETE many", "direct delete", APART)


def _raise(held: dict[str, Accepted], what: str, to: Accepted | None) -> None:
    before = held.get(what)
    if to is not None and (before is None or before.token <= to.token):
        held[what] = to
