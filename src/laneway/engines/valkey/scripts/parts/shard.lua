-- The shard: its keys, its clock, its counters.
--
-- The library is run once, when it is loaded: functions and constants last. What belongs to one
-- call is made anew by `begin`, of every part that says so `at_begin`: the server serves many
-- shards and namespaces with the same functions, and a call may end in an error anywhere.
--
-- All keys of a shard begin with the same prefix, hash tag included, so they live together on one
-- node of a cluster. KEYS[1] is the key of the counters, from which the others are derived; KEYS[2]
-- never exists: while an old-style migration moves the keys of the slot one by one, a node refuses
-- a call that names a missing key before the function has begun, and nothing is ever half done.
--
-- ARGV[1]: the time in microseconds, or "" for the server's own. ARGV[2]: the tiers as the client
-- knows them, see `tiers`. The rest is each function's own.

local KEYS, ARGV
local PREFIX -- of all keys of the shard
local LAYOUT = 4

local POLICY_PAGE = 1000 -- lanes that a change of policy places anew in one call
local INLINE = 16        -- messages of a lane that stand in its own record at most
local SLICE = 500        -- arguments of one variadic call: `unpack` ends near 8,000

-- the server's own, which are not there yet while the library is loaded
local call, pack, unpack_from, values_of, packed

local function key(name)
    return PREFIX .. name
end

-- Those whose names are fixed: keys.lanes is key('lanes').
local keys
local KEY = {
    __index = function(made, name)
        made[name] = key(name)
        return made[name]
    end,
}

local beginnings = {}

local function at_begin(make)
    beginnings[#beginnings + 1] = make
end

local function part(define)
    local functions = {}
    define(functions)
    return functions
end

-- Numbers are given to the server as they are, which is quick and exact; those with more than 14
-- digits may not be joined to strings like that. Strings are never compared: the order of letters
-- is the locale's.

local function text(number)
    return string.format('%.0f', number)
end

local function sortable(number)
    return pack('>I7', number)
end

local function round(number) -- to even, as Python does
    local whole = math.floor(number)
    local rest = number - whole
    if rest > 0.5 or (rest == 0.5 and whole % 2 == 1) then
        return whole + 1
    end
    return whole
end

-- Calls with many arguments, in slices. `step`: arguments that belong together.
local function call_many(command, name, arguments, step)
    local size = SLICE - SLICE % step
    for first = 1, #arguments, size do
        call(command, name, unpack(arguments, first, math.min(first + size - 1, #arguments)))
    end
end

local function read_many(name, fields)
    if #fields <= SLICE then
        return #fields > 0 and call('HMGET', name, unpack(fields)) or {}
    end
    local found = {}
    for first = 1, #fields, SLICE do
        local page = call('HMGET', name, unpack(fields, first, math.min(first + SLICE - 1,
            #fields)))
        for n = 1, #page do
            found[first + n - 1] = page[n]
        end
    end
    return found
end

-- The counters

local COUNTERS = {
    'layout', 'nonce', 'shards', 'index', 'version', 'exact', 'now', 'seq', 'fence', 'deaths',
        'lanes_made', 'lanes', 'waiting', 'bytes',
    'leased', 'dead', 'published', 'delivered', 'done', 'retried', 'died', 'merged', 'expired',
        'removed', 'alarm', 'max_backlog',
    'max_backlog_bytes', 'on_full', 'sweeping', 'own', 'marked', 'tier_queues',
}

-- A new number is at least the server's time in this unit (a namespace's messages and leases are
-- numbered apart): a server that lost some or all of its data does not give out numbers again that
-- it gave out before. The unit keeps number · shards + shard below 2^53, and a number below 2^48.
local LEAST_UNIT = 16 -- microseconds
local least -- number of this call; 0 where the caller tells the time

local shard
local tiers_stored -- the record of the tiers, false: there is none

-- Read them. Returns why that cannot be.
local function open_shard()
    local stored = call('GET', keys.shard)
    tiers_stored = call('GET', keys.tiers)
    if not stored then
        return redis.error_reply('NOSHARD there is no namespace here')
    end
    shard = {}
    local values = { values_of(stored) }
    for n = 1, #COUNTERS do
        shard[COUNTERS[n]] = values[n]
    end
    if shard.layout ~= LAYOUT then
        return redis.error_reply('BADLAYOUT ' .. tostring(shard.layout))
    end
    local now = tonumber(ARGV[1])
    if not now then
        local time = call('TIME')
        now = time[1] * 1000000 + time[2]
    end
    shard.now = math.max(shard.now, now) -- it never goes back
    least = ARGV[1] == '' and math.floor(shard.now / math.max(LEAST_UNIT, shard.shards / 2)) or 0
end

local function save_shard()
    local values = {}
    for n = 1, #COUNTERS do
        values[n] = shard[COUNTERS[n]]
    end
    call('SET', keys.shard, packed(unpack(values)))
end

local function next_number()
    if shard.seq < least then
        shard.seq = least
    end
    shard.seq = shard.seq + 1
    return shard.seq
end

-- The fence before the first one of this call.
local function last_fence()
    if shard.fence < least then
        shard.fence = least
    end
    return shard.fence
end

-- A message is known to the outside by its handle, which names its shard too.
local function generated_id(mid)
    return shard.nonce .. '-' .. string.format('%x', mid * shard.shards + shard.index)
end

-- Tiers, in the order of their declaration: {name, share or "strict", whether it is fair by time};
-- `default`: that of topics whose policy names none. The key `tiers` has their record: the version,
-- 7 bytes, then {default, {tier, …}}. Each call brings the record that its client knows: so a shard
-- that was not told of a change learns of it.

local tiers, tiers_told

local function read_tiers(told)
    if told == tiers_told then
        return
    end
    local default, found = unpack(values_of(string.sub(told, 8)))
    tiers, tiers_told = { default = default, named = {} }, told
    for n, tier in ipairs(found) do
        local each = { name = tier[1], strict = tier[2] == 'strict', share = tonumber(tier[2]),
            by_time = tier[3], place = n }
        tiers[n], tiers.named[tier[1]] = each, each
    end
end

-- Of a policy: its own, as long as there is one of that name.
local function tier_of(policy)
    return tiers.named[policy.tier] and policy.tier or tiers.default
end

-- Bands: one tier of one pool. `vt`: the virtual time of the lane picked last; `carry`: of the
-- tier's share; `mean`: a message's usual cost in microseconds, 0: not known.

local tier_queues = part(function(tier_queues)
    local POOL, TIER, VT, CARRY, MEAN, DELIVERED = 1, 2, 3, 4, 5, 6
    local by_name

    local function keep(number, pool, tier, vt, carry, mean, delivered)
        local tier_queue = { number = number, pool = pool, tier = tier, vt = vt, carry = carry,
            mean = mean, delivered = delivered,
            runnable = key('run:' .. number), heads = key('heads:' .. number) }
        tier_queue.by_time = tiers.named[tier] ~= nil and tiers.named[tier].by_time
        tier_queues[number] = tier_queue
        by_name[pool .. '\0' .. tier] = tier_queue
        return tier_queue
    end

    function tier_queues.read()
        for number = #tier_queues, 1, -1 do
            tier_queues[number] = nil
        end
        by_name = {}
        for number, tier_queue in ipairs(shard.tier_queues) do
            keep(number, tier_queue[POOL], tier_queue[TIER], tier_queue[VT], tier_queue[CARRY],
                tier_queue[MEAN], tier_queue[DELIVERED])
        end
    end

    function tier_queues.find(pool, tier)
        return by_name[pool .. '\0' .. tier]
    end

    function tier_queues.of(pool, tier)
        return tier_queues.find(pool, tier) or keep(#tier_queues + 1, pool, tier, 0, 0, 0, 0)
    end

    function tier_queues.save()
        for number, tier_queue in ipairs(tier_queues) do
            shard.tier_queues[number] = { tier_queue.pool, tier_queue.tier, tier_queue.vt,
                tier_queue.carry, tier_queue.mean, tier_queue.delivered }
        end
    end
end)

-- Take in a newer record. Where a tier has gone, or another one is the default, lanes have to move.
-- Before anything else is done in the call.
local function adopt_tiers(told)
    if told == tiers_stored or (tiers_stored and unpack_from('>I7', told) <= unpack_from('>I7',
        tiers_stored)) then
        return
    end
    local before = tiers
    call('SET', keys.tiers, told)
    read_tiers(told)
    local moves = before.default ~= tiers.default
    for _, tier in ipairs(before) do
        moves = moves or not tiers.named[tier.name]
    end
    if moves and call('HSET', keys.sweeps, '*', '') == 1 then
        shard.sweeping = shard.sweeping + 1
    end
    tier_queues.read()
end

-- Pools in which something can be leased now that could not be before: who waits there is to be
-- rung, at the end.
local pools_to_notify

-- Whether messages came to lanes that could not deliver before.
local has_arrivals

-- Which shard is meant.
local function begin_keys(call_keys, arguments)
    KEYS, ARGV, call = call_keys, arguments, redis.call
    pack, unpack_from, values_of, packed = struct.pack, struct.unpack, cmsgpack.unpack,
        cmsgpack.pack
    local prefix = string.sub(KEYS[1], 1, -6) -- less "shard"
    if prefix ~= PREFIX then
        PREFIX, keys = prefix, setmetatable({}, KEY)
    end
end

-- The beginning of every call. Returns why it cannot go on.
local function begin(call_keys, arguments)
    begin_keys(call_keys, arguments)
    local refusal = open_shard()
    if refusal then
        return refusal
    end
    read_tiers(tiers_stored or ARGV[2])
    tier_queues.read()
    pools_to_notify, has_arrivals = {}, false
    for n = 1, #beginnings do
        beginnings[n]()
    end
end

-- What clients call. `flags`: the server's own.
local function offer(name, flags, run)
    redis.register_function({
        function_name = LIBRARY .. '_' .. name,
        flags = flags,
        callback = function(call_keys, arguments)
            if name == 'relayout' then -- the only one that takes another layout
                begin_keys(call_keys, arguments)
                return run()
            end
            return begin(call_keys, arguments) or run()
        end,
    })
end
