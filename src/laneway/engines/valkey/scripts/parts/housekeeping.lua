-- What the clock causes: due messages, leases that run out, ttl, retention, sweeps of changed
-- patterns, lanes that wake.

local housekeeping = part(function(housekeeping)
    local LAST = '\244\143\191\191' -- sorts behind every name
    -- How many leases a call looks at whose time is over. Most were settled long ago; after a burst
    -- there are as many of them as it had messages.
    local MOST_LEASES = 1000
    -- The maximum of a lane in one call while more lanes are due than the call handles.
    local LATEST_AT_ONCE = 8
    local PAGE = 32 -- events that are read at once

    -- Read at once these messages, their lanes and the holders of their keys.
    local function load_messages(mids)
        local names, lines = {}, {}
        messages.load(mids)
        for _, mid in ipairs(mids) do
            local record = messages.read(mid)
            if record then
                names[#names + 1] = record.lane or nil
                lines[#lines + 1] = messages.line(record) or nil
            end
        end
        lanes.load(names)
        messages.load_holders(lines)
    end

    local function arrive(lane, record)
        messages.end_delay(lane, record)
        messages.arrive(lane, record)
        lanes.touch(lane)
        if lane.place == IDLE then
            lanes.place(lane)
        end
    end

    -- The lanes of timers.
    local function lanes_of(timers)
        local found, names = {}, lanes.names_in(timers)
        lanes.load(names)
        for n, name in ipairs(names) do
            found[#found + 1] = lanes.find(name) or nil
            if not lanes.find(name) then -- the store lost it
                writes.set_member(keys.timers, timers[n], false)
            end
        end
        return found
    end

    -- Of lanes in this order, the first due messages, members of `a:N`: at most `share` of each,
    -- `most` together, where large ones count as several. A lane without such messages, whose timer
    -- was too early, counts as one.
    local function add_due(due, found, share, most)
        local last, before = '(D' .. sortable(shard.now + 1), due.count
        for _, lane in ipairs(found) do
            if due.count - before >= most then
                break
            end
            local weight = messages.weight(lane.bytes / max(lanes.waiting(lane), 1))
            local members = call('ZRANGE', lanes.key_of('a', lane), '[D', last, 'BYLEX', 'LIMIT', 0,
                max(floor(share / weight), 1))
            for _, member in ipairs(members) do
                due.members[#due.members + 1], due.lane_of[member] = member, lane
            end
            due.lanes[#due.lanes + 1] = lane
            due.count = due.count + weight * max(#members, 1)
        end
    end

    local function arrive_all(due)
        local mids = {}
        table.sort(due.members)
        for n, member in ipairs(due.members) do
            mids[n] = unpack_from('>I7', member, 9)
        end
        load_messages(mids)
        for n, member in ipairs(due.members) do
            local record = messages.read(mids[n])
            if record then
                arrive(due.lane_of[member], record)
            else -- the store lost it; the doctor reports it
                writes.set_member(lanes.key_of('a', due.lane_of[member]), member, false)
            end
        end
        for _, lane in ipairs(due.lanes) do
            if lane.delayed > 0 then
                messages.move_timer(lane)
            end
        end
    end

    -- Delayed messages whose time has come arrive. Lanes share the budget. If more lanes have such
    -- messages, half of it is for those that have waited longest, half for the latest ones, which
    -- do not wait until a flood before them is handled. Returns whether there are more.
    local function come_due(budget)
        local is_flood = false
        while true do
            local timers = call('ZRANGE', keys.timers, '-inf', shard.now, 'BYSCORE', 'LIMIT', 0,
                max(budget, 1))
            if not timers[1] or budget <= 0 or is_flood then
                return timers[1] ~= nil
            end
            local due, half = { members = {}, lane_of = {}, lanes = {}, count = 0 },
                floor(budget / 2)
            is_flood = #timers == budget
            add_due(due, lanes_of(timers), is_flood and 1 or floor(budget / #timers),
                is_flood and budget - half or budget)
            if is_flood then
                add_due(due, lanes_of(call('ZRANGE', keys.timers, shard.now, '-inf', 'BYSCORE',
                    'REV', 'LIMIT', 0, half)), LATEST_AT_ONCE, half)
            end
            arrive_all(due)
            budget = budget - due.count
        end
    end

    -- Returns as how many events it counts.
    local function happen(event)
        local mid, kind = unpack_from('>I7', event, 2), sub(event, 1, 1)
        writes.set_member(keys.due, event, false)
        local record = messages.read(mid)
        if not record then -- the store lost it; the doctor reports it
            return 1
        end
        local weight = messages.weight(messages.size(record))
        if kind == EXPIRES then
            local lane = lanes.find(record.lane)
            messages.end_for_good(lane, record)
            messages.expire(lane, record)
            lanes.place(lane)
        elseif kind == RETENTION_ENDS then
            messages.forget_dead(record)
        end
        return weight
    end

    -- Leases run out in the order of their deadlines. Returns whether there are more.
    local function lease_ends(budget)
        local left, leases_left, had_settled_one = budget, MOST_LEASES, false
        while true do
            local at = tonumber(call('ZRANGE', keys.ends, '-inf', shard.now, 'BYSCORE', 'LIMIT', 0,
                1, 'WITHSCORES')[2])
            if not at or left <= 0 or leases_left <= 0 then
                if had_settled_one then
                    settling.forget_ends_ahead()
                end
                return at ~= nil
            end
            local ended, seen = settling.run_out_at(at, left)
            left, leases_left = left - ended, leases_left - seen
            had_settled_one = had_settled_one or (seen == 1 and ended == 0)
        end
    end

    -- Process events in the order of time. An event may remove later ones. Returns whether there
    -- are more.
    local function events(budget)
        while true do
            local due, mids = call('ZRANGE', keys.due, '-inf', shard.now, 'BYSCORE', 'LIMIT', 0,
                max(min(budget, PAGE), 1)), {}
            if not due[1] or budget <= 0 then
                return due[1] ~= nil
            end
            for n, event in ipairs(due) do
                mids[n] = unpack_from('>I7', event, 2)
            end
            load_messages(mids)
            for _, event in ipairs(due) do
                if budget > 0 and not writes.is_removed(keys.due, event) then
                    budget = budget - happen(event)
                end
            end
        end
    end

    -- Place the lanes under a changed pattern, in the order of names. Returns how many.
    local function sweep_one(pattern, after, most)
        local prefix = sub(pattern, 1, -2)
        -- `after` is a name under the prefix, or ""
        local start = #after > #prefix and after or prefix
        local names = lanes.names_between(start, prefix .. LAST, most)
        lanes.place_all(lanes.existing(names))
        if #names == most then
            call('HSET', keys.sweeps, pattern, names[#names])
            return #names
        end
        local buckets, covered = lanes.names_between(BUCKET, BUCKET .. LAST, most), {}
        for _, name in ipairs(buckets) do
            if sub(name, 2, 1 + #prefix) == prefix then
                covered[#covered + 1] = name
            end
        end
        lanes.place_all(lanes.existing(covered))
        call('HDEL', keys.sweeps, pattern)
        shard.sweeping = shard.sweeping - 1
        return #names + #covered
    end

    function housekeeping.sweep(budget)
        if shard.sweeping == 0 then
            return
        end
        local stored = call('HGETALL', keys.sweeps)
        for n = 1, #stored, 2 do
            if budget > 0 then
                budget = budget - sweep_one(stored[n], stored[n + 1], budget)
            end
        end
    end

    -- Process what is due, at most so many of each kind. Returns whether something is left.
    function housekeeping.run(budget)
        local more = come_due(budget)
        more = lease_ends(budget) or more
        more = events(budget) or more
        ids.forget_finished(budget)
        merging.forget_edges(budget)
        housekeeping.sweep(budget)
        key_limits.wake(budget)
        gates.wake(budget)
        more = lanes.wake(budget) or more
        lanes.forget_idle(budget)
        return more or shard.sweeping > 0
    end
end)
