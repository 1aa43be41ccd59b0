-- The beginnings of lanes' records, for messages that are not plain. Most of them arrive in a lane
-- that has ready messages, or are delayed in one that has others: then only counts change, and the
-- rest of the record is copied, see lane_heads.lua. Idle lanes become runnable, and lanes that a
-- call makes begin, the same way, if their policies have no limits.
--
-- Such a beginning stands for the lane in the functions that let a message wait, which count in it
-- what is more than in the record: that is decoded at the end of the call. Its `is_changed` is
-- true, so that it is never among the lanes that are written whole.
--
-- uses: writes, groups, recent, tallies, lanes, lane_heads

local rich_heads = part(function(rich_heads)
    local PLACE_AT = lanes.AT.place
    local MIDDLE = 'I2c' .. lanes.BYTES.served - 2 .. 'i4' -- the tier queue, and up to `sorted`
    local HEAD_TO_SORTED, HEAD_AND_REST = LANE_HEAD .. MIDDLE, LANE_HEAD .. MIDDLE .. 'c0'
    local POOL = 1100 -- as many as drafts, see putting.lua
    local MANY = 8 -- new lanes
    local MOST_KEPT = 16
    local pool, taken = {}, 0 -- tables that are used again
    local open -- by name: the lanes that may be used
    local used -- those in which messages arrived

    at_begin(function()
        open, used, taken = {}, {}, 0
    end)

    -- `number`: 0 if it is new; `wake`: of an idle lane, see `lane_heads.wake_of`; false: it is not
    -- idle.
    local function make(name, stored, number, wake)
        taken = taken + 1
        local lane = pool[taken]
        if not lane then
            lane = { name = '', stored = '', number = 0, wake = false, is_new = false, is_used =
                false, is_changed = true, ready = 0, sorted = 0, delayed = 0, parked = 0, bytes = 0,
                published = 0, merged = 0, to_a = 0, to_o = 0, to_z = 0, in_a = {}, in_o = {},
                in_z = {} }
            if taken <= POOL then
                pool[taken] = lane
            end
        end
        lane.name, lane.stored, lane.number, lane.wake, lane.is_new, lane.is_used = name, stored,
            number, wake, number == 0, false
        lane.ready, lane.sorted, lane.delayed, lane.parked, lane.bytes, lane.published, lane.merged,
            lane.to_a, lane.to_o, lane.to_z = 0, 0, 0, 0, 0, 0, 0, 0, 0, 0
        open[name] = lane
    end

    -- The lanes at these positions, which do not exist.
    local function begin_new(absent, names, policies, only_delayed)
        for n = 1, #absent do
            local position = absent[n]
            local name = names[position]
            local beginning = #absent >= MANY and lane_heads.beginning_of(policies[position],
                only_delayed[name])
            if beginning then
                make(name, beginning[1], 0, false)
            else
                lanes.learn(name, false)
            end
        end
    end

    -- Read the lanes of these names: only the beginning, where more messages do not change the
    -- lane's place, or wake it. `policies`: in the same order; `only_delayed`: by name, whether all
    -- of them are delayed.
    function rich_heads.load(names, policies, only_delayed)
        local found, absent, others = read_many(keys.lanes, names), {}, {}
        for n = 1, #names do
            local name, stored = names[n], found[n]
            if lanes.is_known(name) then
                stored = nil -- it is whole already
            elseif not stored then
                absent[#absent + 1] = n
            else
                local place, number, ready, delayed = unpack_from('<Bi8i4i4', stored, PLACE_AT)
                if (place ~= IDLE and ready > 0) or (delayed > 0 and only_delayed[name]) then
                    make(name, stored, number, false)
                else
                    local beginning = lane_heads.beginning_of(policies[n], only_delayed[name])
                    local wake = beginning and lane_heads.wake_of(stored, beginning)
                    if wake then
                        make(name, stored, number, wake)
                    else
                        lanes.learn(name, stored)
                        others[#others + 1] = name
                    end
                end
            end
        end
        lanes.load_rules(others)
        begin_new(absent, names, policies, only_delayed)
    end

    -- The beginning of the lane in which a message arrives; nil: the whole lane is needed.
    function rich_heads.use(name)
        local lane = open[name]
        if lane and not lane.is_used then
            used[#used + 1], lane.is_used = lane, true
            if lane.is_new then
                lane.number = shard.lanes_created + 1
                shard.lanes, shard.lanes_created = shard.lanes + 1, lane.number
            end
        end
        return lane
    end

    -- The same, if a new message may join one that waits in it; the caller uses it then.
    function rich_heads.of_waiting(name)
        local lane = open[name]
        return lane and (lane.is_used or not lane.is_new) and lane or nil
    end

    -- The lane moves in the top lists: that needs all of it. `woken`: as below.
    local function write_whole(lane, place, woken)
        local whole = lanes.learn(lane.name, lane.stored)
        if woken then
            whole.wake, whole.vt = unpack_from('<i8i8', woken)
        end
        if lane.merged > 0 then
            whole.merged = whole.merged + lane.merged
        end
        local to_a, to_z = lane.to_a, lane.to_z
        whole.number, whole.place, whole.bytes = lane.number, place, whole.bytes + lane.bytes
        whole.ready, whole.sorted, whole.delayed, whole.parked, whole.published = whole.ready
            + lane.ready + to_z, whole.sorted + lane.sorted + to_z, whole.delayed + lane.delayed
            + to_a, whole.parked + lane.parked, whole.published + lane.published + to_a + to_z
        lanes.touch(whole)
    end

    -- Write members of a lane's sorted set, which `insert_brief` has put at the even positions of
    -- a table that is used again. What else this call changes of the set is written later.
    local function add_members(kind, lane, members, count)
        local name = lanes.key_of(kind, lane)
        writes.end_clearing(name)
        if count == 1 then
            run('ZADD', name, 0, members[2])
            return
        end
        for n = 1, count do
            members[2 * n - 1] = 0
        end
        for first = 1, 2 * count, SLICE do
            run('ZADD', name, unpack(members, first, min(first + SLICE - 1, 2 * count)))
        end
    end

    local function write_members_of(lane, to_a, to_z)
        local to_o = lane.to_o
        if to_a > 0 then
            add_members('a', lane, lane.in_a, to_a)
        end
        if to_o > 0 then
            add_members('o', lane, lane.in_o, to_o)
        end
        if to_z > 0 then
            add_members('z', lane, lane.in_z, to_z)
        end
        if to_a + to_z > MOST_KEPT then
            lane.in_a, lane.in_o, lane.in_z = {}, {}, {}
        end
    end

    -- The end of a record, from the lane's gate on, after so many messages have joined others in
    -- the lane.
    local function with_merged(rest, is_in_group, count)
        local at = 3 + unpack_from('<I2', rest) + (is_in_group and 7 or 0)
        if at > #rest then
            return rest .. lanes.RARE_MARK .. packed(0, 0, count, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
                false, false)
        end
        local retried, died, merged = byte(rest, at + 1, at + 3)
        if retried < 128 and died < 128 and merged + count < 128 then -- of one byte each
            return sub(rest, 1, at + 2) .. string.char(merged + count) .. sub(rest, at + 4)
        end
        local values = { values_of(sub(rest, at + 1)) }
        values[3] = values[3] + count
        return sub(rest, 1, at) .. packed(unpack(values, 1, 13)) .. packed(values[14] or false,
            values[15] or false)
    end

    local stem, size, queue, cell -- of the lane before

    -- Add the lane's name and record to `written`, unless all of it is written later.
    local function write_one(lane, written)
        local name, to_a, to_z, stored, at = lane.name, lane.to_a, lane.to_z, lane.stored, #written
        write_members_of(lane, to_a, to_z)
        local big, old, busy, slow, place, number, ready, delayed, parked, listed, bytes, published,
            latest, tier_queue, middle, sorted, rest = unpack_from(HEAD_TO_SORTED, stored)
        local more, its_queue, woken = lane.published + to_a + to_z, tier_queue % IN_GROUP, nil
        ready, delayed, parked, published = ready + lane.ready + to_z, delayed + lane.delayed
            + to_a, parked + lane.parked, published + more
        if ready == 0 then -- all its messages wait for a time or a key
            has_arrivals = true
        end
        if lane.is_new then
            number, place = lane.number, ready > 0 and RUNNABLE or IDLE
            lane_heads.index(name, number, ready > 0 and tier_queue or nil)
        elseif lane.wake then
            place = ready > 0 and RUNNABLE or IDLE
            woken = lane_heads.wake(name, number, lane.wake, ready > 0 and tier_queue or nil,
                unpack_from('<i8', middle, 9))
        end
        if (big > 0 or ready + delayed + parked >= 32)
            and lane_heads.changes_class(big, old, ready, delayed, parked) then
            write_whole(lane, place, woken)
            return
        end
        if its_queue ~= queue or sub(name, 1, size) ~= stem or find_in(name, '.', size + 1, true)
            then
            stem, queue = stem_of(name), its_queue
            size, cell = #stem, tallies.cell(stem, queue)
        end
        rest, cell.published = sub(stored, rest), cell.published + more
        if published % 32 < more then
            recent.arrived(name, published, more)
        end
        if lane.merged > 0 then
            cell.merged = cell.merged + lane.merged
            rest = with_merged(rest, tier_queue >= IN_GROUP, lane.merged)
        end
        written[at + 1], written[at + 2] = name, pack(HEAD_AND_REST, big, old, busy, slow, place,
            number, ready, delayed, parked, listed, bytes + lane.bytes, published, #latest, latest,
            tier_queue, woken and woken .. sub(middle, 17) or middle, sorted + lane.sorted + to_z,
            rest)
    end

    -- Write all of them, before any of the lanes is read.
    function rich_heads.write()
        local written = {}
        queue = nil
        for n = 1, #used do
            if used[n].is_used then
                write_one(used[n], written)
            end
        end
        call_many('HSET', keys.lanes, written, 2)
        lane_heads.write_index()
        open, used = {}, {}
    end

    -- From now on the whole lane is used.
    function rich_heads.close(name)
        local lane = open[name]
        if not lane then
            return
        end
        open[name] = nil
        if not lane.is_used then
            lanes.learn(name, not lane.is_new and lane.stored)
            return
        end
        local written = {}
        lane.is_used, queue = false, nil
        write_one(lane, written)
        lane_heads.write_index()
        if written[1] then
            run('HSET', keys.lanes, name, written[2])
            lanes.load_rules({ lanes.learn(name, written[2]).name })
        end
    end
end)
