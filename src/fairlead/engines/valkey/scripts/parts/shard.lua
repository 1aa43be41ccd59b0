-- The shard: its keys, its clock, its counters. Every script begins with it.
--
-- All keys of a shard begin with the same prefix, hash tag included, so they live together on one node of a cluster. KEYS[1] is the key
-- of the counters, from which the others are derived; KEYS[2] never exists: while an old-style migration moves the keys of the slot one by one,
-- a node refuses a call that names a missing key before the script has begun, and nothing is ever half done.
--
-- ARGV[1]: the time in microseconds, or "" for the server's own. ARGV[2]: the tiers, see `tiers`. The rest is each script's own.

local SHARD = KEYS[1]
local PREFIX = string.sub(SHARD, 1, -6) -- less "shard"
local LAYOUT = 1

local POLICY_PAGE = 1000 -- lanes that a change of policy places anew in one call
local INLINE = 16        -- messages of a lane that stand in its own record, before a list is made for more
local SLICE = 500        -- arguments of one variadic call: `unpack` ends near 8,000

local call = redis.call
local pack, unpack_from = struct.pack, struct.unpack
local values_of, packed = cmsgpack.unpack, cmsgpack.pack

local function key(name)
    return PREFIX .. name
end

-- Numbers are given to the server as they are, which is quick and exact; those with more than 14 digits may not be joined to strings like that.
-- Strings are never compared: the order of letters is the locale's.

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
        local page = call('HMGET', name, unpack(fields, first, math.min(first + SLICE - 1, #fields)))
        for n = 1, #page do
            found[first + n - 1] = page[n]
        end
    end
    return found
end

-- The counters

local COUNTERS = {
    'layout', 'nonce', 'shards', 'index', 'version', 'exact', 'now', 'seq', 'fence', 'deaths', 'lanes_made', 'lanes', 'waiting', 'bytes',
    'leased', 'dead', 'published', 'delivered', 'done', 'retried', 'died', 'merged', 'expired', 'removed', 'alarm', 'max_backlog',
    'max_backlog_bytes', 'on_full', 'sweeping', 'bands',
}

local shard = {}
do
    local stored = call('GET', SHARD)
    if not stored then
        return redis.error_reply('NOSHARD there is no namespace here')
    end
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
end

local function save_shard()
    local values = {}
    for n = 1, #COUNTERS do
        values[n] = shard[COUNTERS[n]]
    end
    call('SET', SHARD, packed(unpack(values)))
end

local function next_number()
    shard.seq = shard.seq + 1
    return shard.seq
end

-- A message is known to the outside by its handle, which names its shard too.
local function made_id(mid)
    return shard.nonce .. '-' .. string.format('%x', mid * shard.shards + shard.index)
end

-- Tiers, in the order of their declaration: {name, share or "strict", whether it is fair by time}

local tiers = {}
for n, tier in ipairs(values_of(ARGV[2])) do
    local each = { name = tier[1], strict = tier[2] == 'strict', share = tonumber(tier[2]), by_time = tier[3], place = n }
    tiers[n], tiers[tier[1]] = each, each
end

-- Bands: one tier of one pool. `vt`: the virtual time of the lane picked last; `carry`: of the tier's share; `mean`: a message's usual
-- cost in microseconds, 0: not known.

local bands = {}
do
    local POOL, TIER, VT, CARRY, MEAN, DELIVERED = 1, 2, 3, 4, 5, 6
    local by_name = {}

    local function keep(number, pool, tier, vt, carry, mean, delivered)
        local band = { number = number, pool = pool, tier = tier, vt = vt, carry = carry, mean = mean, delivered = delivered,
            runnable = key('run:' .. number), heads = key('heads:' .. number) }
        band.by_time = tiers[tier] ~= nil and tiers[tier].by_time
        bands[number] = band
        by_name[pool .. '\0' .. tier] = band
        return band
    end

    for number, band in ipairs(shard.bands) do
        keep(number, band[POOL], band[TIER], band[VT], band[CARRY], band[MEAN], band[DELIVERED])
    end

    function bands.find(pool, tier)
        return by_name[pool .. '\0' .. tier]
    end

    function bands.of(pool, tier)
        return bands.find(pool, tier) or keep(#bands + 1, pool, tier, 0, 0, 0, 0)
    end

    function bands.save()
        for number, band in ipairs(bands) do
            shard.bands[number] = { band.pool, band.tier, band.vt, band.carry, band.mean, band.delivered }
        end
    end
end

-- A part is defined when it is first used: most calls need few, and to make a function costs as much as to run a short one.
local function part(define)
    return setmetatable({}, {
        __index = function(functions, name)
            setmetatable(functions, nil)
            define(functions)
            return functions[name]
        end,
    })
end

local function is_used(functions)
    return getmetatable(functions) == nil
end

-- Pools in which something can be leased now that could not be before: who waits there is to be rung, at the end.
local rang = {}
