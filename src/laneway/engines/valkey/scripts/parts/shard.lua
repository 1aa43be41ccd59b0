-- The shard: its keys, its clock, its counters.
--
-- The library is run once, when it is loaded: functions and constants last. `begin` resets the
-- state of a call in every part that the last call has used, because the same functions serve many
-- shards and namespaces, and a call may end in an error anywhere.
--
-- Arguments of every function; its own head lists the others:
-- KEYS[1]: the key of the counters, from which all other keys are derived
-- KEYS[2]: a key that never exists. While an old-style migration moves the keys of a slot one by
--   one, a node refuses a call that names a missing key before the function begins, so that
--   nothing is ever half done.
-- ARGV[1]: the time in microseconds; "": the server's clock
-- ARGV[2]: the record of the tiers that the client has, see `tiers`
-- "(packed)": one MessagePack value, which `values_of` decodes
--
-- All keys of a shard begin with the same prefix, hash tag included, so that they are on one node
-- of a cluster. The keys, without the prefix:
--
--   shard               the counters, `SETTLED` and `LIVELY` below
--   settings            shards, nonce, tiers and layout of the namespace (first shard)
--   policies, programs  what clients read of policies (first shard)
--   elections           election's name → its record (shard of the name)
--   records:KIND        name → record, beside the queue (first shard; endpoints: of the name)
--   names:KIND          names of records in order, of a kind with millions (endpoints)
--   tiers               the record of the tiers
--   resolved            pattern or topic → policy, see parts/policies.lua
--   own, own_sets, own_uses, own_tiers   topics' own policies, see parts/policies.lua
--   sweeps              pattern → the lane up to which its lanes were placed again
--   lanes, names        lane's name → its record; all names in order, see lanes.lua
--   run:N, heads:N      runnable lanes of tier queue N; its open gates by their first lane
--   group_queues, group_numbers   groups of lanes, see groups.lua; run:-N, heads:-N, gate:-N:GATE:
--                       as those of a tier queue, of group N
--   group_turns:N       gate → the turns of group N there
--   gates, gate:N:GATE, gate_wakes   gates; lanes at gates; when shut gates open, see gates.lua
--   gate_lanes          gate → how many lanes go through it and wait at another one
--   waited_gates        gates with lanes, if there are several shards
--   topic_grants                     gates of topics that this shard has a grant of
--   asleep, idle        lanes by the time at which they wake, or are forgotten
--   top:CLASS           lanes by size class, for top lists
--   top:dead            topics by their dead letters
--   recent:KIND         topics by what happened lately, see recent.lua
--   m                   message's number → its record, see messages.lua
--   q:N                 lane N: numbers of plain messages, a list, see plain.lua
--   z:N                 lane N: other ready messages, in order
--   a:N                 lane N: messages aside (delayed, parked), see messages.lua
--   o:N                 lane N: numbers that are out of sequence, for the cursors
--   t:TOPIC, folded, folded_bytes    messages, names and bytes of topics in buckets
--   b:N, j:N, w:N       message N: further bodies, joined ids, signals received
--   i:TOPIC, aliases, ids_until      known ids, see ids.lua
--   copying                          copies that are left, see left_copies.lua
--   key_states, key_wakes, p:SLOT, y:N   limits per key, see key_limits.lua
--   keys, k:LINE        serial key → its first message; messages parked behind it
--   merge, edges        merge key → the waiting message; when a leading window ends
--   l                   message's number → its lease, see settling.lua
--   e:N                 message N, delivered at most once: its record, if its end is reported
--   due                 events by time: expiry, end of retention
--   ends                ends of leases by time, see settling.lua
--   timers              lanes with delayed messages by a time before which none of them is due
--   dead, dead:TOPIC, dead_topics    dead letters
--   o:NAME, n:NAME, f:NAME, g:ID    outcome, progress and followers of messages, see results.lua
--   waiters:POOL, choosy:POOL, arrivals:POOL   channels of waiting workers, see wakeup.lua
--   tallies                what happened so far, see tallies.lua
--   history                name → record of the history (first shard)
--   log, log_order, log_heads   number → entry of the delivery log; the numbers in order; topic →
--                       its newest entry's number, and under "" the bytes of all, see log_append
--   workers, workers_until   worker's id → its last heartbeat; when to forget them, see beat.lua
--   moving, moving_ids  exported messages
--   forwarded           spool → its last batch, see forwarding.lua
--   granting, bringing_up            locks with an expiry

local KEYS, ARGV
local PREFIX -- of all keys of the shard
local LAYOUT = 27

local POLICY_PAGE = 250  -- lanes that a change of policy places again at once, in all shards
local INLINE = 16        -- the most messages in a lane's own record
local SLICE = 2000       -- arguments of one variadic call: `unpack` ends near 8,000

-- To look up a global takes as long as to run most functions: Lua's are locals of the same names.
-- They do not exist while the library is loaded, nor do the server's: `begin_keys` sets them.
local function globals()
    return string, math, ipairs, pairs, tonumber, unpack
end

local string, math, ipairs, pairs, tonumber, unpack
local run, clock, pack, unpack_from, values_of, packed, unpack_limit
local max, min, floor, byte, sub, find_in, match, format

-- The function that answers the processor's time, in seconds. Redis 7.0 and 7.2, and Valkey 7.2,
-- have no `os`: there it is the time of day. In 7.2 that stands still during a call, which then
-- seems to have taken no time.
local function find_clock()
    local _, found = pcall(function()
        return os.clock
    end)
    if type(found) == 'function' then
        return found
    end
    return function()
        local time = run('TIME')
        return time[1] + time[2] / 1e6
    end
end

-- Keys of which something is held back (not nil), and the function that writes it; see writes.lua.
local held_keys, write_held = {}, nil

-- Run a command of the server. What it reads includes what this call has changed.
local function call(command, name, ...)
    if held_keys[name] then
        write_held(name)
    end
    return run(command, name, ...)
end

local function key(name)
    return PREFIX .. name
end

-- Keys with fixed names: keys.lanes is key('lanes').
local keys
local KEY = {
    __index = function(cache, name)
        cache[name] = key(name)
        return cache[name]
    end,
}

local resets = {}

-- Run a function once when the next call begins. A part whose state lasts for a call does so when
-- that state begins: most calls use few parts, and each reset costs as much as a small command.
local function at_next_begin(reset)
    if not resets[reset] then
        resets[reset], resets[#resets + 1] = true, reset
    end
end

local function part(define)
    local functions = {}
    define(functions)
    return functions
end

-- Numbers are passed to the server as they are, which is fast and exact. Only numbers of up to 14
-- digits may be joined to strings: use `text`. Strings are never compared, because the order of
-- letters depends on the locale.

local function text(number)
    return format('%.0f', number)
end

local function sortable(number)
    return pack('>I7', number)
end

local function round(number) -- to even, as Python does
    local whole = floor(number)
    local rest = number - whole
    if rest > 0.5 or (rest == 0.5 and whole % 2 == 1) then
        return whole + 1
    end
    return whole
end

-- "push.eu." of the topic push.eu.acme, "" of one without a dot.
local function stem_of(name)
    return match(name, '^(.*%.)') or ''
end

-- Run a command with many arguments, in slices. `step`: arguments that belong together.
local function run_many(command, name, arguments, step)
    local size = SLICE - SLICE % step
    for first = 1, #arguments, size do
        run(command, name, unpack(arguments, first, min(first + size - 1, #arguments)))
    end
end

local function call_many(command, name, arguments, step)
    if held_keys[name] then
        write_held(name)
    end
    run_many(command, name, arguments, step)
end

-- Read many fields of a hash, or scores of a sorted set (ZMSCORE). `command_of`: `call`, or `run`.
local function read_many(name, fields, command_of, command)
    command, command_of = command or 'HMGET', command_of or call
    if #fields <= SLICE then
        return #fields > 0 and command_of(command, name, unpack(fields)) or {}
    end
    local found = {}
    for first = 1, #fields, SLICE do
        local page = command_of(command, name, unpack(fields, first, min(first + SLICE - 1,
            #fields)))
        for n = 1, #page do
            found[first + n - 1] = page[n]
        end
    end
    return found
end

-- Those of these names that are not in `known`, which has false for them from now on.
local function unknown_in(known, names)
    local unknown = {}
    for n = 1, #names do
        local name = names[n]
        if known[name] == nil then
            unknown[#unknown + 1], known[name] = name, false
        end
    end
    return unknown
end

-- Empty a list that is used again, because to create and to grow one is slow. Called when nothing
-- can fail any more: after an error the part's reset has to find its first entry.
local function clear(list)
    for n = 1, #list do
        list[n] = nil
    end
end

-- A table of these values by the names of fields, and the values of such a table.
local function named(fields, values)
    local found = {}
    for n = 1, #fields do
        found[fields[n]] = values[n]
    end
    return found
end

-- The fields of a table that are not as usual, by name: what a record has of fields that few need.
local function unusual_in(from, usual)
    local found = {}
    for field, value in pairs(usual) do
        local is = from[field]
        if is ~= value then
            found[field] = is
        end
    end
    return found
end

local function values_in(fields, from)
    local found = {}
    for n = 1, #fields do
        found[n] = from[fields[n]]
    end
    return found
end

-- The content of a message, as it is published and stored: 2 bytes with the size of
-- {topic, key, id, headers, sticky, merge key} as MessagePack, then these, then the body. Few
-- changes of a message change its content, so that most copy it.
local CONTENT_MARK = '\150' -- MessagePack's mark of a list of six, which needs no table

local function content_of(topic, key_of, id, headers, sticky, mkey, body)
    local meta = CONTENT_MARK .. packed(topic, key_of, id, headers, sticky, mkey)
    return pack('>I2', #meta) .. meta .. body
end

-- The content of a draft, or of a message: that is a part of what is stored until it changes.
local function whole_content(message)
    return message.content or sub(message.stored, message.content_at, message.content_to)
end

local function body_of(message)
    local content = whole_content(message)
    return sub(content, 3 + unpack_from('>I2', content))
end

-- The counters. Their record is a list of MessagePack: first those that few calls change, then the
-- tier queues, then those that most calls change, as numbers of 8 bytes.

local SETTLED = {
    'layout', 'nonce', 'shards', 'index', 'version', 'exact', 'deaths', 'dead', 'retried', 'died',
    'merged', 'expired', 'removed', 'alarm', 'max_backlog', 'max_backlog_bytes', 'on_full',
    'sweeping', 'own', 'marked', 'groups', 'copying',
}
local LIVELY = {
    'now', 'seq', 'fence', 'lanes_created', 'lanes', 'waiting', 'bytes', 'leased', 'published',
    'delivered', 'done',
}
local SIGNED = 211 -- MessagePack's mark of a number of 8 bytes
local NUMBERS = '>' .. ('Bi8'):rep(#LIVELY)

-- A new number (of a message, or of a lease) is at least the server's time in this unit, so that a
-- server that lost its data never uses a number twice. The unit keeps number · shards + shard below
-- 2^53, and a number below 2^48.
local LEAST_UNIT = 16 -- microseconds
local least -- number of this call; 0 where the caller passes the time

local shard = {} -- has the lively ones itself
local settled, packed_settled = {}, false -- the others, and them packed; false: they have changed
local queues, packed_queues -- the same of the tier queues, as the record has them
-- The record that the last call has written: often nobody else has called since, so that all of
-- this is still true, and the tier queues too. nil: it did not end, or was of another shard.
local written
local tiers_stored -- the record of the tiers; false: none

local SHARD = {
    __index = settled,
    __newindex = function(_, name, value)
        settled[name], packed_settled = value, false
    end,
}

local function decode_shard(stored)
    local values, before = { values_of(stored) }, #SETTLED + 1
    for n = 1, #SETTLED do
        settled[SETTLED[n]] = values[n]
    end
    for n = 1, #LIVELY do
        rawset(shard, LIVELY[n], values[before + n])
    end
    queues, packed_queues, packed_settled = values[before], false, false
end

-- Read the counters. Returns an error if the shard cannot be used; else whether they are those that
-- the last call has written.
local function open_shard()
    local read = run('MGET', keys.shard, keys.tiers)
    local stored, is_known = read[1], read[1] == written and read[2] == tiers_stored
    tiers_stored = read[2]
    if not stored then
        return redis.error_reply('NOSHARD there is no namespace here')
    end
    written = nil -- until this call has ended
    if not is_known then
        decode_shard(stored)
        if shard.layout ~= LAYOUT then
            return redis.error_reply('BADLAYOUT ' .. tostring(shard.layout))
        end
    end
    local now = tonumber(ARGV[1])
    if not now then
        local time = run('TIME')
        now = time[1] * 1000000 + time[2]
    end
    shard.now = max(shard.now, now) -- the clock never goes back
    least = ARGV[1] == '' and floor(shard.now / max(LEAST_UNIT, shard.shards / 2)) or 0
    return nil, is_known
end

local function next_number()
    local number = max(shard.seq, least) + 1
    shard.seq = number
    return number
end

-- The fence before the first one of this call.
local function last_fence()
    if shard.fence < least then
        shard.fence = least
    end
    return shard.fence
end

-- The id of a message without an id of the user's own. It names the shard too.
local function generated_id(mid)
    return shard.nonce .. '-' .. string.format('%x', mid * shard.shards + shard.index)
end

local function id_of(record)
    return record.id or generated_id(record.mid)
end

-- What parts remember of each shard while its policies stay the same, because working it out costs
-- more than all else that is done with a lane. `count`: how many stems are in it.
local memory
do
    local MOST_SHARDS, MOST_STEMS = 1024, 8192
    local shards, count = {}, 0

    function memory()
        local found = shards[PREFIX]
        if not found or found.nonce ~= shard.nonce or found.version ~= shard.version
            or found.count >= MOST_STEMS then
            if count >= MOST_SHARDS then
                shards, count = {}, 0
            end
            count = count + (shards[PREFIX] and 0 or 1)
            found = { nonce = shard.nonce, version = shard.version, count = 0, absent = {},
                subscriptions = false, by_stem = {}, cells = {}, waits = {}, noise = 0,
                noise_at = 0 }
            shards[PREFIX] = found
        end
        return found
    end
end

-- Tiers, in the order of their declaration: {name, share or "strict", whether it is fair by time};
-- `default`: the tier of topics whose policy names none. The key `tiers` has their record: 7 bytes
-- with the version, then {default, {tier, …}}. Each call brings the record that its client has, so
-- that a shard that missed a change learns it.

local tiers, tiers_record

local function read_tiers(record)
    if record == tiers_record then
        return
    end
    local default, declared = unpack(values_of(string.sub(record, 8)))
    tiers, tiers_record = { default = default, named = {} }, record
    for n, tier in ipairs(declared) do
        local each = { name = tier[1], strict = tier[2] == 'strict', share = tonumber(tier[2]),
            by_time = tier[3], place = n }
        tiers[n], tiers.named[tier[1]] = each, each
    end
end

-- The tier of a policy; the default, if its tier does not exist any more.
local function tier_of(policy)
    return tiers.named[policy.tier] and policy.tier or tiers.default
end

-- Tier queues: the lanes of one tier of one pool. `vt`: the virtual time of the lane that was
-- served last; `carry`: what is left of the tier's share; `mean`: a message's mean cost in
-- microseconds, 0: not known.

local TIER_QUEUES = {} -- their metatable, see groups.lua

local tier_queues = part(function(tier_queues)
    local POOL, TIER, VT, CARRY, MEAN, DELIVERED = 1, 2, 3, 4, 5, 6
    local by_name

    local function add(number, pool, tier, vt, carry, mean, delivered)
        local tier_queue = { number = number, pool = pool, tier = tier, vt = vt, carry = carry,
            mean = mean, delivered = delivered,
            runnable = key('run:' .. number), heads = key('heads:' .. number) }
        tier_queue.by_time = tiers.named[tier] ~= nil and tiers.named[tier].by_time
        tier_queues[number] = tier_queue
        by_name[pool .. '\0' .. tier] = tier_queue
        return tier_queue
    end

    function tier_queues.read()
        clear(tier_queues)
        by_name = {}
        for number, tier_queue in ipairs(queues) do
            add(number, tier_queue[POOL], tier_queue[TIER], tier_queue[VT], tier_queue[CARRY],
                tier_queue[MEAN], tier_queue[DELIVERED])
        end
    end

    function tier_queues.find(pool, tier)
        return by_name[pool .. '\0' .. tier]
    end

    function tier_queues.of(pool, tier)
        return tier_queues.find(pool, tier) or add(#tier_queues + 1, pool, tier, 0, 0, 0, 0)
    end

    function tier_queues.save()
        for number = 1, #tier_queues do
            local tier_queue, stored = tier_queues[number], queues[number]
            if not stored or stored[VT] ~= tier_queue.vt or stored[CARRY] ~= tier_queue.carry
                or stored[MEAN] ~= tier_queue.mean or stored[DELIVERED] ~= tier_queue.delivered then
                queues[number] = { tier_queue.pool, tier_queue.tier, tier_queue.vt,
                    tier_queue.carry, tier_queue.mean, tier_queue.delivered }
                packed_queues = false
            end
        end
    end
end)

local function save_shard()
    tier_queues.save()
    packed_settled = packed_settled or packed(unpack(values_in(SETTLED, settled), 1, #SETTLED))
    packed_queues = packed_queues or packed(queues)
    local record = packed_settled .. packed_queues .. pack(NUMBERS, SIGNED, shard.now, SIGNED,
        shard.seq, SIGNED, shard.fence, SIGNED, shard.lanes_created, SIGNED, shard.lanes, SIGNED,
        shard.waiting, SIGNED, shard.bytes, SIGNED, shard.leased, SIGNED, shard.published, SIGNED,
        shard.delivered, SIGNED, shard.done)
    run('SET', keys.shard, record)
    written = record
end

-- Use a newer record, before the call does anything else. If a tier was removed, or another one is
-- the default, lanes have to move.
local function adopt_tiers(record)
    if record == tiers_stored or (tiers_stored and unpack_from('>I7', record) <=
        unpack_from('>I7', tiers_stored)) then
        return
    end
    local before = tiers
    call('SET', keys.tiers, record)
    read_tiers(record)
    local moves = before.default ~= tiers.default
    for _, tier in ipairs(before) do
        moves = moves or not tiers.named[tier.name]
    end
    if moves and call('HSET', keys.sweeps, '*', '') == 1 then
        shard.sweeping = shard.sweeping + 1
    end
    tier_queues.read()
end

-- When this call began, in seconds of processor time.
local began

-- The processor time of this call so far, in microseconds; 0: it is not known. Clients adapt their
-- next calls to it, see `CallSize` in sharded/splitting.py.
local function call_us()
    return floor((clock() - began) * 1e6)
end

-- Pools in which a lane became runnable: at the end of the call a waiting worker is notified, and
-- all that serve named topics only. ONE: there is more to lease, but nothing new for the latter.
local ONE = 1
local pools_to_notify

-- Whether messages arrived in lanes that could not deliver before.
local has_arrivals

local function begin_keys(call_keys, arguments)
    KEYS, ARGV, run = call_keys, arguments, redis.call
    if not pack then
        string, math, ipairs, pairs, tonumber, unpack = globals()
        clock = find_clock()
        pack, unpack_from, values_of, packed = struct.pack, struct.unpack, cmsgpack.unpack,
            cmsgpack.pack
        unpack_limit = cmsgpack.unpack_limit
        max, min, floor, byte, sub, find_in, match, format = math.max, math.min, math.floor,
            string.byte, string.sub, string.find, string.match, string.format
        setmetatable(shard, SHARD)
        setmetatable(tier_queues, TIER_QUEUES)
    end
    local prefix = sub(KEYS[1], 1, -6) -- less "shard"
    if prefix ~= PREFIX then
        PREFIX, keys, written = prefix, setmetatable({}, KEY), nil
    end
end

-- The beginning of every call. `finishes`: it puts copies that are left, see left_copies.lua.
-- Returns an error if it cannot go on.
local function begin(call_keys, arguments, finishes)
    begin_keys(call_keys, arguments)
    began = clock()
    local refusal, is_known = open_shard()
    if refusal then
        return refusal
    elseif shard.copying > 0 and not finishes then
        return redis.error_reply('UNFINISHED copies of a message are left')
    end
    local tiers_known = tiers_stored or ARGV[2]
    if not is_known or tiers_known ~= tiers_record then
        read_tiers(tiers_known)
        tier_queues.read()
    end
    pools_to_notify, has_arrivals = {}, false
    for n = 1, #resets do
        resets[n]()
    end
    resets = {}
end

-- Register a function that clients call. `flags`: those of the server.
local function offer(name, flags, run)
    redis.register_function({
        function_name = LIBRARY .. '_' .. name,
        flags = flags,
        callback = function(call_keys, arguments)
            if name == 'relayout' then -- it accepts another layout
                begin_keys(call_keys, arguments)
                return run()
            end
            return begin(call_keys, arguments, name == 'finish_copies') or run()
        end,
    })
end
