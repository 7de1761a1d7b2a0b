"""Reads the functions of users' triggers: whether one looks at nothing but its own row, so that a write that fires it
may share a transaction with writes of other rows (decision 0050). Pure: it is given texts, and asks nobody.

What is read is the text that `pg_get_functiondef` gives. Understood are three functions that come with PostgreSQL, and
bodies in PL/pgSQL of four statements, where a record that is declared may stand for NEW (Hasura's form):

    NEW.column := expression;    IF … THEN … ELSIF … ELSE … END IF;    RETURN NEW | OLD | NULL;    NULL;

An expression is made of columns of NEW and OLD, constants, the words TG_OP and the like, operators and functions of
PostgreSQL's own that are listed here. The grammar is flat where precedence does not matter: what counts is which words
stand there. Whatever is not understood for certain is not read: then the trigger's writes go alone.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NoReturn

LONGEST: Final = 20_000
"""Characters of a definition that is read."""
DEEPEST: Final = 40
"""How deep parentheses, CASE and IF may be nested."""

_WORDS: Final = re.compile(r"\S+")

FUNCTIONS: Final = frozenset(
    _WORDS.findall("""
    now clock_timestamp statement_timestamp transaction_timestamp gen_random_uuid date_trunc date_part to_char to_date
    to_timestamp make_date timezone lower upper initcap btrim ltrim rtrim trim length char_length octet_length left
    right substr replace translate split_part lpad rpad repeat reverse strpos starts_with regexp_replace concat
    concat_ws md5 sha256 abs round ceil ceiling floor trunc sign mod power sqrt jsonb_build_object jsonb_set
    jsonb_strip_nulls to_jsonb array_length cardinality array_to_string string_to_array to_tsvector setweight""")
)
"""Functions of pg_catalog that depend on their arguments, the time, chance and settings of the session alone. None of
them reads a table, or a setting by its name."""
_VALUES: Final = frozenset(
    _WORDS.findall("""
    null true false current_timestamp localtimestamp current_date current_time localtime current_user session_user
    tg_op tg_name tg_when tg_level tg_table_name tg_table_schema tg_relname""")
)
_CONDITIONAL: Final = frozenset({"coalesce", "nullif", "greatest", "least"})
TYPES: Final = frozenset(
    _WORDS.findall("""
    text varchar character integer int bigint smallint int2 int4 int8 numeric decimal real double float4 float8 boolean
    bool date time timestamp timestamptz interval uuid json jsonb""")
)
_FIELDS: Final = _WORDS.findall("epoch year month day hour minute second quarter week dow doy isodow isoyear")
OPERATORS: Final[Mapping[str, str]] = {"!=": "<>"} | {
    symbol: symbol
    for symbol in _WORDS.findall("+ - * / % ^ = <> < > <= >= || ~ ~* !~ !~* -> ->> #> #>> @> <@ ? @@ ~~ !~~ ~~* !~~*")
}
"""Operators, by how they are spelled; the four at the end are LIKE and its kin."""
_LIKE: Final = frozenset({"like", "ilike"})
CASTS: Final = "::"
"""Stands among the names for casts between types of PostgreSQL's own."""
NAMES: Final = (*FUNCTIONS, *TYPES, *OPERATORS.values())
"""All names that what is read may use. Whoever has given one of them to something of his own may have put that in its
place."""

_TOKEN: Final = re.compile(
    r"""(?P<space>[ \t\n\r\f\v]+ | --[^\n\r]* | /\*(?:(?!\*/|/\*).)*\*/)
      | (?P<string>'(?:[^'\\]|'')*'(?!'))
      | (?P<number>(?:\d+(?:\.\d*)?|\.\d+)(?:e[-+]?\d+)?(?![\w.$]))
      | (?P<quoted>"[^"]+"(?!"))
      | (?P<word>[a-z_][a-z0-9_]*(?![\w$'"&]))
      | (?P<operator>(?:(?!--|/\*)[-+*/<>=~!@\#%^&|`?])+)
      | (?P<mark>:=|::|[(),;.])""",
    re.VERBOSE | re.IGNORECASE | re.DOTALL | re.ASCII,
)
_DEFINITION: Final = re.compile(
    r'CREATE OR REPLACE FUNCTION (?:[\w$]+|"[^"\n]+")\.(?:[\w$]+|"[^"\n]+")\(\)\n RETURNS trigger\n'
    r" LANGUAGE (?P<language>plpgsql|c|internal)\n"
    r"(?P<options>[^\n]*\n)??(?P<search_path> SET search_path TO [^\n]*\n)?"
    r"AS (?:'\$libdir/(?P<library>\w+)', )?(?P<quote>\$function[x]*\$)(?P<body>.*)(?P=quote)\n",
    re.DOTALL,
)
_OPTIONS: Final = re.compile(
    r"(?: (?:IMMUTABLE|STABLE|STRICT|LEAKPROOF|PARALLEL SAFE|PARALLEL RESTRICTED|COST \d+))*\n"
)


@dataclass(frozen=True, slots=True)
class Reading:
    """What a trigger's function does: which columns of its row it sets and reads, which names it uses of NAMES, what it
    returns (`new`, `old`, `null`), and whether it reads the row as a whole.
    """

    sets: frozenset[str]
    reads: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()
    returns: frozenset[str] = frozenset({"new"})
    reads_row: bool = False


@dataclass(frozen=True, slots=True)
class Trigger:
    """A trigger of the user's, as the catalog has it."""

    function: int
    """The oid of its function."""
    definition: str
    """What pg_get_functiondef gives of that, and as `digest` its MD5."""
    digest: str
    arguments: tuple[str, ...]
    of_row: bool
    """Whether it fires BEFORE the write of each row, as no constraint does, and none with transition tables."""
    condition_is_own: bool
    """Whether WHEN, if there is any, calls nothing but immutable functions of PostgreSQL's own."""
    deletes: bool
    """Whether it fires for DELETE, and for nothing else."""
    may_be_vouched_for: bool
    """Whether it is a trigger of rows that fires with the statement (fencepost.triggers_of_others)."""


@dataclass(frozen=True, slots=True)
class TableOfTriggers:
    """What of a table the verdict depends on: the columns of which a trigger may set none, since they decide which row
    it is, which lock it takes, or which token; and the columns whose types are PostgreSQL's own, or enums.
    """

    untouchable: frozenset[str]
    plain: frozenset[str]
    columns: frozenset[str]


def only_sets_columns(trigger: Trigger, shadowed: Collection[str]) -> bool:
    """Whether the function can leave nothing behind in its session. `shadowed`: names of NAMES that somebody has used
    for something of his own that could be taken for PostgreSQL's. Functions in C are taken at their word.
    """
    found = _DEFINITION.fullmatch(trigger.definition)
    if found is not None and found["language"] != "plpgsql":
        return True
    reading = read(trigger)
    return reading is not None and reading.names.isdisjoint(shadowed) and CASTS not in shadowed


def sees_own_row_only(trigger: Trigger, table: TableOfTriggers, shadowed: Collection[str]) -> bool:
    """Whether a write that fires the trigger may share a transaction: nothing that the trigger can see, or do, tells it
    from one that is alone.
    """
    if not trigger.of_row or not trigger.condition_is_own or CASTS in shadowed:
        return False
    reading = read(trigger)
    return (
        reading is not None
        and reading.names.isdisjoint(shadowed)
        and reading.returns <= ({"new", "old"} if trigger.deletes else {"new"})
        and reading.sets <= table.columns
        and reading.sets.isdisjoint(table.untouchable)
        and (reading.sets | (table.columns if reading.reads_row else reading.reads)) <= table.plain
    )


def read(trigger: Trigger) -> Reading | None:
    """Read a trigger's function; None: it is not understood."""
    found = _DEFINITION.fullmatch(trigger.definition) if len(trigger.definition) <= LONGEST else None
    if found is None or (found["options"] and _OPTIONS.fullmatch(found["options"]) is None):
        return None
    if found["language"] == "plpgsql":
        return read_body(found["body"])
    known = (found["library"], found["body"])
    if known == (None, "suppress_redundant_updates_trigger"):
        return Reading(frozenset())
    if known in (("moddatetime", "moddatetime"), (None, "tsvector_update_trigger_byid")) and trigger.arguments:
        return Reading(frozenset(trigger.arguments[:1]), frozenset(trigger.arguments[2:]))
    return None


def read_body(body: str) -> Reading | None:
    """Read a body in PL/pgSQL; None: it is not understood."""
    try:
        return _Reader(_as_new(_tokens(body))).block()
    except (_NotReadError, RecursionError):  # a row of IS NULL may be as long as the body
        return None


class _NotReadError(Exception):
    pass


def _tokens(body: str) -> list[str]:
    """Cut a body into words in small letters, constants (as `0`), columns in quotes, operators and marks."""
    tokens: list[str] = []
    at = 0
    while at < len(body):
        found = _TOKEN.match(body, at)
        if found is None:
            raise _NotReadError
        at = found.end()
        match found.lastgroup:
            case "space":
                pass
            case "word":
                tokens.append(found[0].lower())
            case "string":
                tokens.append("'")
            case "number":
                tokens.append("0")
            case _:
                tokens.append(found[0])
    return tokens


def _as_new(tokens: list[str]) -> list[str]:
    """Read Hasura's form as if it were written with NEW: a record is declared, is NEW at first, and stands in its place
    from then on.
    """
    match tokens:
        case ["declare", name, "record", ";", "begin", first, ":=" | "=", "new", ";", *rest] if first == name:
            fields = {after for dot, after in pairwise(rest) if dot == "."}
            if "new" in rest or name in fields:
                raise _NotReadError
            return ["begin", *("new" if token == name else token for token in rest)]
    return tokens


@dataclass(slots=True)
class _Reader:
    """Walks over tokens from left to right; never back."""

    tokens: list[str]
    at: int = 0
    depth: int = 0
    sets: set[str] = field(default_factory=set)
    reads: set[str] = field(default_factory=set)
    names: set[str] = field(default_factory=set)
    returns: set[str] = field(default_factory=set)
    reads_row: bool = False

    def block(self) -> Reading:
        self.expect("begin")
        self.statements()
        self.expect("end")
        self.take(";")
        if self.at < len(self.tokens):
            self.fail()
        sets, reads, names, returns = map(frozenset, (self.sets, self.reads, self.names, self.returns))
        return Reading(sets, reads, names, returns, self.reads_row)

    def statements(self) -> None:
        while self.next not in ("end", "elsif", "elseif", "else"):
            match self.word():
                case "new":
                    self.expect(".")
                    self.sets.add(self.column())
                    if not self.take(":="):
                        self.expect("=")
                    self.expression()
                case "if":
                    self.condition_and_statements()
                    while self.take("elsif", "elseif"):
                        self.condition_and_statements()
                    if self.take("else"):
                        self.statements()
                    self.expect("end")
                    self.expect("if")
                case "return" if self.next in ("new", "old", "null"):
                    self.returns.add(self.word())
                case "null":
                    pass
                case _:
                    self.fail()
            self.expect(";")

    def condition_and_statements(self) -> None:
        self.deeper()
        self.expression()
        self.expect("then")
        self.statements()
        self.depth -= 1

    def expression(self) -> None:
        """Operands with operators between them, in any order of precedence."""
        self.operand()
        while self.operator():
            self.operand()

    def operator(self) -> bool:
        """Pass what stands between two operands; False: the expression has come to its end."""
        if self.take("and", "or"):
            return True
        if self.next in OPERATORS:
            self.names.add(OPERATORS[self.word()])
            return True
        if self.take("is"):
            self.take("not")
            if not self.take("distinct"):
                self.one_of("null", "true", "false", "unknown")
                return self.operator()
            self.expect("from")
            self.names.add("=")
            return True
        if self.take("at"):
            self.expect("time")
            self.expect("zone")
            return True
        negated = self.take("not")
        if self.take("between"):  # its AND is passed like any other
            self.names.update(("<=", ">=", "<", ">"))
            return True
        if self.next in _LIKE:
            symbol = "~~" if self.word() == "like" else "~~*"
            self.names.update((symbol, f"!{symbol}"))
            return True
        if self.take("in"):
            self.names.update(("=", "<>"))
            self.arguments()
            return self.operator()
        if negated:
            self.fail()
        return False

    def operand(self) -> None:
        while self.next in ("not", "-", "+"):
            if (sign := self.word()) != "not":
                self.names.add(sign)
        word = self.word()
        if word in ("0", "'"):
            pass
        elif word == "(":
            self.at -= 1
            self.arguments()
        elif word in ("new", "old"):
            self.row()
        elif word == "row":
            self.arguments()
        elif word == "case":
            self.case()
        elif word == "cast":
            self.expect("(")
            self.deeper()
            self.expression()
            self.expect("as")
            self.type()
            self.expect(")")
            self.depth -= 1
        elif word in _VALUES:
            if word.startswith(("current_t", "local")) and self.take("("):  # its precision
                self.expect("0")
                self.expect(")")
        else:
            self.call(word)
        while self.take("::"):
            self.type()

    def row(self) -> None:
        """A column of NEW or OLD, or all of it."""
        if not self.take(".") or self.take("*"):
            self.names.add("=")
            self.reads_row = True
        else:
            self.reads.add(self.column())

    def case(self) -> None:
        self.deeper()
        if self.next != "when":
            self.names.add("=")
            self.expression()
        self.expect("when")
        while True:
            self.expression()
            self.expect("then")
            self.expression()
            if not self.take("when"):
                break
        if self.take("else"):
            self.expression()
        self.expect("end")
        self.depth -= 1

    def call(self, word: str) -> None:
        """A function's call, or a constant of a type: interval '1 day'."""
        if word == "pg_catalog" and self.take("."):
            word = self.word()
        elif word in TYPES and self.take("'"):
            self.names.add(word)
            return
        if word == "extract":
            self.expect("(")
            self.deeper()
            self.one_of(*_FIELDS)
            self.expect("from")
            self.expression()
            self.expect(")")
            self.depth -= 1
            return
        if word not in FUNCTIONS and word not in _CONDITIONAL:
            self.fail()
        self.names.update({"nullif": {"="}, "greatest": {"<", ">"}, "least": {"<", ">"}}.get(word, {word} & FUNCTIONS))
        self.arguments()

    def arguments(self) -> None:
        """Expressions in parentheses, with commas between them."""
        self.expect("(")
        self.deeper()
        if not self.take(")"):
            self.expression()
            while self.take(","):
                self.expression()
            self.expect(")")
        self.depth -= 1

    def type(self) -> None:
        name = self.one_of(*TYPES)
        self.names.add(name)
        if name == "double":
            self.expect("precision")
        if name == "character":
            self.take("varying")
        if self.take("("):
            self.expect("0")
            if self.take(","):
                self.expect("0")
            self.expect(")")
        if name in ("time", "timestamp") and self.take("with", "without"):
            self.expect("time")
            self.expect("zone")

    def column(self) -> str:
        """The column after `NEW.`, which is followed by no field of it, and is no function of a schema `new`."""
        name = self.word()
        if self.next in (".", "(") or not (name[0] == '"' or re.fullmatch(r"[a-z_]\w*", name, re.ASCII)):
            self.fail()
        return name.strip('"')

    @property
    def next(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def word(self) -> str:
        word = self.next or self.fail()
        self.at += 1
        return word

    def take(self, *words: str) -> bool:
        taken = self.next in words
        self.at += taken
        return taken

    def expect(self, word: str) -> None:
        if not self.take(word):
            self.fail()

    def one_of(self, *words: str) -> str:
        return self.word() if self.next in words else self.fail()

    def deeper(self) -> None:
        self.depth += 1
        if self.depth > DEEPEST:
            self.fail()

    def fail(self) -> NoReturn:
        raise _NotReadError
