-- The beginnings of lanes' records. Most messages arrive in a lane that has ready messages, and
-- change only its counts: then only the beginning of the record is decoded and encoded, and the
-- rest is copied. Decoding and encoding all of it would cost twice as much.
--
-- uses: fairness, rules, groups, recent, tallies, lanes

local lane_heads = part(function(lane_heads)
    local HEAD_AND_QUEUE, HEAD_AND_REST = LANE_HEAD .. 'I2', LANE_HEAD .. 'c0'
    local POOL = 512
    local pool, taken = {}, 0 -- tables that are used again
    local open, used

    at_begin(function()
        open, used, taken = {}, {}, 0
    end)

    local function make(name, stored)
        taken = taken + 1
        local lane = pool[taken]
        if not lane then
            lane = { name = '', stored = '', rest = 0, arrived = false, big = 0, old = 0, busy = 0,
                slow = 0, place = 0, number = 0, ready = 0, delayed = 0,
                parked = 0, listed = 0, bytes = 0, published = 0, latest = '', tier_queue = 0,
                was_published = 0 }
            if taken <= POOL then
                pool[taken] = lane
            end
        end
        lane.big, lane.old, lane.busy, lane.slow, lane.place, lane.number, lane.ready, lane.delayed,
            lane.parked, lane.listed, lane.bytes, lane.published,
            lane.latest, lane.tier_queue, lane.rest = unpack_from(HEAD_AND_QUEUE, stored)
        lane.name, lane.stored, lane.arrived, lane.was_published = name, stored, false,
            lane.published
        return lane
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
        local found = read_many(keys.lanes, wanted)
        for n = 1, #found do
            local name, stored = wanted[n], found[n]
            local lane = stored and make(name, stored)
            if lane and lane.place ~= IDLE and lane.ready > 0 then
                open[name] = lane
            else
                lanes.learn(name, stored)
                others[#others + 1] = name
            end
        end
        rules.load(others)
    end

    -- The beginning of the lane in which a message arrives; nil: the whole lane is needed.
    function lane_heads.use(name)
        local lane = open[name]
        if lane then
            used[#used + 1] = lane
        end
        return lane
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
        open, used = {}, {}
    end
end)
