-- The beginnings of lanes' records. Most messages arrive in a lane that has ready messages, and
-- change only its counts: then only the beginning of the record is decoded and encoded, and the
-- rest is copied. Decoding and encoding all of it would cost twice as much. Idle lanes become
-- runnable, and lanes that a call makes begin, the same way, if their policies have no limits.
--
-- What arrives in these lanes is kept by position, in the order of the names that were loaded: a
-- table for each lane would be the largest cost where each gets one message.
--
-- uses: fairness, rules, writes, groups, recent, tallies, lanes, plain

local lane_heads = part(function(lane_heads)
    local HEAD_AND_QUEUE, HEAD_AND_REST = LANE_HEAD .. 'I2', LANE_HEAD .. 'c0'
    local PLACE_AT, QUEUE_AT = lanes.AT.place, lanes.AT.queue
    local MANY = 8 -- new lanes
    local EIGHT = 'I7I7I7I7I7I7I7I7'
    local NUMBERS = EIGHT .. EIGHT -- as many as `INLINE`
    local names, records -- by position: the lane's name, and the record as it was read or begins
    local counts         -- by position: how many messages arrived; nil: the whole lane is needed
    local arrived, sizes -- by position: their numbers (of a single one: it), and their bytes
    local numbers        -- by position: the number of a lane that this call makes
    local waking          -- by position: when an idle lane was to be forgotten; 0: never
    local queues         -- by position: the tier queue of such lanes
    local used           -- the positions of lanes in which messages arrived
    local beginnings_of, delayed_beginnings -- by policy: see `lane_heads.beginning_of`
    local new_names      -- to be written by `lane_heads.write_index`, with a score before each
    local runnable_of    -- as well, by tier queue
    local woken          -- the members of the index of idle lanes that it removes

    local function forget()
        names, records, counts, arrived, sizes, numbers, waking, queues, used = {}, {}, {}, {}, {},
            {}, {}, {}, {}
    end

    at_begin(function()
        forget()
        beginnings_of, delayed_beginnings, new_names, runnable_of, woken = {}, {}, {}, {}, {}
    end)

    -- {the record of a new lane of this policy without its number, its tier queue}, as `lanes.make`
    -- and `lanes.place` make it; false: these have to. `is_delayed`: all its messages are delayed,
    -- so that no limit matters yet.
    function lane_heads.beginning_of(policy, is_delayed)
        local known = is_delayed and delayed_beginnings or beginnings_of
        local found = known[policy]
        if found == nil then
            found = not (policy.paused or policy.shared or policy.group or policy.buckets
                or policy.partitions > 1) and (is_delayed or not (policy.limited or policy.gate
                or policy.adapts or policy.key_limited))
            if found then
                local tier_queue = tier_queues.of(policy.pool, tier_of(policy))
                found = { pack(lanes.RECORD, 0, 0, 0, 0, RUNNABLE, 0, 0, 0, 0, 0, 0, 0, 0, '',
                    tier_queue.number, 0, tier_queue.vt, 0, 0, 0, 0, shard.now, 0, 0, 0, 0, ''),
                    tier_queue.number }
            end
            known[policy] = found
        end
        return found
    end

    -- Load the rules of the lanes at these positions; returns their names.
    local function load_rules_at(positions)
        local found = {}
        for n = 1, #positions do
            found[n] = names[positions[n]]
        end
        rules.load(found)
        return found
    end

    -- Begin the lanes at these positions, which do not exist, as far as their policies allow it.
    -- The others are lanes that messages make one by one.
    local function begin_new(positions)
        local new = load_rules_at(positions)
        for n = 1, #positions do
            local position, name = positions[n], new[n]
            local beginning = #positions >= MANY and lane_heads.beginning_of(rules.of_lane(name))
            if beginning then
                records[position], queues[position] = beginning[1], beginning[2]
                counts[position], numbers[position] = 0, 0
            else
                lanes.learn(name, false)
            end
        end
    end

    -- When the idle lane of this record is to be forgotten (0: never), if its policy has the
    -- beginning and a message changes no more than its counts and makes it runnable; else nil.
    function lane_heads.wake_of(stored, beginning)
        if not lanes.is_usual(stored, #beginning[1]) then
            return nil
        end
        local place, _, ready, delayed, parked = unpack_from('<Bi8i4i4i4', stored, PLACE_AT)
        local its_queue, wake = unpack_from('<I2i8', stored, QUEUE_AT)
        return place == IDLE and ready + delayed + parked == 0 and its_queue == beginning[2]
            and wake or nil
    end

    -- The lanes at these positions have nothing that is ready. Adds those of which more than the
    -- beginning is needed to `others`.
    local function wake_idle(positions, others)
        local idle = load_rules_at(positions)
        for n = 1, #positions do
            local position, name = positions[n], idle[n]
            local beginning = lane_heads.beginning_of(rules.of_lane(name))
            local wake = beginning and lane_heads.wake_of(records[position], beginning)
            if wake then
                waking[position], queues[position], counts[position] = wake, beginning[2], 0
            else
                lanes.learn(name, records[position])
                others[#others + 1] = name
            end
        end
    end

    -- Read the lanes of these names: only the beginning, where more messages do not change the
    -- lane's place, or make it runnable.
    function lane_heads.load(wanted)
        names = wanted
        local found, absent, idle, others = read_many(keys.lanes, wanted), {}, {}, {}
        for n = 1, #found do
            local stored = found[n]
            if lanes.is_known(wanted[n]) then
                stored = nil -- it is whole already
            elseif not stored then
                absent[#absent + 1] = n
            else
                local place, _, ready = unpack_from('<Bi8i4', stored, PLACE_AT)
                if place ~= IDLE and ready > 0 then
                    records[n], counts[n] = stored, 0
                elseif place == IDLE and ready == 0 then
                    records[n], idle[#idle + 1] = stored, n
                else
                    lanes.learn(wanted[n], stored)
                    others[#others + 1] = wanted[n]
                end
            end
        end
        wake_idle(idle, others)
        lanes.load_rules(others)
        begin_new(absent)
    end

    -- A plain message arrives in the lane at a position. False: the whole lane is needed.
    function lane_heads.append(position, mid, size)
        local count = counts[position]
        if not count then
            return false
        elseif count == 0 then
            used[#used + 1] = position
            arrived[position], sizes[position], counts[position] = mid, size, 1
            if numbers[position] then
                local number = shard.lanes_created + 1
                shard.lanes, shard.lanes_created, numbers[position] = shard.lanes + 1, number,
                    number
            end
            return true
        elseif count == 1 then
            arrived[position] = { arrived[position], mid }
        else
            arrived[position][count + 1] = mid
        end
        sizes[position], counts[position] = sizes[position] + size, count + 1
        return true
    end

    local function add_runnable(queue, vt, number, name)
        local runnable = runnable_of[queue]
        if not runnable then
            runnable = {}
            runnable_of[queue] = runnable
        end
        local at = #runnable
        runnable[at + 1], runnable[at + 2] = vt, pack('>I7c0', number, name)
    end

    -- A new lane is to be in the indexes. `queue`: its tier queue; nil: nothing in it is ready.
    function lane_heads.index(name, number, queue)
        local at = #new_names
        new_names[at + 1], new_names[at + 2] = 0, name
        if queue then
            add_runnable(queue, tier_queues[queue].vt, number, name)
        end
    end

    -- An idle lane gets messages. `wake`: see `wake_of`; `queue`: as above; `vt`: its virtual time.
    -- Returns the bytes of the next `wake` and `vt`.
    function lane_heads.wake(name, number, wake, queue, vt)
        if wake > 0 then
            woken[#woken + 1] = pack('>I7c0', number, name)
        end
        if queue then
            vt = max(vt, tier_queues[queue].vt) -- as `lanes.place`
            add_runnable(queue, vt, number, name)
        end
        return pack('<i8i8', 0, vt)
    end

    -- Write the indexes of these lanes.
    function lane_heads.write_index()
        call_many('ZADD', keys.names, new_names, 2)
        call_many('ZREM', keys.idle, woken, 1)
        for queue, runnable in pairs(runnable_of) do
            call_many('ZADD', tier_queues[queue].runnable, runnable, 2)
            pools_to_notify[tier_queues[queue].pool], has_arrivals = true, true
        end
        new_names, runnable_of, woken = {}, {}, {}
    end

    -- Whether a lane with so many messages has to move in the top lists.
    function lane_heads.changes_class(big, old, ready, delayed, parked)
        local waiting = ready + delayed + parked
        if waiting < 32 then
            return big > 0
        end
        return fairness.size_class(waiting) ~= big or (old == 0 and ready >= 32)
    end

    -- `scores`: of members of the top list, flat, which are written together.
    local function set_class(scores, list, name, class)
        if class > 0 then
            scores[#scores + 1] = class
            scores[#scores + 1] = name
        else
            writes.set_member(keys['top:' .. list], name, false)
        end
    end

    -- The classes of a lane with so many messages, as `lanes.classify`; messages change no other.
    local function classify(tops, name, big, old, ready, waiting)
        local class = fairness.size_class(waiting)
        if class ~= big then
            set_class(tops.big, 'big', name, class)
        end
        local since = ready >= 32 and (old > 0 and old or floor(shard.now / 8388608)) or 0
        if since ~= old then
            set_class(tops.old, 'old', name, since)
        end
        return class, since
    end

    -- Write all of them, before any of the lanes is read.
    function lane_heads.write()
        local written, tops = {}, { big = {}, old = {} }
        local stem, size, queue, cell = '', 0, nil, nil -- of the lane before
        for n = 1, #used do
            local position = used[n]
            local name, stored, more, mids = names[position], records[position], counts[position],
                arrived[position]
            local big, old, busy, slow, place, number, ready, delayed, parked, listed, bytes,
                published, latest, tier_queue, rest = unpack_from(HEAD_AND_QUEUE, stored)
            ready, published = ready + more, published + more
            local wake, from_queue = waking[position], nil
            if wake then
                place = RUNNABLE
                local next_two = lane_heads.wake(name, number, wake, queues[position],
                    unpack_from('<i8', stored, rest + 8))
                from_queue = sub(stored, rest - 2, rest - 1) .. next_two .. sub(stored, rest + 16)
            elseif numbers[position] then
                number = numbers[position]
                lane_heads.index(name, number, queues[position])
            end
            if more == 1 then
                mids = #latest < plain.room_in(number) and sortable(mids) or { mids }
            elseif #latest + 7 * more <= plain.room_in(number) then
                mids = pack('>' .. sub(NUMBERS, 1, 2 * more), unpack(mids))
            end
            if type(mids) == 'string' then
                latest = latest .. mids
            else
                listed, latest = listed + plain.move_to_list(number, latest, mids), ''
            end
            if lane_heads.changes_class(big, old, ready, delayed, parked) then
                big, old = classify(tops, name, big, old, ready, ready + delayed + parked)
            end
            tier_queue = tier_queue % IN_GROUP
            if tier_queue ~= queue or sub(name, 1, size) ~= stem or find_in(name, '.', size + 1,
                true) then
                stem, queue = stem_of(name), tier_queue
                size, cell = #stem, tallies.cell(stem, queue)
            end
            cell.published = cell.published + more
            if published % 32 < more then
                recent.arrived(name, published, more)
            end
            written[2 * n - 1], written[2 * n] = name, pack(HEAD_AND_REST, big, old, busy, slow,
                place, number, ready, delayed, parked, listed, bytes + sizes[position], published,
                #latest, latest, from_queue or sub(stored, rest - 2))
        end
        call_many('HSET', keys.lanes, written, 2)
        for list, scores in pairs(tops) do
            call_many('ZADD', keys['top:' .. list], scores, 2)
        end
        lane_heads.write_index()
        forget()
    end
end)
