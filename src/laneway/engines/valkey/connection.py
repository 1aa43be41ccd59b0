"""
The connections to the server of a namespace.

A function call is one FCALL. A durable one is followed by WAITAOF or WAIT on the same connection,
in the same round trip. A call that the server refused before it changed anything (it is loading, no
longer the master, moving the slot, or does not have our functions yet) is tried again for a while.
If a connection breaks after the call was sent, the error says that its effect is unknown.
"""

from __future__ import annotations

import contextlib
import os
import random
import select
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import hiredis
from redis import exceptions as refusals
from redis.connection import AbstractConnection, ConnectionPool

from laneway.engines.sharded.splitting import partial_call
from laneway.engines.valkey import server_check
from laneway.engines.valkey.address import parse
from laneway.engines.valkey.errors import explain, is_hopeless, is_too_large
from laneway.engines.valkey.nodes import connect
from laneway.engines.valkey.pubsub import Subscription, Subscriptions
from laneway.engines.valkey.scripts import NAMES, SOURCE
from laneway.engines.valkey.server_check import Confirm
from laneway.engines.valkey.wire import max_length, packed, read_answer, read_info, read_or_raise
from laneway.errors import EngineUnavailable, LanewayError

PATIENCE, PATIENCE_AT_START = 10.0, 0.5
"""
Seconds for which a refused call is tried again. At the start it is short, because a person waits;
a server that loads its data is waited for also then.
"""

PAUSE_FIRST, PAUSE_MOST = 0.005, 0.25
"""Seconds between two tries: doubled each time, with jitter."""

LARGE, LARGE_SECONDS = 1_000_000, 1.0
"""
A connection that is lost with a command of so many bytes: ask the server whether it takes values of
that size, and wait so many seconds for a refusal.
"""

CLUSTER_SHARDS = 64

UNKNOWN_FUNCTION = "Function not found"

_LATER = (
    refusals.MovedError,
    refusals.AskError,
    refusals.TryAgainError,
    refusals.ClusterDownError,
    refusals.BusyLoadingError,
    refusals.ReadOnlyError,
    refusals.MasterDownError,
)
"""Refusals that end after a while, or at another node."""


class Connections:
    """
    The connections to the server, or servers, of one namespace. The namespace sets `keys_of`: the
    keys of a shard that every function gets.
    """

    def __init__(self, url: str, *, durability: str, checks: bool = True) -> None:
        self.address = parse(url)
        self.name = self.address.name
        self.durability = durability
        self.shards = self.address.shards
        self.usual_shards = CLUSTER_SHARDS if self.address.kind == "cluster" else 1
        self.keys_of: Callable[[int], tuple[str, str]] = lambda _: ("", "")
        self._closed = False
        self._patience = PATIENCE_AT_START
        self._idle = _Idle()
        self._nodes = connect(self.address, self.explain)
        try:
            self._confirm = server_check.check(self) if checks else None
            if checks:  # without checks a person waits for the answer
                self._patience = PATIENCE
        except BaseException:
            self.close()
            raise

    # Functions

    def call(
        self,
        shard: int,
        function: str,
        arguments: Sequence[Any],
        *,
        durable: bool = False,
        repeatable: bool = False,
    ) -> Any:
        """
        Call a function on a shard.

        `durable`: return after the server has confirmed the write as the durability says.
        `repeatable`: a second call changes nothing more, so a lost connection is tried again.
        Raises EngineUnavailable.
        """
        keys = self.keys_of(shard)
        command = packed("FCALL", NAMES[function], 2, *keys, *arguments)
        confirm = self._confirm if durable else None
        if confirm is not None:
            command += confirm.command

        def exchange(connection: AbstractConnection) -> Any:
            finished: Any = None
            while True:
                answer = read_answer(connection)
                if confirm is not None:
                    *_, confirmed = [read_answer(connection) for _ in range(confirm.answers)]
                    if not isinstance(answer, Exception):
                        confirm.check(self.name, confirmed)
                if not isinstance(answer, refusals.ResponseError):
                    return answer
                if str(answer) == UNKNOWN_FUNCTION:
                    connection.send_packed_command([packed("FUNCTION", "LOAD", SOURCE)])
                    loaded = read_answer(connection)
                    if isinstance(loaded, Exception) and not str(loaded).endswith(
                        "already exists"
                    ):  # another process was faster
                        raise loaded
                    raise _Repeat
                if not str(answer).startswith("UNFINISHED"):
                    return answer
                if isinstance(finished, Exception):
                    raise finished
                finished = _finish_copies(connection, keys, arguments[1], command)

        return self._with_retries(keys[0], command, exchange, repeatable=repeatable)

    def call_many(
        self,
        calls: Sequence[tuple[int, str, Sequence[Any]]],
        *,
        durable: bool = False,
        repeatable: bool = True,
    ) -> list[Any]:
        """
        Call several functions: those for one node in one round trip. See `call`.

        The calls are independent: each that is refused is repeated alone.
        """

        def alone(n: int) -> Any:
            return self.call(*calls[n], durable=durable, repeatable=repeatable)

        if len(calls) == 1:
            return [alone(0)]
        commands = [
            packed("FCALL", NAMES[function], 2, *self.keys_of(shard), *arguments)
            for shard, function, arguments in calls
        ]
        return self._pipelined(
            [shard for shard, _, _ in calls],
            commands,
            alone,
            confirm=self._confirm if durable else None,
            repeatable=repeatable,
        )

    def read_each(self, reads: ShardReads) -> list[Any]:
        """
        Send repeatable plain commands on keys of several shards: those for one node in one round
        trip.
        """

        def alone(n: int) -> Any:
            return self.read(reads.shards[n], [reads.commands[n]])[0]

        return self._pipelined(reads.shards, reads.packed, alone)

    def _pipelined(
        self,
        shards: Sequence[int],
        commands: Sequence[bytes],
        alone: Callable[[int], Any],
        *,
        confirm: Confirm | None = None,
        repeatable: bool = True,
    ) -> list[Any]:
        """Send one command to each shard. A refused one is repeated by `alone(position)`."""
        answers: list[Any] = [None] * len(shards)
        for number, positions in enumerate(self.shards_by_node(shards)):
            sent = b"".join([commands[position] for position in positions])

            def exchange(connection: AbstractConnection, count: int = len(positions)) -> list[Any]:
                found = [read_answer(connection) for _ in range(count)]
                if confirm is not None:
                    *_, confirmed = [read_answer(connection) for _ in range(confirm.answers)]
                    confirm.check(self.name, confirmed)
                return found

            with partial_call(is_first=repeatable or not number):
                found = self._with_retries(
                    self.keys_of(shards[positions[0]])[0],
                    sent + confirm.command if confirm is not None else sent,
                    exchange,
                    repeatable=repeatable,
                )
                for position, answer in zip(positions, found, strict=True):
                    answers[position] = answer
        for position, answer in enumerate(answers):
            if isinstance(answer, Exception):
                with partial_call(is_first=repeatable):
                    answers[position] = alone(position)
        return answers

    def shards_by_node(self, shards: Sequence[int]) -> list[list[int]]:
        """
        The positions of these shards in the sequence, together by the master that has them, as far
        as this process knows: one may have moved since.
        """
        if self.address.kind != "cluster":
            return [list(range(len(shards)))] if shards else []
        by_pool: dict[Any, list[int]] = {}
        for position, shard in enumerate(shards):
            try:
                pool = self._nodes.pool(self.keys_of(shard)[0])
            except refusals.ClusterDownError:
                pool = None  # the call waits for a node
            by_pool.setdefault(pool, []).append(position)
        return list(by_pool.values())

    def read(self, shard: int, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """
        Send repeatable plain commands on keys of one shard. Returns the server's answers.
        """
        sent = b"".join(packed(*command) for command in commands)

        def exchange(connection: AbstractConnection) -> list[Any]:
            answers = [read_answer(connection) for _ in commands]
            for answer in answers:
                if isinstance(answer, Exception):
                    raise answer
            return answers

        found: list[Any] = self._with_retries(
            self.keys_of(shard)[0], sent, exchange, repeatable=True
        )
        return found

    def ask(self, *command: Any) -> Any:
        """Send one command about the server to a master."""
        return self._with_retries("", packed(*command), read_or_raise, repeatable=True)

    def info(self, key: str = "") -> dict[str, str]:
        """
        The fields of INFO of a master, the one of the key if one is given. Waits for a server that
        loads its data.
        """
        # INFO names no key, so a node that has lost the key would answer it.
        asked = packed("EXISTS", key) if key else b""

        def exchange(connection: AbstractConnection) -> dict[str, str]:
            refusal = read_answer(connection) if key else None
            fields = read_info(read_or_raise(connection))
            if isinstance(refusal, Exception):
                raise refusal
            return fields

        found: dict[str, str] = self._with_retries(
            key, asked + packed("INFO", "everything"), exchange, repeatable=True
        )
        return found

    def _with_retries(
        self,
        key: str,
        command: bytes,
        exchange: Callable[[AbstractConnection], Any],
        *,
        repeatable: bool,
    ) -> Any:
        deadline, pause = 0.0, PAUSE_FIRST
        began = time.monotonic() if self._patience == PATIENCE_AT_START else None
        while True:
            sent = False
            if self._closed:
                raise self.explain(refusals.ConnectionError("closed"))
            try:
                pool = self._nodes.pool(key)
                connection = self._idle.take(pool)
                try:
                    connection.send_packed_command([command])
                    sent = True
                    answer = exchange(connection)
                except (_Repeat, LanewayError, refusals.BusyLoadingError):
                    raise
                except (
                    refusals.ConnectionError,
                    refusals.TimeoutError,
                    OSError,
                    hiredis.HiredisError,
                ):
                    connection.disconnect()
                    raise
                finally:
                    self._idle.give_back(pool, connection)
                if not isinstance(answer, Exception):
                    return answer
                raise answer
            except _Repeat:
                continue
            except LanewayError:
                raise
            except _LATER as refusal:
                error: Exception = refusal
            except (
                refusals.AuthenticationError,
                refusals.AuthorizationError,
                refusals.NoPermissionError,
            ) as refusal:
                raise self.explain(refusal) from refusal
            except (refusals.ConnectionError, refusals.TimeoutError, OSError) as loss:
                if len(command) > LARGE:
                    self._check_size(key, command)
                if (sent and not repeatable) or self._closed or is_hopeless(loss):
                    raise self.explain(loss, applied=None if sent else False) from loss
                error = loss
            except refusals.ResponseError as refusal:
                if not str(refusal).startswith("BUSY ") and not self._may_be_elsewhere(
                    refusal, is_first=not deadline
                ):
                    raise self.explain(refusal) from refusal
                error = refusal
            except (
                hiredis.HiredisError,
                refusals.RedisError,
                refusals.RedisClusterException,
            ) as error_:
                raise self.explain(error_, applied=None if sent else False) from error_
            now = time.monotonic()
            deadline = deadline or (began or now) + (
                PATIENCE if isinstance(error, refusals.BusyLoadingError) else self._patience
            )
            if now > deadline:
                raise self.explain(
                    error, applied=None if sent and not isinstance(error, _LATER) else False
                ) from error
            self._idle.drop()
            self._nodes.refresh(error)
            time.sleep(random.uniform(pause / 2, pause))
            pause = min(pause * 2, PAUSE_MOST)

    def _check_size(self, key: str, command: bytes) -> None:
        """
        Raise BadMessage if the server refuses the command's largest value. It refuses it when it
        has its length, and closes the connection, so that the client fails to send the rest and
        does not see the answer.
        """
        with contextlib.suppress(refusals.ConnectionError, refusals.TimeoutError, OSError):
            pool = self._nodes.pool(key)
            connection = pool.get_connection()
            try:
                start = b"*2\r\n$4\r\nECHO\r\n$%d\r\n" % max_length(command)
                connection.send_packed_command([start])
                if connection.can_read(LARGE_SECONDS) and is_too_large(
                    answer := read_answer(connection)
                ):
                    raise self.explain(answer)
            finally:
                connection.disconnect()
                pool.release(connection)

    def _may_be_elsewhere(self, refusal: Exception, *, is_first: bool) -> bool:
        """
        Whether to look for the master again: one that was replaced and came back empty believes
        that it is the master until the others correct it, and keeps our connections meanwhile.
        """
        return (
            str(refusal).startswith("NOSHARD")
            and self.address.kind in ("sentinel", "cluster")
            and (is_first or self.durability != "memory")
        )

    def explain(self, error: Exception, *, applied: bool | None = False) -> LanewayError:
        """The error for the caller, in one line."""
        if self._closed:
            return EngineUnavailable(f"{self.name}: this engine was closed; open it again")
        return explain(self.address, error, applied=applied)

    # Listening

    def subscriptions(self, prefix: str) -> Subscriptions:
        """
        A connection that receives the messages of many channels, whose names begin with `prefix`.
        """
        return Subscriptions(self._nodes, prefix)

    def subscription(self, channel: str) -> Subscription:
        """A connection that receives the messages of a channel."""
        return Subscription(self._nodes, channel)

    def close(self) -> None:
        """Close all connections. May be called twice."""
        self._closed = True
        self._idle.drop()
        self._nodes.close()


def _finish_copies(
    connection: AbstractConnection, keys: tuple[str, str], tiers: Any, command: bytes
) -> Any:
    """
    Put the copies that a client has left in the shard of these keys, and send the command again:
    with the last of them, so that no other client can leave some between the two. Returns what the
    server answers for the last ones, perhaps an error; the answer of the command is not read.

    The other client may be about to put them itself, or has died; see `left_copies.lua`.
    """
    finish = packed("FCALL", NAMES["finish_copies"], 2, *keys, 0, tiers)
    chunks_left = None
    while chunks_left is None or chunks_left > 1:
        connection.send_packed_command([finish])
        chunks_left = read_or_raise(connection)
    connection.send_packed_command([finish + command])
    return read_answer(connection)


class ShardReads:
    """Plain commands, (shard, command), packed once for any number of calls of `read_each`."""

    def __init__(self, reads: Iterable[tuple[int, Sequence[Any]]]) -> None:
        self.shards, self.commands = zip(*reads, strict=True)
        self.packed = [packed(*command) for command in self.commands]


class _Idle:
    """
    The connections that are not in use, the last used first.

    redis-py's pool could keep them, but its bookkeeping costs a third of a short call.
    """

    def __init__(self) -> None:
        self._stacks: dict[Any, list[Any]] = {}
        self._process = os.getpid()

    def take(self, pool: ConnectionPool) -> Any:
        if os.getpid() != self._process:  # a fork has connections of its own
            self._stacks, self._process = {}, os.getpid()
        stack = self._stacks.get(pool)
        while stack:
            try:
                connection = stack.pop()
            except IndexError:  # another thread was faster
                break
            if not _has_ended(connection):
                return connection
            connection.disconnect()
            pool.release(connection)
        return pool.get_connection()

    def give_back(self, pool: ConnectionPool, connection: Any) -> None:
        if connection._sock is not None:  # noqa: SLF001  # there is no public name
            self._stacks.setdefault(pool, []).append(connection)
        else:
            pool.release(connection)

    def drop(self) -> None:
        stacks, self._stacks = self._stacks, {}
        for pool, stack in stacks.items():
            for connection in stack:
                connection.disconnect()
                pool.release(connection)


def _has_ended(connection: Any) -> bool:
    """Whether the server closed the connection: then its end can be read."""
    sock = connection._sock  # noqa: SLF001
    if sock is None:  # closed by another thread
        return True
    watched = getattr(connection, "laneway_poll", None)
    if watched is None or watched[0] is not sock:
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        connection.laneway_poll = watched = sock, poll
    return bool(watched[1].poll(0))


class _Repeat(Exception):  # caught in `_with_retries`
    """The server has the functions now: repeat the call."""
