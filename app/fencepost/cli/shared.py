"""What commands on the database share: options of settings, the connection, tables that are printed."""

import asyncio
import functools
import os
import signal
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Literal, TypeVar, get_args, get_origin

import asyncpg
import click
from pydantic import SecretStr, ValidationError
from pydantic.fields import FieldInfo

from fencepost.server.ops import schema as versions
from fencepost.server.ops.embedded_files import EmbeddedServerError, running_url
from fencepost.server.ops.protect import ProtectError
from fencepost.server.postgres import connection as session
from fencepost.server.postgres.connection import UNREADABLE_URL
from fencepost.server.postgres.errors import StorageError
from fencepost.server.settings import DECIDING, FILES, Settings

# Every setting as a command line option. Precedence: option, then FENCEPOST_* variable, then default.

_PREFIX = Settings.model_config["env_prefix"]


class BadSettingError(click.ClickException):
    """A setting has a value that it cannot have. The message names its option and its variable."""

    exit_code = 2


def settings_options(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate a command with an option for each of these settings, or for all when none is named.

    The command gets them, together with the variables and defaults, as the keyword argument `settings`. A bad
    value ends the command with one line and exit code 2.
    """
    known = tuple(Settings.model_fields)
    chosen = tuple(name for name in known if not names or name in names or name.removesuffix("_file") in names)

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def with_settings(**arguments: Any) -> Any:
            given = {name: arguments.pop(name) for name in chosen}
            return command(settings=read_settings(given), **arguments)

        decorated: Callable[..., Any] = with_settings
        for name in reversed(chosen):
            decorated = _option(name, Settings.model_fields[name])(decorated)
        return decorated

    return decorate


def read_settings(given: dict[str, Any]) -> Settings:
    """Build the settings from options (None: not given) and environment, and warn of variables that are empty and
    decide something. Raises BadSettingError.
    """
    for name in DECIDING:
        if given.get(name) == "":  # of a shell's variable that has nothing, as in --jwt-secret "$SECRET"
            raise BadSettingError(
                f"bad value for {flag(name)} ({variable(name)}): it is empty; or leave the option out"
            )
    try:
        settings = Settings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        raise BadSettingError("; ".join(_explain(detail) for detail in error.errors())) from None
    if empty := _empty_variables(settings, given):
        click.echo(f"WARNING  set, but empty, and so as if not set: {', '.join(empty)}", err=True)
    return settings


def _empty_variables(settings: Settings, given: dict[str, Any]) -> list[str]:
    """Name the variables that are empty and would decide something for a command that has the options `given`, where
    neither an option nor a file says it instead.
    """
    empty = {name.upper() for name, value in os.environ.items() if value == ""}
    said = {name for name in DECIDING if f"{name}_file" in FILES and getattr(settings, name) is not None}
    return [
        variable(name)
        for name in DECIDING
        if name in given and given[name] is None and variable(name) in empty
        if name.removesuffix("_file") not in said
    ]


def to_environment(settings: Settings) -> dict[str, str]:
    """Spell settings as FENCEPOST_* variables, from which Settings() reads the same values again."""
    variables = {}
    for name in Settings.model_fields:
        value = getattr(settings, name)
        # It has been read, and may be another one by the time that a process begins.
        if name.removesuffix("_file") in Settings.model_fields.keys() - {name}:
            value = None
        if isinstance(value, SecretStr):
            value = value.get_secret_value()
            # A secret that begins so is no @FILE for the process that reads it again. Blanks around it do not count.
            value = f" {value}" if name == "jwt_secret" and value.startswith("@") else value
        variables[variable(name)] = "" if value is None else str(value)
    return variables


def flag(name: str) -> str:
    """Name a setting's option: `data_dir` is `--data-dir`."""
    return "--" + name.replace("_", "-")


def variable(name: str) -> str:
    """Name a setting's environment variable: `data_dir` is FENCEPOST_DATA_DIR."""
    return (_PREFIX + name).upper()


def _option(name: str, field: FieldInfo) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    default = "" if field.default in (None, "") else f"; default: {_display(field.default)}"
    text = f"{field.description}  [{variable(name)}{default}]"
    if field.annotation is bool:
        return click.option(f"{flag(name)}/{flag('no_' + name)}", name, default=None, help=text)
    # Values stay text: Settings judges them, so that an option and a variable fail in the same words.
    return click.option(flag(name), name, default=None, metavar=_metavar(name, field.annotation), help=text)


def _metavar(name: str, annotation: Any) -> str:
    if get_origin(annotation) is Literal:
        return f"[{'|'.join(get_args(annotation))}]"
    kinds = {int: "INTEGER", float: "SECONDS", Path: "PATH"}
    if SecretStr in get_args(annotation):
        return "SECRET" if name.endswith("_secret") else "URL"
    return kinds.get(annotation, "TEXT")


def _display(default: object) -> str:
    if isinstance(default, bool):
        return "on" if default else "off"
    return f"{default:g}" if isinstance(default, float) else str(default)


def _explain(detail: Any) -> str:
    # What is wrong with a file is found by the setting that takes its content, and the message has the file's name.
    of = detail.get("ctx", {}).get("of")
    name = of or str(detail["loc"][0])
    # A database URL holds a password.
    hidden = of or SecretStr in get_args(Settings.model_fields[name].annotation)
    shown = "" if hidden else f", not {str(detail['input'])!r}"
    return f"bad value for {flag(name)} ({variable(name)}): {detail['msg'].removeprefix('Value error, ')}{shown}"


T = TypeVar("T")


def database_url(settings: Settings) -> str:
    """Return the database's URL: the one that is set, or that of the embedded server running in the data directory."""
    if settings.database_url is not None:
        return settings.database_url.get_secret_value()
    try:
        url = running_url(settings.data_dir)
    except EmbeddedServerError as error:
        raise click.ClickException(str(error)) from error
    if url is None:
        raise click.ClickException(
            "no database: set --database-url or FENCEPOST_DATABASE_URL. (Without one, this command looks for the "
            f"embedded PostgreSQL of a running `fencepost serve` in {settings.data_dir}, and there is none.)"
        )
    return url


def on_database(settings: Settings, work: Callable[[asyncpg.Connection], Awaitable[T]], *, migrated: bool = True) -> T:
    """Run `work` on a connection; whatever PostgreSQL refuses is one line and exit code 1."""

    async def run() -> T:
        connection = await session.connect_first(database_url(settings), session.DURABLE)
        try:
            if migrated and not (schema := await versions.fit(connection)).works:
                text = schema.describe()
                raise click.ClickException(text if schema.found is None else f"schema fencepost: {text}")
            return await work(connection)
        finally:
            await connection.close()

    return run_command(run)


def run_command(run: Callable[[], Awaitable[T]]) -> T:
    """Run to the end, turning what can go wrong with a database into one line."""

    async def main() -> T:
        return await run()

    try:
        return asyncio.run(main())
    except ProtectError as error:
        raise click.ClickException("\n  ".join([f"{error.table}:", *error.reasons])) from error
    except StorageError as error:
        raise click.ClickException(str(error)) from error
    except asyncpg.PostgresError as error:
        hint = f" {error.hint}" if error.hint else ""
        raise click.ClickException(f"PostgreSQL refused: {error.message or error} ({error.sqlstate}).{hint}") from error
    except (ValueError, OverflowError) as error:  # the first quotes the URL, and with it perhaps the password
        raise click.ClickException(UNREADABLE_URL) from error
    except (OSError, TimeoutError, asyncpg.InterfaceError) as error:
        raise click.ClickException(f"cannot connect to PostgreSQL: {str(error) or type(error).__name__}") from error


@contextmanager
def one_line(*errors: type[Exception]) -> Iterator[None]:
    """Turn these errors into one line and exit code 1."""
    try:
        yield
    except errors as error:
        raise click.ClickException(str(error)) from error


@contextmanager
def handling_stops(handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Have SIGINT and SIGTERM handled until the block ends; also where a shell had ignored them."""
    previous = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, before)


def print_table(header: tuple[str, ...], lines: Sequence[tuple[str, ...]]) -> None:
    """Print lines under a header, in columns that are as wide as what stands in them."""
    widths = [max(len(line[n]) for line in [header, *lines]) for n in range(len(header))]
    for line in [header, *lines]:
        click.echo("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())
