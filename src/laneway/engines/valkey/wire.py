"""
How commands and answers go over a connection. A leaf: nothing of this engine is imported here.
"""

from __future__ import annotations

from typing import Any

import hiredis
from redis import exceptions as refusals
from redis.connection import AbstractConnection


def packed(*words: Any) -> bytes:
    command: bytes = hiredis.pack_command(words)
    return command


def max_length(commands: bytes) -> int:
    """The length of the longest word of encoded commands."""
    longest = position = 0
    while position < len(commands):
        end = commands.index(b"\r\n", position)
        if commands[position] == ord("$"):
            length = int(commands[position + 1 : end])
            longest = max(longest, length)
            end += 2 + length
        position = end + 2
    return longest


def read_answer(connection: AbstractConnection) -> Any:
    """
    Read the next answer. A refusal is returned, so that the answers behind it are read too. One of
    the protocol is the last answer: the server closes the connection.
    """
    try:
        return connection.read_response(disable_decoding=True)
    except refusals.ConnectionError as error:
        if isinstance(
            error,
            refusals.BusyLoadingError | refusals.AuthenticationError | refusals.MaxConnectionsError,
        ):
            return error
        raise
    except refusals.ResponseError as refusal:
        if "Protocol error" in str(refusal):
            connection.disconnect()
        return refusal
    except AttributeError as error:  # another thread closed the engine: the reader is gone
        raise refusals.ConnectionError("closed meanwhile") from error


def read_or_raise(connection: AbstractConnection) -> Any:
    """Read the next answer, and raise a refusal."""
    answer = read_answer(connection)
    if isinstance(answer, Exception):
        raise answer
    return answer


def read_info(answer: bytes) -> dict[str, str]:
    """
    The fields of INFO. Raises BusyLoadingError for a server that is loading: it does not know yet
    what it holds, nor whether it appends.
    """
    fields: dict[str, str] = {}
    for line in answer.decode(errors="replace").splitlines():
        field, _, value = line.partition(":")
        fields[field] = value
    if fields.get("loading", "0") != "0":
        left = fields.get("loading_eta_seconds", "")
        raise refusals.BusyLoadingError(
            "LOADING" + (f", about {left} s more" if left.isdecimal() else "")
        )
    return fields
