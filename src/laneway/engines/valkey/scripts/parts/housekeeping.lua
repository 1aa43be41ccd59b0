-- What the clock causes: due messages, leases that run out, ttl, retention, sweeps of changed
-- patterns, lanes that wake.
--
-- uses: writes, gates, lanes, messages, key_limits, ids, merging, settling

local housekeeping = part(function(housekeeping)
    local LAST = '\244\143\191\191' -- sorts behind every name
    -- How many leases a call looks at whose time is over. Most were settled long ago: they are no
    -- events, but after a burst there are as many of them as it had messages.
    local MOST_LEASES = 1000
    local PAGE = 32 -- events that are read at once

    -- Read at once the messages of events, and their lanes.
    local function load_messages(page)
        local mids, names, lines = {}, {}, {}
        for n, event in ipairs(page) do
            mids[n] = unpack_from('>I7', event, 2)
        end
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

    local function happen(event)
        local mid, kind = unpack_from('>I7', event, 2), sub(event, 1, 1)
        writes.set_member(keys.due, event, false)
        local record = messages.read(mid)
        if not record then -- the store lost it; the doctor reports it
            return
        elseif kind == DUE then
            local lane = lanes.find(record.lane)
            messages.end_delay(lane, record)
            messages.arrive(lane, record)
            lanes.touch(lane)
            if lane.place == IDLE then
                lanes.place(lane)
            end
        elseif kind == EXPIRES then
            local lane = lanes.find(record.lane)
            messages.end_for_good(lane, record)
            messages.expire(lane, record)
            lanes.place(lane)
        elseif kind == RETENTION_ENDS then
            messages.forget_dead(record)
        end
    end

    -- Process events in the order of time. An event may remove later ones, and may cause ones that
    -- are not due before all of its page; ends of leases cause earlier ones, and are processed one
    -- by one. Returns whether there are more.
    local function events(budget)
        local left, leases_left, had_settled_one = budget, MOST_LEASES, false
        while true do
            local due = call('ZRANGE', keys.due, '-inf', shard.now, 'BYSCORE', 'LIMIT', 0,
                max(min(left, PAGE), 1))
            if not due[1] or left <= 0 or leases_left <= 0 then
                if had_settled_one then
                    settling.forget_ends_ahead()
                end
                return due[1] ~= nil
            end
            local page = {}
            for n, event in ipairs(due) do
                if sub(event, 1, 1) == LEASES_END then
                    break
                end
                page[n] = event
            end
            if not page[1] then
                local at = tonumber(call('ZSCORE', keys.due, due[1]))
                local ended, seen = settling.run_out_at(at, left)
                left, leases_left = left - ended, leases_left - seen
                had_settled_one = had_settled_one or (seen == 1 and ended == 0)
            end
            load_messages(page)
            for _, event in ipairs(page) do
                if left > 0 and not writes.is_removed(keys.due, event) then
                    happen(event)
                    left = left - 1
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
        lanes.place_all(names)
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
        lanes.place_all(covered)
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
        local more = events(budget)
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
