"""An oracle inside the database: which submissions had which effect, in which order of their rows.

Its trigger draws a number while the row is locked, so the numbers order the effects of a row. The oracle shares no code
with the product; of its interface it knows what a token is made of (R12), and the column with a row's mark.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import asyncpg

ROWS = 64
KEYS = tuple(f"k{number}" for number in range(ROWS))

SCHEMA = f"""
CREATE SCHEMA oracle;
CREATE TABLE oracle.effects (n bigserial PRIMARY KEY, key text NOT NULL, tag text NOT NULL, token bigint);
CREATE INDEX ON oracle.effects (tag);
CREATE FUNCTION oracle.see() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO oracle.effects (key, tag, token)
  VALUES (NEW.id, NEW.tag, (to_jsonb(NEW) ->> 'last_fence_token')::bigint);
  RETURN NULL;
END $$;
CREATE TABLE public.orders (id text PRIMARY KEY, tag text);
INSERT INTO public.orders SELECT 'k' || i FROM generate_series(0, {ROWS - 1}) i;
"""
TRIGGER = (
    "CREATE TRIGGER zzzz_oracle AFTER INSERT OR UPDATE ON public.orders FOR EACH ROW EXECUTE FUNCTION oracle.see()"
)

Answer = Literal["acknowledged", "refused", "unknown"]


@dataclass(frozen=True, slots=True)
class Submission:
    """A write that was submitted, and what its writer was answered. `writer`: submits one after the other; `tag`: its
    own, of this write alone. `offset`: its place, when it was acknowledged. `repeated`: it had an Idempotency-Key and
    was submitted until it was acknowledged, so that it may have other places as well.
    """

    writer: str
    key: str
    tag: str
    answer: Answer
    offset: int | None = None
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class Effect:
    """One change of a row."""

    key: str
    tag: str
    token: int | None


async def effects_of(connection: asyncpg.Connection) -> list[Effect]:
    """Read what was done, in its order by row."""
    rows = await connection.fetch("SELECT key, tag, token FROM oracle.effects ORDER BY n")
    return [Effect(row["key"], row["tag"], row["token"]) for row in rows]


def judge(
    submissions: Iterable[Submission], effects: Sequence[Effect], places: Mapping[str, Collection[int]] | None = None
) -> list[str]:
    """List what is wrong; empty: each acknowledged submission has one effect, in the order of its row. `places`: the
    offsets at which a tag stands in the log. Kafka's producer may append a message twice, and report either place.
    """
    known = {each.tag: each for each in submissions}
    tokens = _wrong_tokens(known, effects, places or {})
    return [*_wrong_counts(known, effects), *tokens, *_wrong_orders(known, effects)]


def _wrong_counts(known: dict[str, Submission], effects: Sequence[Effect]) -> Iterable[str]:
    times = Counter(each.tag for each in effects)
    for tag in times.keys() - known.keys():
        yield f"{tag} had an effect, and was never submitted"
    for tag, each in known.items():
        allowed = {"acknowledged": (1,), "refused": (0,), "unknown": (0, 1)}[each.answer]
        if times[tag] not in allowed:
            under = [effect.token for effect in effects if effect.tag == tag]
            yield f"{tag} of {each.key} was {each.answer} (offset {each.offset}): {times[tag]} effects under {under}"
    for effect in effects:
        if effect.tag in known and known[effect.tag].key != effect.key:
            yield f"{effect.tag} was submitted for {known[effect.tag].key}, and changed {effect.key}"


def _wrong_tokens(
    known: dict[str, Submission], effects: Sequence[Effect], places: Mapping[str, Collection[int]]
) -> Iterable[str]:
    last: dict[str, int] = {}
    for effect in effects:
        if effect.token is None or effect.token <= last.get(effect.key, 0):
            yield f"{effect.tag} changed {effect.key} under token {effect.token}, after {last.get(effect.key)}"
        last[effect.key] = effect.token or 0
        submitted = known.get(effect.tag)
        if submitted is None or submitted.offset is None or submitted.repeated:
            continue
        stands_at = places.get(effect.tag, (submitted.offset,))
        if submitted.offset not in stands_at or last[effect.key] % 2**48 - 1 not in stands_at:
            yield f"{effect.tag} is at offset {submitted.offset}, and was done under token {effect.token}"


def _wrong_orders(known: dict[str, Submission], effects: Sequence[Effect]) -> Iterable[str]:
    """A writer submits to a row only after the submission before was acknowledged: so must the effects follow."""
    meant: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for each in known.values():
        if each.answer == "acknowledged":
            meant[each.writer, each.key].append(each.tag)
    seen: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for effect in effects:
        if effect.tag in known and known[effect.tag].answer == "acknowledged":
            seen[known[effect.tag].writer, effect.key].append(effect.tag)
    for (writer, key), tags in meant.items():
        if seen[writer, key] != tags:
            yield f"{writer} submitted to {key} {_first_difference(tags, seen[writer, key])}"


def _first_difference(meant: Sequence[str], seen: Sequence[str]) -> str:
    place = next(
        (place for place, pair in enumerate(zip(meant, seen, strict=False)) if pair[0] != pair[1]),
        min(len(meant), len(seen)),
    )
    return f"{list(meant[place : place + 3])}, and what was done there is {list(seen[place : place + 3])}"
