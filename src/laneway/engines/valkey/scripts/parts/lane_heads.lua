-- The beginnings of lanes' records. Most messages arrive in a lane that has ready messages, and
-- change only its counts: then only the beginning of the record is decoded and encoded, and the
-- rest is copied. Decoding and encoding all of it would cost twice as much. Lanes that a call makes
-- begin the same way, if it makes several and their policies have no limits.
--
-- uses: fairness, rules, groups, recent, tallies, lanes

local lane_heads = part(function(lane_heads)
    local HEAD_AND_QUEUE, HEAD_AND_REST = LANE_HEAD .. 'I2', LANE_HEAD .. 'c0'
    local POOL = 512
    local MANY = 8 -- new lanes
    local pool, taken = {}, 0 -- tables that are used again
    local open, used
    local beginnings_of -- by policy: the record of a new lane without its number; false: no such

    at_begin(function()
        open, used, taken, beginnings_of = {}, {}, 0, {}
    end)

    local function make(name, stored)
        taken = taken + 1
        local lane = pool[taken]
        if not lane then
            lane = { name = '', stored = '', rest = 0, arrived = false, big = 0, old = 0, busy = 0,
                slow = 0, place = 0, number = 0, ready = 0, delayed = 0,
                parked = 0, listed = 0, bytes = 0, published = 0, latest = '', tier_queue = 0,
                was_published = 0, is_new = false }
            if taken <= POOL then
                pool[taken] = lane
            end
        end
        lane.big, lane.old, lane.busy, lane.slow, lane.place, lane.number, lane.ready, lane.delayed,
            lane.parked, lane.listed, lane.bytes, lane.published,
            lane.latest, lane.tier_queue, lane.rest = unpack_from(HEAD_AND_QUEUE, stored)
        lane.name, lane.stored, lane.arrived, lane.was_published, lane.is_new = name, stored, false,
            lane.published, false
        return lane
    end

    -- The record of a new lane of this policy without its number, as `lanes.make` and `lanes.place`
    -- make it; false: these have to.
    local function beginning_of(policy)
        local found = beginnings_of[policy]
        if found == nil then
            local tier_queue = tier_queues.find(policy.pool, tier_of(policy))
            found = tier_queue and not (policy.limited or policy.gate or policy.paused
                or policy.shared or policy.adapts or policy.group or policy.key_limited
                or policy.buckets or policy.partitions > 1) and pack(lanes.RECORD, 0, 0, 0, 0,
                RUNNABLE, 0, 0, 0, 0, 0, 0, 0, 0, '', tier_queue.number, 0, tier_queue.vt, 0, 0, 0,
                0, shard.now, 0, 0, 0, 0, '') or false
            beginnings_of[policy] = found
        end
        return found
    end

    -- Begin the lanes that do not exist, as far as their policies allow it. The others are lanes
    -- that messages make one by one.
    local function begin_new(names)
        rules.load(names)
        for n = 1, #names do
            local name = names[n]
            local beginning = #names >= MANY and beginning_of(rules.of_lane(name))
            if beginning then
                local lane = make(name, beginning)
                lane.is_new, open[name] = true, lane
            else
                lanes.learn(name, false)
            end
        end
    end

    -- Read the lanes of these names: only the beginning, where more messages do not change the
    -- lane's place.
    function lane_heads.load(names)
        local wanted, others = {}, {}
        for n = 1, #names do
            if not lanes.is_known(names[n]) then
                wanted[#wanted + 1] = names[n]
            end
        end
        local found, absent = read_many(keys.lanes, wanted), {}
        for n = 1, #found do
            local name, stored = wanted[n], found[n]
            local lane = stored and make(name, stored)
            if lane and lane.place ~= IDLE and lane.ready > 0 then
                open[name] = lane
            elseif stored then
                lanes.learn(name, stored)
                others[#others + 1] = name
            else
                absent[#absent + 1] = name
            end
        end
        rules.load(others)
        begin_new(absent)
    end

    -- The beginning of the lane in which a message arrives; nil: the whole lane is needed.
    function lane_heads.use(name)
        local lane = open[name]
        if lane then
            used[#used + 1] = lane
            if lane.is_new and lane.number == 0 then
                lane.number = shard.lanes_created + 1
                shard.lanes, shard.lanes_created = shard.lanes + 1, lane.number
            end
        end
        return lane
    end

    -- Put the new lanes among those that were used into their indexes.
    local function index_new()
        local names, by_queue = {}, {}
        for n = 1, #used do
            local lane = used[n]
            if lane.is_new then
                local runnable = by_queue[lane.tier_queue]
                if not runnable then
                    runnable = {}
                    by_queue[lane.tier_queue] = runnable
                end
                local at, place = #names, #runnable
                names[at + 1], names[at + 2] = 0, lane.name
                runnable[place + 1], runnable[place + 2] = tier_queues[lane.tier_queue].vt,
                    pack('>I7c0', lane.number, lane.name)
            end
        end
        call_many('ZADD', keys.names, names, 2)
        for queue, runnable in pairs(by_queue) do
            call_many('ZADD', tier_queues[queue].runnable, runnable, 2)
            pools_to_notify[tier_queues[queue].pool], has_arrivals = true, true
        end
    end

    -- Whether a lane with so many messages has to move in the top lists.
    function lane_heads.changes_class(big, old, ready, delayed, parked)
        local waiting = ready + delayed + parked
        if waiting < 32 then
            return big > 0
        end
        return fairness.size_class(waiting) ~= big or (old == 0 and ready >= 32)
    end

    -- Write all of them, before any of the lanes is read.
    function lane_heads.write()
        local written = {}
        local stem, size, queue, cell = '', 0, nil, nil -- of the lane before
        for n = 1, #used do
            local lane = used[n]
            if lane_heads.changes_class(lane.big, lane.old, lane.ready, lane.delayed, lane.parked)
                then
                local whole = lanes.learn(lane.name, lane.stored)
                whole.number = lane.number
                whole.ready, whole.listed, whole.bytes, whole.published, whole.latest = lane.ready,
                    lane.listed, lane.bytes, lane.published, lane.latest
                lanes.touch(whole)
            else
                local name, its_queue, at = lane.name, lane.tier_queue % IN_GROUP, #written
                if its_queue ~= queue or sub(name, 1, size) ~= stem or find_in(name, '.', size + 1,
                    true) then
                    stem, queue = stem_of(name), its_queue
                    size, cell = #stem, tallies.cell(stem, queue)
                end
                local more = lane.published - lane.was_published
                cell.published = cell.published + more
                if lane.published % 32 < more then
                    recent.arrived(name, lane.published, more)
                end
                written[at + 1] = name
                written[at + 2] = pack(HEAD_AND_REST, lane.big, lane.old, lane.busy, lane.slow,
                    lane.place, lane.number, lane.ready, lane.delayed, lane.parked,
                    lane.listed, lane.bytes, lane.published, #lane.latest, lane.latest,
                    sub(lane.stored, lane.rest - 2))
            end
        end
        call_many('HSET', keys.lanes, written, 2)
        index_new()
        open, used = {}, {}
    end
end)
