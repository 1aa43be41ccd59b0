-- Lanes that a call empties. Where workers keep up, a lane has few messages: a visit takes all of
-- them, and the lane is idle from then on. Only a few fields of its record change, and the rest is
-- copied, as in lane_heads.lua: to decode, place and encode it would cost more than all that is
-- done with its messages.
--
-- uses: fairness, rules, tallies, lanes, lane_heads

local emptied = part(function(emptied)
    local COUNTS = '<Bi8i4i4i4i4i8i8I2' -- of a record, from the place to the size of `latest`
    local SERVED = '<' .. lanes.SERVED
    local FROM_PUBLISHED, ALL = '<i8I2c0' .. lanes.SERVED, COUNTS .. lanes.SERVED
    local PLACE_AT, PUBLISHED_AT, NUMBERS_AT, SERVED_BYTES = lanes.AT.place, lanes.AT.published,
        lanes.AT.queue, lanes.BYTES.served
    local CLASSES = '\0\0\0\0\0\0\0\0\0\0' -- it is in no top list
    local REST = '\0\0\0\0\0\0'            -- nothing is sorted, no gate, no group, no rare field
    local FEW = 32 -- with fewer messages and deliveries it comes into no top list

    -- Tables are used again in later calls, because creating them is slow. Each is a lane and what
    -- a call knows of it, see `given_by` in serving.lua, in one.
    local POOL = 512
    local pool, taken = {}, 0

    at_begin(function()
        taken = 0
    end)

    local function new_table()
        local lane = { name = '', member = '', stored = '', number = 0, tier_queue = 0, vt = 0,
            ready = 0, bytes = 0, policy = false,
            wanted = 0, first = 0, count = 0, charge = 0, place = 0, quick_tail = false,
            other_tail = false, is_emptied = true, mean = 0, big = 0, gate = '',
            is_limited = false }
        lane.lane = lane
        return lane
    end

    -- The lane of this record, if a visit takes all that it has and changes no more than what
    -- `emptied.write` writes; else nil. `member`: its member of the index; `room`,
    -- `count_of_lanes`: as `fairness.chunk`. All of its messages are plain, because none is sorted.
    function emptied.find(name, member, stored, room, count_of_lanes)
        local place, number, ready, delayed, parked, listed, bytes, _, size = unpack_from(COUNTS,
            stored, PLACE_AT)
        local at = NUMBERS_AT + size
        if size ~= 7 * ready or listed + delayed + parked > 0 or place ~= RUNNABLE
            or #stored ~= at + SERVED_BYTES + #REST - 1 or sub(stored, 1, #CLASSES) ~= CLASSES
            or sub(stored, -#REST) ~= REST then
            return nil
        end
        local policy = rules.of_lane(name)
        local beginning = lane_heads.beginning_of(policy)
        local queue, _, vt, _, _, _, _, _, lately = unpack_from(SERVED, stored, at)
        if not beginning or beginning[2] ~= queue or policy.at_most_once or lately + ready >= FEW
            or (ready > 1 and ready > fairness.chunk(room, count_of_lanes, policy.weight)) then
            return nil
        end
        taken = taken + 1
        local lane = pool[taken]
        if not lane then
            lane = new_table()
            pool[taken] = taken <= POOL and lane or nil
        end
        lane.name, lane.member, lane.stored, lane.number, lane.tier_queue, lane.vt, lane.ready,
            lane.bytes, lane.policy, lane.wanted, lane.count, lane.place, lane.quick_tail,
            lane.other_tail
            = name, member, stored, number, queue, vt, ready,
            bytes, policy, ready, ready, 0, false,
            false
        lane.lane = lane -- `emptied.whole` may have changed it
        return lane
    end

    -- Append the numbers of its messages to a list.
    function emptied.add_numbers(lane, mids)
        local stored, n = lane.stored, #mids
        lane.first = n
        for place = 1, lane.ready do
            mids[n + place] = unpack_from('>I7', stored, NUMBERS_AT - 7 + 7 * place)
        end
    end

    -- Write the records of those of these lanes that are emptied, before any other part reads them.
    -- What waits in them is nothing then.
    function emptied.write(found)
        local written, members_of = {}, {}
        local stem, queue, cell, members = '', 0, nil, nil -- of the lane before
        for n = 1, #found do
            local lane = found[n]
            if lane.is_emptied then
                local published, _, its_queue, _, _, tat, leased, delivered, done, seen, lately,
                    before = unpack_from(FROM_PUBLISHED, lane.stored, PUBLISHED_AT)
                local name, count = lane.name, lane.ready
                lately, before, seen = lanes.lately(count, lately, before, seen, shard.now)
                local at = #written
                written[at + 1], written[at + 2] = name, CLASSES .. pack(ALL, IDLE,
                    lane.number, 0, 0, 0, 0, 0, published, 0, its_queue, 0, lane.vt, tat,
                    leased + count, delivered + count, done, seen, lately, before) .. REST
                if not cell or its_queue ~= queue or stem ~= stem_of(name) then
                    stem, queue = stem_of(name), its_queue
                    cell, members = tallies.cell(stem, queue), members_of[queue] or {}
                    members_of[queue] = members
                end
                cell.delivered = cell.delivered + count
                members[#members + 1] = lane.member
            end
        end
        call_many('HSET', keys.lanes, written, 2)
        for its_queue, gone in pairs(members_of) do
            call_many('ZREM', tier_queues[its_queue].runnable, gone, 1)
        end
    end

    -- The whole lane of an emptied one, after `emptied.write`. `given`: what the call knows of it.
    function emptied.whole(given)
        local lane = given.lane
        if lane.is_emptied then
            local bytes = lane.bytes -- of messages that are not delivered yet
            lane = lanes.find(lane.name)
            lane.bytes, given.lane = bytes, lane
        end
        return lane
    end
end)
