"""
The raw ceiling of a Valkey: the same storage operations in one script call for each batch, with no policies, no fairness and no limits.

A hash of messages, a list for each topic and a set of those that have something, counts per topic, a hash of leases with their deadlines.
It claims from whichever topics come first: nobody is served fairly.
"""

from __future__ import annotations

import time

import hiredis
import redis

from bench.common import BATCH, BODY

PUT = """
local first = redis.call('INCRBY', 'seq', #ARGV / 2) - #ARGV / 2
local topics, messages, counts = {}, {}, {}
for n = 1, #ARGV / 2 do
    local topic, mid = ARGV[2 * n - 1], first + n
    local list = topics[topic]
    if not list then list = {}; topics[topic] = list end
    list[#list + 1] = mid
    messages[2 * n - 1], messages[2 * n] = mid, ARGV[2 * n]
end
redis.call('HSET', 'm', unpack(messages))
for topic, list in pairs(topics) do
    redis.call('RPUSH', 'q:' .. topic, unpack(list))
    redis.call('HINCRBY', 'ready', topic, #list)
    redis.call('SADD', 'topics', topic)
end
return first
"""
LEASE = """
local room, found, leases, deadline = tonumber(ARGV[1]), {}, {}, ARGV[2]
local some = redis.call('SRANDMEMBER', 'topics', room)
for _, topic in ipairs(some) do
    if room == 0 then break end
    local mids = redis.call('LPOP', 'q:' .. topic, room) or {}
    if #mids < room then redis.call('SREM', 'topics', topic) end
    room = room - #mids
    redis.call('HINCRBY', 'ready', topic, -#mids)
    redis.call('HINCRBY', 'leased', topic, #mids)
    for n, body in ipairs(#mids > 0 and redis.call('HMGET', 'm', unpack(mids)) or {}) do
        found[#found + 1] = mids[n]; found[#found + 1] = topic; found[#found + 1] = body
        leases[#leases + 1] = mids[n]; leases[#leases + 1] = deadline .. topic
    end
end
if #leases > 0 then redis.call('HSET', 'l', unpack(leases)) end
return found
"""
ACK = """
local counts = {}
for n, lease in ipairs(redis.call('HMGET', 'l', unpack(ARGV))) do
    local topic = string.sub(lease, 17)
    counts[topic] = (counts[topic] or 0) + 1
end
redis.call('HDEL', 'l', unpack(ARGV))
redis.call('HDEL', 'm', unpack(ARGV))
for topic, count in pairs(counts) do redis.call('HINCRBY', 'leased', topic, -count) end
return 1
"""


class RawServer:
    """The ceiling. As durable as ours: what was put or acked is followed by WAITAOF where that is asked for."""

    def __init__(self, port: int, durability: str) -> None:
        self._client = redis.Redis(port=port, protocol=2)
        self._put, self._lease, self._ack = (self._client.script_load(script) for script in (PUT, LEASE, ACK))
        self._connection = self._client.connection_pool.get_connection()
        self._confirm = hiredis.pack_command(("WAITAOF", 1, 0, 5000)) if durability == "fsync" else b""

    def _run(self, sha: str, arguments: list[object], confirm: bytes = b"") -> list[bytes]:
        self._connection.send_packed_command([hiredis.pack_command(("EVALSHA", sha, 0, *arguments)) + confirm])
        answer = self._connection.read_response()
        if confirm:
            self._connection.read_response()
        return answer

    def put(self, topics: list[int]) -> None:
        """One batch, a message to each of these topics."""
        self._run(self._put, [each for topic in topics for each in (f"t.{topic}", BODY)], self._confirm)

    def lease(self) -> list[bytes]:
        """Up to a batch: message, topic and body of each."""
        return self._run(self._lease, [BATCH, time.time_ns() // 1000 + 60_000_000])

    def ack(self, taken: list[bytes]) -> None:
        """Finish them."""
        if taken:
            self._run(self._ack, list(taken[::3]), self._confirm)

    def close(self) -> None:
        self._client.close()
