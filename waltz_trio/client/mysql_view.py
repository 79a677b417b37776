"""The view in a database of MySQL or MariaDB."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import parse_qsl, unquote, urlsplit

from waltz_core.base.errors import ConfigError
from waltz_trio.client.shown import shown
from waltz_trio.client.sql_identity import IDENTITIES
from waltz_trio.client.sql_sessions import Session
from waltz_trio.client.sql_view import HALF, TABLE, SqlView
from waltz_trio.client.values import Transaction
from waltz_trio.client.views import Keys

if TYPE_CHECKING:
    from pymysql.cursors import Cursor

    from waltz_trio.client.mysql_session import MySqlSession

_OURS = ("autocommit", "client_flag", "cursorclass", "defer_connect", "init_command")
_BOOLEANS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_CERTIFICATES = ("none", "optional", "required")  # what the driver reads itself; other text turns its checks off


def _whole(value: str) -> int:
    number = int(value)
    if number <= 0:
        raise ValueError
    return number


def _seconds(value: str) -> float:
    number = float(value)
    if not (number > 0 and math.isfinite(number)):
        raise ValueError
    return number


def _boolean(value: str) -> bool:
    if value.lower() not in _BOOLEANS:
        raise ValueError
    return _BOOLEANS[value.lower()]


def _verification(value: str) -> bool | str:
    return value.lower() if value.lower() in _CERTIFICATES else _boolean(value)


_TEXT: tuple[Callable[[str], Any], str] = str, "a text"
_NUMBER = _whole, "a whole number above 0"
_TIME = _seconds, "a number of seconds above 0"
_SWITCH = _boolean, "true or false"
_IN_URLS: dict[str, tuple[Callable[[str], Any], str]] = {
    **dict.fromkeys(("host", "user", "password", "passwd", "database", "unix_socket", "bind_address"), _TEXT),
    **dict.fromkeys(("charset", "collation", "sql_mode", "program_name"), _TEXT),
    **dict.fromkeys(("read_default_file", "read_default_group"), _TEXT),
    **dict.fromkeys(("ssl_ca", "ssl_cert", "ssl_key", "ssl_key_password"), _TEXT),
    **dict.fromkeys(("port", "max_allowed_packet"), _NUMBER),
    **dict.fromkeys(("connect_timeout", "read_timeout", "write_timeout"), _TIME),
    **dict.fromkeys(("use_unicode", "local_infile", "binary_prefix", "ssl_disabled", "ssl_verify_identity"), _SWITCH),
    "ssl_verify_cert": (_verification, "true, false or optional"),
    "server_public_key": (str.encode, "a key in PEM"),  # the driver wants bytes
}
"""Arguments of `pymysql.connect` that text can say: what reads them, and what it expects."""


class MySqlView(SqlView["Cursor"]):
    """State in MySQL or MariaDB: `apply(txn, cursor)` changes it, inside the transaction that moves the mark.

    `apply` and `decide` get a cursor of PyMySQL that can neither begin nor end transactions, and that of `decide`
    cannot change data either. A database may be shared by several processes, some of them of 0.13.2: each transaction
    is applied by one of them. The database remembers whose its marks are: a view of another name, or of another
    version, is refused. Tables must be InnoDB's. Needs the extra `mysql`.

    Args:
        where: `mysql://user:password@host:3306/database[?connect_timeout=5&ssl_ca=PATH]`, with arguments of
            `pymysql.connect` as options, or these arguments as a mapping.
        apply: what a transaction does to the data.
        apply_many: does the same with several transactions in fewer statements.
        schema: SQL statements, run whenever a view opens its database: CREATE TABLE IF NOT EXISTS.
        table: where the marks are kept.
        busy_timeout: seconds, at least 1, to wait for a lock of another process before trying again later.
        name: of the view; that of the function `apply` and its module unless given.
        version: of what `apply` and `schema` mean; raise it when old data would be wrong.
        rebuild: where the database holds an older version, drop the tables and views of its schema and begin at the
            start of the log.
        keys: where transactions carry idempotency keys, and how long they are remembered.
    """

    _atomic_definitions = False
    _defers = True
    _add_mark = "INSERT IGNORE INTO {table} (PARTITION_ID, HIGH_WATER_MARK) VALUES (?, -1)"
    _put_mark = (
        "INSERT INTO {table} (PARTITION_ID, HIGH_WATER_MARK) VALUES (?, ?) "
        "ON DUPLICATE KEY UPDATE HIGH_WATER_MARK = VALUES(HIGH_WATER_MARK)"
    )
    _put_identity = (
        f"REPLACE INTO {IDENTITIES} (MARK_TABLE, VIEW_NAME, VIEW_VERSION, SCHEMA_TABLES) VALUES (?, ?, ?, ?)"
    )
    _put_key = (
        "INSERT INTO {table}_KEYS (PARTITION_ID, REQUEST_KEY, TRANSACTION_ID, REQUEST_HASH) VALUES (?, ?, ?, ?) "
        "ON DUPLICATE KEY UPDATE "  # from left to right: the first line needs the old TRANSACTION_ID
        "REQUEST_HASH = IF(TRANSACTION_ID < VALUES(TRANSACTION_ID) - {window}, VALUES(REQUEST_HASH), REQUEST_HASH), "
        "TRANSACTION_ID = IF(TRANSACTION_ID < VALUES(TRANSACTION_ID) - {window}, "
        "VALUES(TRANSACTION_ID), TRANSACTION_ID)"
    )
    _key_text = "VARBINARY(255)"  # texts are compared by a collation, and without their last spaces
    _table_options = " ENGINE = InnoDB"

    def __init__(
        self,
        where: str | Mapping[str, Any],
        apply: Callable[[Transaction, Cursor], None],
        *,
        apply_many: Callable[[Sequence[Transaction], Cursor], None] | None = None,
        schema: str = "",
        table: str = TABLE,
        busy_timeout: float = 5.0,
        name: str | None = None,
        version: int = 1,
        rebuild: bool = False,
        keys: Keys | None = None,
    ) -> None:
        try:
            from waltz_trio.client import mysql_session
        except ImportError as error:
            raise ConfigError(f"MySqlView needs PyMySQL ({error}): pip install 'waltz-log[mysql]'") from error
        self._driver = mysql_session
        self._options = _options_of(where)
        self._claimed = False
        place = self._options.get("unix_socket") or f"{self._options.get('host')}:{self._options.get('port', 3306)}"
        super().__init__(
            f"database {self._options['database']!r} at {place}",
            apply,
            mysql_session.ERRORS,
            schema=schema,
            table=table,
            busy_timeout=busy_timeout,
            name=name,
            version=version,
            rebuild=rebuild,
            keys=keys,
            apply_many=apply_many,
        )

    def _connect(self, reads: bool) -> MySqlSession:
        if not self._claimed:
            session = self._driver.MySqlSession(self._options, self._busy_timeout, claims=True)
            try:
                self._claim_database(session)
            finally:
                session.close()  # it takes several statements at a time
            self._claimed = True
        return self._driver.MySqlSession(self._options, self._busy_timeout, reads=reads)

    def _claim_database(self, session: MySqlSession) -> None:
        """Under a lock of the server's, for definitions change outside of transactions.

        An identity of a negative version says that a rebuild of that version has begun: whoever finds it goes on.
        """
        with session.transaction() as cursor:
            # MySQL 8 takes names of up to 64 characters, as that of a database may be by itself.
            name = "CONCAT('waltz_views.', IF(CHAR_LENGTH(DATABASE()) > 52, SHA1(DATABASE()), DATABASE()))"
            cursor.execute(f"SELECT GET_LOCK({name}, %s)", (max(1, self._busy_timeout),))
            row = cursor.fetchone()
            if row != (1,):
                raise self._driver.busy("another process makes the tables of this database")
        with session.transaction() as cursor:
            self._create_tables(cursor)
            replaced = self._identity.claim(cursor)
            views = self._views_of(cursor, replaced or ())
        for name in views:
            session.run(f"DROP VIEW IF EXISTS {name}")
        if tables := [name for name in replaced or () if name not in views]:
            session.run(
                f"SET FOREIGN_KEY_CHECKS = 0; DROP TABLE IF EXISTS {', '.join(tables)}; SET FOREIGN_KEY_CHECKS = 1"
            )
        if self._schema.strip():
            with self._running_schema():
                session.run(self._schema)
        with session.transaction() as cursor:
            self._check_engines(cursor)
            if replaced is not None:
                self._identity.write(cursor, self._tables(), self.version)

    def _views_of(self, cursor: Cursor, names: Iterable[str]) -> list[str]:
        """Those of the names that are a view's."""
        cursor.execute("SELECT LOWER(TABLE_NAME) FROM information_schema.VIEWS WHERE TABLE_SCHEMA = DATABASE()")
        found = {name for (name,) in cursor.fetchall()}
        return [name for name in names if _bare(name).lower() in found]

    def _check_engines(self, cursor: Cursor) -> None:
        """See that what the view writes to can be rolled back."""
        names = [self._table, IDENTITIES, *self._tables()]
        names = [_bare(name) for name in names]
        cursor.execute(
            "SELECT TABLE_NAME, ENGINE FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() "
            "AND TABLE_NAME IN %s AND ENGINE IN ('MyISAM', 'Aria', 'MEMORY', 'CSV', 'ARCHIVE', 'MRG_MyISAM')",
            (names,),
        )
        for name, engine in cursor.fetchall():
            raise ConfigError(f"table {name} is kept by {engine}, which knows no transactions: make it ENGINE = InnoDB")

    def _guarded(
        self, session: Session[Cursor], marks: Mapping[int, int], together: bool = False
    ) -> AbstractContextManager[Cursor]:
        change = f"UPDATE {self._table} SET HIGH_WATER_MARK = %d WHERE PARTITION_ID = %d"
        cast("MySqlSession", session).around_calls(
            [change % (HALF, partition) for partition in marks],
            [f"{change % (mark, partition)} AND HIGH_WATER_MARK = {HALF}" for partition, mark in marks.items()],
        )
        return super()._guarded(session, marks, together)

    def _check_open(self, cursor: Cursor) -> None:
        self._driver.check_open(cursor)

    def _own(self, theirs: Any) -> AbstractContextManager[Cursor]:
        return nullcontext(self._driver.plain_cursor(theirs.connection))

    def _passes(self, error: Exception) -> bool:
        return self._driver.passes(error)

    def _refuses_change(self, error: Exception) -> bool:
        return self._driver.code_of(error) == 1792

    def _loses_connections(self, error: Exception) -> bool:
        return self._driver.loses_connections(error)

    def _misses_table(self, error: Exception) -> bool:
        return self._driver.code_of(error) == 1146 and self._names_ours(error)


def _bare(name: str) -> str:
    """A name as the database keeps it: without quotes, and without that of its database."""
    return name.replace("`", "").rpartition(".")[2].strip()


def _options_of(where: str | Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of `pymysql.connect`.

    Raises:
        ConfigError: they cannot be used.
    """
    if isinstance(where, str):
        parts = urlsplit(where)
        database = unquote(parts.path.lstrip("/"))
        if parts.scheme not in ("mysql", "mariadb") or not (database and where.startswith(f"{parts.scheme}://")):
            raise ConfigError(
                "where: expected mysql://user:password@host:3306/database or a mapping, found another form"
            )
        options: dict[str, Any] = {"host": parts.hostname or "localhost", "database": database}
        for name, value in (("user", parts.username), ("password", parts.password)):
            if value is not None:
                options[name] = unquote(value)
        if parts.port is not None:
            options["port"] = parts.port
        options.update((name, _option(name, value)) for name, value in parse_qsl(parts.query, keep_blank_values=True))
    elif not isinstance(where, Mapping):
        raise TypeError(f"where: expected mysql://user:password@host:3306/database or a mapping, found {shown(where)}")
    else:
        options = dict(where)
        options.setdefault("database", options.pop("db", None))
        if not options["database"]:
            raise ConfigError("where: 'database' is missing")
    for name in _OURS:
        if name in options:
            raise ConfigError(f"where: {name!r} is for the view to set")
    return options


def _option(name: str, value: str) -> Any:
    """What the driver gets for an option of a URL: text for a number fails there, and "false" counts as true.

    Raises:
        ConfigError: there is no such option, or its value is none of its kind.
    """
    if name in _OURS:
        return value  # refused with those of a mapping
    if name not in _IN_URLS:
        raise ConfigError(f"where: a URL has no option {name!r}, only {', '.join(sorted(_IN_URLS))}")
    read, expected = _IN_URLS[name]
    try:
        return read(value)
    except ValueError:
        raise ConfigError(f"where: {name}: expected {expected}, found {value!r}") from None
