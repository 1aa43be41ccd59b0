"""
Elections by ZooKeeper, through the extra `zookeeper` (kazoo).

Under the root, each namespace has a node, and in it each election:

    /laneway/online/index          the last term's number, and whether it was handed over
    /laneway/online/index/holder   ephemeral: the holder, as long as its session lives
    /laneway/online/index/asked    the number of the term whose holder was asked to step down

A claim writes the number and creates `holder` in one transaction. A renewal is a write, which the
quorum confirms, and only in a live session: it proves that the session is alive, and restarts its
timeout. A read would not prove it, because a server that was cut off from the others still answers
reads.

A lost connection is a renewal that fails: the holder continues until its session may have expired
by its own clock. An expired session has lost the term.
"""

from __future__ import annotations

import contextlib
import threading
import time
from datetime import UTC, datetime
from typing import Any, TypeVar
from urllib.parse import quote, unquote

import msgspec

from laneway.cluster.term import clock
from laneway.cluster.term_store import Candidate, Claim, ElectionState, Renewal
from laneway.errors import EngineUnavailable, UsageError

try:
    from kazoo.client import KazooClient
    from kazoo.exceptions import (
        BadVersionError,
        KazooException,
        NodeExistsError,
        NoNodeError,
        RolledBackError,
        RuntimeInconsistency,
    )
    from kazoo.handlers.threading import KazooTimeoutError
except ImportError as error:  # pragma: no cover
    raise UsageError(
        'elections by ZooKeeper need kazoo; install it: pip install "laneway[zookeeper]"'
    ) from error

from collections.abc import Callable

T = TypeVar("T")

ROOT = "/laneway"
"""The root if the address names none."""

CONNECT_SECONDS = 5.0
"""Seconds that a call waits for a connection."""

ANSWER_SECONDS = 5.0
"""Seconds that a call waits for its answer."""

_CHANGED = (BadVersionError, NoNodeError, NodeExistsError, RolledBackError, RuntimeInconsistency)
"""The errors of a transaction whose conditions do not hold."""


class _Record(msgspec.Struct, frozen=True, omit_defaults=True):
    number: int = 0
    handed_over: bool = False


class _Holder(msgspec.Struct, frozen=True):
    number: int
    candidate: str
    who: str


_encode = msgspec.json.Encoder().encode


def check_address(call: str, address: object) -> tuple[str, str]:
    """
    Read `host:port,host:port/root`. Returns the hosts and the root. Raises UsageError.
    """
    text = address.removeprefix("zookeeper://") if isinstance(address, str) else ""
    hosts, _, root = text.partition("/")
    parts = [part for part in root.split("/") if part]
    if (
        not all(host.strip(": ") for host in hosts.split(","))
        or any(each.isspace() for each in text)
        or any(part in (".", "..") for part in parts)
    ):
        raise UsageError(
            f"{call}: expected zookeeper to be hosts and a root, like"
            f' "zk1:2181,zk2:2181/laneway", got {address!r:.80}'
        )
    return hosts, "/" + "/".join(parts) if parts else ROOT


def election_names(address: str, namespace: str) -> list[str]:
    """The names of the elections of a namespace, in order."""
    store = ZooKeeperTerms(address, namespace, "", 10.0)
    try:
        return store.names()
    finally:
        store.close()


class ZooKeeperTerms:
    """
    The terms of one election in ZooKeeper. A `TermStore`.

    `term`: the session's timeout in seconds, within the servers' limits: by default 4 to 40 s. A
    shorter session shortens the term.
    """

    def __init__(self, address: str, namespace: str, name: str, term: float) -> None:
        self._hosts, root = check_address("election", address)
        self._folder = f"{root}/{_node(namespace)}"
        self._path = f"{self._folder}/{_node(name)}"
        self._holder_path = f"{self._path}/holder"
        self._asked_path = f"{self._path}/asked"
        self._name = name
        self._term = term
        self._session = term
        self._lock = threading.Lock()  # guards the client
        self._client: Any = None
        self._is_closed = False
        self._number, self._version = 0, 0
        """The term that this object holds, and the version of the election's node at the claim."""
        self._holder: _Holder | None = None
        self._asked_at: float | None = None

    def state(self) -> ElectionState:
        record, _, _ = self._read(self._path, _Record)
        record = record or _Record()
        holder, _, created = self._read(self._holder_path, _Holder)
        asked, _, _ = self._read(self._asked_path, int)
        if holder is None:
            return ElectionState(
                name=self._name, number=record.number, handed_over=record.handed_over
            )
        return ElectionState(
            name=self._name,
            number=holder.number,
            state="stepping down" if asked == holder.number else "held",
            holder=holder.who,
            candidate=holder.candidate,
            since=datetime.fromtimestamp(created / 1000, UTC),
        )

    def claim(self, candidate: Candidate, term: float) -> Claim | ElectionState:
        record, version, _ = self._read(self._path, _Record)
        if record is None:
            self._run(lambda client: client.ensure_path_async(self._path))
            record, version, _ = self._read(self._path, _Record)
        record = record or _Record()
        holder, _, _ = self._read(self._holder_path, _Holder)
        if holder is not None and holder.candidate != candidate.id:
            return self.state()
        number = max(record.number + 1, time.time_ns() // 1_000_000)
        taken = _Holder(number, candidate.id, candidate.who)

        def claim(transaction: Any) -> None:
            transaction.set_data(self._path, _encode(_Record(number)), version=version)
            if holder is not None:  # from our own claim, whose answer was lost
                transaction.delete(self._holder_path)
            transaction.create(self._holder_path, _encode(taken), ephemeral=True)

        if not self._commit(claim):
            return self.state()
        self._number, self._version, self._holder = number, version + 1, taken
        self._asked_at = None
        return Claim(number, min(term, self._session), record.handed_over)

    def renew(self, number: int, term: float, bound: float) -> Renewal | None:
        if number != self._number or self._holder is None:
            return None
        holder, now = self._holder, clock()

        def renew(transaction: Any) -> None:
            transaction.check(self._path, self._version)
            transaction.set_data(self._holder_path, _encode(holder))

        if not self._commit(renew):
            return None
        left = min(term, self._session)
        asked, _, _ = self._read(self._asked_path, int)
        if asked != number:
            return Renewal(left, is_asked=False)
        if self._asked_at is None:
            self._asked_at = now
        left = min(left, self._asked_at + bound - now)
        return Renewal(left, is_asked=True) if left > 0 else None

    def ask(self, number: int | None = None) -> ElectionState:
        state = self.state()
        if state.state != "held" or number not in (None, state.number):
            return state
        asked = _encode(state.number)
        with contextlib.suppress(NoNodeError):
            try:
                self._run(lambda client: client.create_async(self._asked_path, asked))
            except NodeExistsError:
                self._run(lambda client: client.set_async(self._asked_path, asked))
        return self.state()

    def end(self, number: int, *, handed_over: bool) -> None:
        if number != self._number:
            return

        def end(transaction: Any) -> None:
            transaction.check(self._path, self._version)
            transaction.delete(self._holder_path)
            transaction.set_data(self._path, _encode(_Record(number, handed_over)))

        self._commit(end)
        self._number, self._holder = 0, None

    def names(self) -> list[str]:
        """The names of the namespace's elections."""
        try:
            nodes = self._run(lambda client: client.get_children_async(self._folder))
        except NoNodeError:
            return []
        return sorted(unquote(node) for node in nodes)

    def close(self) -> None:
        with self._lock:
            client, self._client, self._is_closed = self._client, None, True
        if client is not None:
            client.stop()
            client.close()

    # The client

    def _connected(self) -> Any:
        with self._lock:
            client = self._client
            if self._is_closed:
                raise EngineUnavailable(f"zookeeper {self._hosts}: the connection is closed")
            if client is None:
                client = KazooClient(
                    hosts=self._hosts,
                    timeout=self._term,
                    connection_retry={"max_tries": -1, "max_delay": 1.0},
                )
                self._learn_session(client)
                connected = client.start_async()
                if not connected.wait(CONNECT_SECONDS):
                    client.stop()
                    client.close()
                    raise EngineUnavailable(
                        f"zookeeper {self._hosts}: no server answers within"
                        f" {CONNECT_SECONDS:g} s; check the address, or start it"
                    )
                self._client = client
            return client

    def _learn_session(self, client: Any) -> None:
        """
        Read how long the servers keep a session: they may shorten the timeout that the client
        requests, and the client does not report it.
        """
        connection = client._connection  # noqa: SLF001
        connect = connection._connect  # noqa: SLF001

        def learning(*arguments: Any, **options: Any) -> Any:
            read_timeout, connect_timeout = connect(*arguments, **options)
            self._session = read_timeout * 1.5 / 1000  # it is two thirds of the session's timeout
            return read_timeout, connect_timeout

        connection._connect = learning  # noqa: SLF001

    def _run(self, call: Callable[[Any], Any]) -> Any:
        """Make one call, and wait for its answer at most `ANSWER_SECONDS`."""
        client = self._connected()
        try:
            return call(client).get(timeout=min(ANSWER_SECONDS, self._term))
        except _CHANGED:
            raise
        except (KazooException, KazooTimeoutError, OSError) as error:
            raise EngineUnavailable(
                f"zookeeper {self._hosts}: {str(error) or type(error).__name__:.200}; whether the"
                " change happened is not known",
                applied=None,
            ) from error

    def _commit(self, fill: Callable[[Any], None]) -> bool:
        """Run a transaction. Returns False if its conditions do not hold; nothing was changed."""

        def commit(client: Any) -> Any:
            transaction = client.transaction()
            fill(transaction)
            return transaction.commit_async()

        return not any(isinstance(result, Exception) for result in self._run(commit))

    def _read(self, path: str, kind: type[T]) -> tuple[T | None, int, int]:
        """A node's value (None without a node or value), version, and time of creation in ms."""
        try:
            value, status = self._run(lambda client: client.get_async(path))
        except NoNodeError:
            return None, 0, 0
        return (
            msgspec.json.decode(value, type=kind) if value else None,
            status.version,
            status.ctime,
        )


def _node(name: str) -> str:
    """A name as a node's: ZooKeeper refuses slashes, and names of dots."""
    return quote(name, safe="").replace(".", "%2E")
