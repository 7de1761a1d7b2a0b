"""Operations in words: one sentence says what is wrong, and then come the operations that show it, each in a line."""

from fencepost.testing.checker.calls import Call
from fencepost.testing.history import NOT_READ, End


class Words:
    """Writes times as seconds since the history's first event."""

    def __init__(self, zero: int) -> None:
        self._zero = zero

    def listed(self, sentence: str, calls: list[Call]) -> str:
        """Put the operations below a sentence."""
        ordered = sorted(calls, key=lambda call: (call.invoke.time, call.id))
        return "\n".join([sentence, *(f"  {self.call(call)}" for call in ordered)])

    def time(self, time: int) -> str:
        """Write a time: `1.204 s`, with as many digits as there are, up to nanoseconds."""
        whole, rest = divmod(time - self._zero, 10**9)
        digits = f"{rest:09}".rstrip("0")
        return f"{whole}.{digits.ljust(3, '0')} s"

    def call(self, call: Call) -> str:
        """Describe one operation: who, what, from when to when, and the answer."""
        end = call.end
        begun = f"asked at {self.time(call.invoke.time)}"
        if end is None:
            return f"{self.deed(call)}: {begun}, no answer, and so it may have happened"
        if end.event == "unknown":
            why = f" ({end.why})" if end.why else ""
            proof = f", and happened by {self.time(call.ended)}, as a repeated answer shows" if call.certain else ""
            return f"{self.deed(call)}: {begun}, outcome unknown at {self.time(end.time)}{why}{proof}"
        return f"{self.deed(call)}: {begun}, {self._answer(call, end)} at {self.time(end.time)}"

    def deed(self, call: Call) -> str:
        """Describe what was asked for: `w3 wrote 'a' to orders/7 under token 33`."""
        invoke = call.invoke
        token = "" if invoke.token is None else f" under token {invoke.token}"
        key = "" if invoke.key is None else f" with the Idempotency-Key {invoke.key!r}"
        verbs = {
            "write": f"wrote {invoke.value!r} to {invoke.resource}",
            "delete": f"deleted {invoke.resource}",
            "claim": f"claimed {invoke.resource}",
            "read": f"read {invoke.resource}",
            "acquire": f"acquired {invoke.resource}",
            "release": f"released {invoke.resource}",
            "add": f"added {invoke.value!r} to {invoke.resource}",
            "read_set": f"read the set {invoke.resource}",
        }
        return f"{invoke.process} {verbs[invoke.op]}{token}{key}"

    def _answer(self, call: Call, end: End) -> str:
        if end.event == "refused":
            named = "" if end.mark is None else f", the mark being {end.mark},"
            return f"refused as {end.reason}{named}"
        again = "answered again with what was stored" if end.replayed else "accepted"
        if call.invoke.op == "acquire":
            return "granted" if end.token is None else f"granted with token {end.token}"
        if call.invoke.op in {"read", "read_set"}:
            again = "answered"
        saw = "" if end.value is NOT_READ else " with no row" if end.value is None else f" with {end.value!r}"
        mark = "" if end.token is None or not saw else f" and the mark {end.token}"
        return f"{again}{saw}{mark}"
