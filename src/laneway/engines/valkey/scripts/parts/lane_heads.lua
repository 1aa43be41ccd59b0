-- The beginnings of lanes' records. Most messages arrive in a lane that has ready messages, and
-- change only its counts: then only the beginning of the record is decoded and encoded, and the
-- rest is copied. Decoding and encoding all of it would cost twice as much.
--
-- uses: fairness, rules, groups, tallies, lanes

local lane_heads = part(function(lane_heads)
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
                parked = 0, listed = 0, bytes = 0, published = 0, latest = '',
                was_published = 0 }
            if taken <= POOL then
                pool[taken] = lane
            end
        end
        lane.big, lane.old, lane.busy, lane.slow, lane.place, lane.number, lane.ready, lane.delayed,
            lane.parked, lane.listed, lane.bytes, lane.published,
            lane.latest, lane.rest = unpack_from(LANE_HEAD, stored)
        lane.name, lane.stored, lane.arrived, lane.was_published = name, stored, false,
            lane.published
        return lane
    end

    -- Read the lanes of these names: only the beginning, where more messages do not change the
    -- lane's place.
    function lane_heads.load(names)
        local wanted, others = {}, {}
        for _, name in ipairs(names) do
            if not lanes.is_known(name) then
                wanted[#wanted + 1] = name
            end
        end
        for n, stored in ipairs(read_many(keys.lanes, wanted)) do
            local lane = stored and make(wanted[n], stored)
            if lane and lane.place ~= IDLE and lane.ready > 0 then
                open[wanted[n]] = lane
            else
                lanes.learn(wanted[n], stored)
                others[#others + 1] = wanted[n]
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
        return fairness.size_class(ready + delayed + parked) ~= big or (old == 0 and ready >= 32)
    end

    -- Write all of them, before any of the lanes is read.
    function lane_heads.write()
        local written = {}
        for _, lane in ipairs(used) do
            if lane_heads.changes_class(lane.big, lane.old, lane.ready, lane.delayed, lane.parked)
                then
                local whole = lanes.learn(lane.name, lane.stored)
                whole.ready, whole.listed, whole.bytes, whole.published, whole.latest = lane.ready,
                    lane.listed, lane.bytes, lane.published, lane.latest
                lanes.touch(whole)
            else
                tallies.count_published(lane.name, unpack_from('<I2', lane.stored, lane.rest)
                    % IN_GROUP,
                    lane.published - lane.was_published)
                local n = #written
                written[n + 1] = lane.name
                written[n + 2] = pack(LANE_HEAD, lane.big, lane.old, lane.busy, lane.slow,
                    lane.place, lane.number, lane.ready, lane.delayed, lane.parked,
                    lane.listed, lane.bytes, lane.published, #lane.latest, lane.latest)
                        .. string.sub(lane.stored, lane.rest)
            end
        end
        call_many('HSET', keys.lanes, written, 2)
        open, used = {}, {}
    end
end)
