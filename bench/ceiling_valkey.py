"""
The raw ceiling of a Valkey: the same storage operations in one script call for each batch, without
policies, fairness and limits.

A record for each topic with messages, read and written at each visit; an order of the topics and of
their names; a hash of messages and a list for each topic; a hash of leases and their deadlines. It
leases from the first topics in its order and serves none fairly.

`Plain` is the first design that most people write: a list of bodies for each topic, a set of the
topics with messages, a hash of leased messages.
"""

from __future__ import annotations

import time

import hiredis
import redis

from bench.common import BATCH, BODY

RAW_PUT = """
local seq, waiting = cmsgpack.unpack(redis.call('GET', 'shard') or cmsgpack.pack(0, 0))
local order, lists, messages, records = {}, {}, {}, {}
for n = 1, #ARGV / 2 do
    local topic, mid = ARGV[2 * n - 1], seq + n
    local list = lists[topic]
    if not list then list = {}; lists[topic] = list; order[#order + 1] = topic end
    list[#list + 1] = mid
    messages[2 * n - 1], messages[2 * n] = mid, topic .. ' ' .. ARGV[2 * n]
end
local found = redis.call('HMGET', 'lanes', unpack(order))
for n, topic in ipairs(order) do
    local list, ready, leased, published, done, place = lists[topic], 0, 0, 0, 0, 0
    if found[n] then
        ready, leased, published, done, place = cmsgpack.unpack(found[n])
    else
        redis.call('ZADD', 'names', 0, topic)
    end
    redis.call('RPUSH', 'q:' .. topic, unpack(list))
    if ready == 0 then
        place = seq
        redis.call('ZADD', 'run', place, topic)
    end
    records[2 * n - 1] = topic
    records[2 * n] = cmsgpack.pack(ready + #list, leased, published + #list, done, place)
end
redis.call('HSET', 'm', unpack(messages))
redis.call('HSET', 'lanes', unpack(records))
redis.call('SET', 'shard', cmsgpack.pack(seq + #ARGV / 2, waiting + #ARGV / 2))
return seq
"""
RAW_LEASE = """
local seq, waiting = cmsgpack.unpack(redis.call('GET', 'shard') or cmsgpack.pack(0, 0))
local room, deadline = tonumber(ARGV[1]), tonumber(ARGV[2])
local found, leases, records, ends = {}, {}, {}, {}
local order = redis.call('ZRANGE', 'run', 0, room - 1)
local stored = #order > 0 and redis.call('HMGET', 'lanes', unpack(order)) or {}
for n, topic in ipairs(order) do
    if room == 0 then break end
    local ready, leased, published, done, place = cmsgpack.unpack(stored[n])
    local mids = redis.call('LPOP', 'q:' .. topic, math.min(room, ready))
    room, ready, leased = room - #mids, ready - #mids, leased + #mids
    for k, message in ipairs(redis.call('HMGET', 'm', unpack(mids))) do
        found[#found + 1] = mids[k]; found[#found + 1] = message
        leases[#leases + 1] = mids[k]; leases[#leases + 1] = cmsgpack.pack(deadline, topic)
        ends[#ends + 1] = mids[k]
    end
    place = place + 1
    if ready == 0 then redis.call('ZREM', 'run', topic)
    else redis.call('ZADD', 'run', place, topic) end
    records[#records + 1] = topic
    records[#records + 1] = cmsgpack.pack(ready, leased, published, done, place)
end
if #ends > 0 then
    redis.call('HSET', 'l', unpack(leases))
    redis.call('ZADD', 'due', deadline, table.concat(ends, ' '))
    redis.call('HSET', 'lanes', unpack(records))
    redis.call('SET', 'shard', cmsgpack.pack(seq, waiting - #ends))
end
return found
"""
RAW_ACK = """
local counts, order, records, gone, rest = {}, {}, {}, {}, redis.call('GET', 'shard')
for _, lease in ipairs(redis.call('HMGET', 'l', unpack(ARGV))) do
    local deadline, topic = cmsgpack.unpack(lease)
    if not counts[topic] then counts[topic] = 0; order[#order + 1] = topic end
    counts[topic] = counts[topic] + 1
end
redis.call('HDEL', 'l', unpack(ARGV))
redis.call('HDEL', 'm', unpack(ARGV))
for n, stored in ipairs(redis.call('HMGET', 'lanes', unpack(order))) do
    local ready, leased, published, done, place = cmsgpack.unpack(stored)
    leased, done = leased - counts[order[n]], done + counts[order[n]]
    if ready + leased == 0 then
        gone[#gone + 1] = order[n]
    else
        records[#records + 1] = order[n]
        records[#records + 1] = cmsgpack.pack(ready, leased, published, done, place)
    end
end
if #records > 0 then redis.call('HSET', 'lanes', unpack(records)) end
if #gone > 0 then redis.call('HDEL', 'lanes', unpack(gone))
    redis.call('ZREM', 'names', unpack(gone)) end
redis.call('SET', 'shard', rest)
return 1
"""
PLAIN_PUT = """
local lists = {}
for n = 1, #ARGV, 2 do
    local list = lists[ARGV[n]]
    if not list then list = {}; lists[ARGV[n]] = list end
    list[#list + 1] = ARGV[n + 1]
end
for topic, list in pairs(lists) do
    redis.call('RPUSH', 'q:' .. topic, unpack(list))
    redis.call('SADD', 'topics', topic)
end
return 1
"""
PLAIN_LEASE = """
local room, found, leases = tonumber(ARGV[1]), {}, {}
for _, topic in ipairs(redis.call('SRANDMEMBER', 'topics', room)) do
    if room == 0 then break end
    local bodies = redis.call('LPOP', 'q:' .. topic, room) or {}
    if #bodies < room then redis.call('SREM', 'topics', topic) end
    room = room - #bodies
    local last = #bodies > 0 and redis.call('INCRBY', 'seq', #bodies)
    for n, body in ipairs(bodies) do
        found[#found + 1] = last - n; found[#found + 1] = body
        leases[#leases + 1] = last - n; leases[#leases + 1] = ARGV[2] .. topic .. ' ' .. body
    end
end
if #leases > 0 then redis.call('HSET', 'l', unpack(leases)) end
return found
"""
PLAIN_ACK = """
return redis.call('HDEL', 'l', unpack(ARGV))
"""


class _Scripts:
    """
    A store made of three scripts. As durable as Laneway: with "fsync", WAITAOF follows each put and
    ack.
    """

    SCRIPTS: tuple[str, str, str]

    def __init__(self, port: int, durability: str) -> None:
        self._client = redis.Redis(port=port, protocol=2)
        self._put, self._lease, self._ack = (
            self._client.script_load(script) for script in self.SCRIPTS
        )
        self._connection = self._client.connection_pool.get_connection()
        self._confirm = (
            hiredis.pack_command(("WAITAOF", 1, 0, 5000)) if durability == "fsync" else b""
        )

    def _run(self, sha: str, arguments: list[object], confirm: bytes = b"") -> list[bytes]:
        self._connection.send_packed_command(
            [hiredis.pack_command(("EVALSHA", sha, 0, *arguments)) + confirm]
        )
        answer = self._connection.read_response()
        if confirm:
            self._connection.read_response()
        return answer

    def put(self, topics: list[int]) -> None:
        """Store one batch, a message for each of these topics."""
        self._run(
            self._put, [each for topic in topics for each in (f"t.{topic}", BODY)], self._confirm
        )

    def lease(self) -> list[bytes]:
        """Lease up to a batch; returns the numbers of its messages."""
        return self._run(self._lease, [BATCH, time.time_ns() // 1000 + 60_000_000])[::2]

    def ack(self, taken: list[bytes]) -> None:
        """Ack these messages."""
        self._run(self._ack, list(taken), self._confirm)

    def close(self) -> None:
        self._client.close()


class Raw(_Scripts):
    """The raw ceiling."""

    SCRIPTS = RAW_PUT, RAW_LEASE, RAW_ACK


class Plain(_Scripts):
    """A list for each topic."""

    SCRIPTS = PLAIN_PUT, PLAIN_LEASE, PLAIN_ACK
