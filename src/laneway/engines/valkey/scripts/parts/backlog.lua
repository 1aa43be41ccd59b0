-- Backlog limits of topics and of the namespace.

local backlog = part(function(backlog)
    local MOST_RANKS = 403
    local MOST_OF_RANK = 1000 -- messages `at_front` of one rank
    -- messages that one call drops, besides one for each message that it publishes
    local MOST_SPARE_DROPS = 250
    local spare_drops = MOST_SPARE_DROPS

    local function reset()
        spare_drops = MOST_SPARE_DROPS
    end

    local function waiting_of(topic, policy)
        if policy.buckets then
            local own = key('t:' .. topic)
            local count = call('ZCARD', own) - call('ZLEXCOUNT', own, '[l', '(m') -- not leased
            return count, tonumber(call('HGET', keys.folded_bytes, topic) or 0)
        end
        local count, bytes = 0, 0
        for _, lane in ipairs(lanes.of_topic(topic, policy)) do
            count, bytes = count + lanes.waiting(lane), bytes + lane.bytes
        end
        return count, bytes
    end

    local function first_reached(limits)
        for _, limit in ipairs(limits) do
            if limit[2] and limit[1] + limit[3] > limit[2] then
                return limit
            end
        end
    end

    -- The first limit that a message of so many bytes would exceed: {what waits, the limit, what
    -- the message needs, on_full, "topic" or "namespace" and the unit}
    local function limit_of_topic(topic, policy, size)
        local count, bytes = waiting_of(topic, policy)
        return first_reached({
            { count, policy.max_backlog, 1, policy.on_full, 'topic messages' },
            { bytes, policy.max_backlog_bytes, size, policy.on_full, 'topic bytes' },
        })
    end

    function backlog.refuses_in_namespace(size)
        return first_reached({
            { shard.waiting, shard.max_backlog, 1, shard.on_full, 'namespace messages' },
            { shard.bytes, shard.max_backlog_bytes, size, shard.on_full, 'namespace bytes' },
        })
    end

    -- Whether it is dropped before the other: lower priority, older, lower number.
    local function is_worse(one, other)
        local here, there = -math.floor(one.rank / 2), -math.floor(other.rank / 2)
        if here ~= there then
            return here < there
        elseif one.since ~= other.since then
            return one.since < other.since
        end
        return one.seq < other.seq
    end

    -- The message that is dropped first among the members of a sorted set, from the largest rank
    -- on; no end notice, because who waits for that would wait forever. All members of a rank with
    -- `at_front` are read, because they are not in the order of since. `rank_at`: where the rank
    -- begins in a member.
    local function victim_of(name, first, last, rank_at)
        local best, rank = nil, last
        for _ = 1, MOST_RANKS do
            local page = call('ZRANGE', name, rank, first, 'BYLEX', 'REV', 'LIMIT', 0, 1)
            if not page[1] then
                return best
            end
            local rank_here, behind = messages.rank_in(page[1], rank_at)
            local here, priority = string.sub(page[1], 1, behind - 1), -math.floor(rank_here / 2)
            if best and priority ~= -math.floor(best.rank / 2) then
                return best
            end
            for _, member in ipairs(call('ZRANGE', name, '[' .. here, '[' .. here
                .. string.rep('\255', 22), 'BYLEX', 'LIMIT', 0, MOST_OF_RANK)) do
                local record = messages.read(messages.number_in(member))
                if record and not messages.is_end_notice(record)
                    and (record.serial == NO or not messages.holds_key(record))
                    and (not best or is_worse(record, best)) then
                    best = record
                end
                -- by since; the first will do
                if best and rank_here % 2 == 1 then
                    break
                end
            end
            rank = '(' .. here
        end
        return best
    end

    local function worse_of(one, other)
        if not one or not other then
            return one or other
        end
        return is_worse(one, other) and one or other
    end

    local function victim_in(lane)
        local number = text(lane.number)
        local best = victim_of(key('z:' .. number), '-', '+', 1)
        for _, mid in ipairs(plain.peek(lane, 1)) do
            best = worse_of(best, messages.read(mid))
        end
        if lane.delayed > 0 then
            best = worse_of(best, victim_of(key('a:' .. number), '[d', '(e', 2))
        end
        if lane.parked > 0 then
            best = worse_of(best, victim_of(key('a:' .. number), '[p', '(q', 2))
        end
        return best
    end

    local function victim(topic, policy)
        local best
        if policy.buckets then
            for _, state in ipairs({ 'd', 'p', 'r' }) do
                best = worse_of(best, victim_of(key('t:' .. topic), '[' .. state, '('
                    .. string.char(string.byte(state) + 1), 2))
            end
            return best
        end
        for _, lane in ipairs(lanes.of_topic(topic, policy)) do
            best = worse_of(best, victim_in(lane))
        end
        return best
    end

    local function drop_oldest(topic, policy, arrivals)
        local record = victim(topic, policy)
        if not record then
            return false
        end
        local lane = lanes.find(record.lane)
        messages.end_for_good(lane, record)
        messages.free_key(lane, messages.line(record), record.mid)
        lane.removed, shard.removed = lane.removed + 1, shard.removed + 1
        messages.bury(lane, record, REASONS.full)
        arrivals[#arrivals + 1] = lane
        return true
    end

    -- The limit of its topic for which a copy refuses its message; nil: there is none, or the
    -- oldest messages can be dropped.
    function backlog.refuses_copy(topic, policy, size)
        local limit = limit_of_topic(topic, policy, size)
        if limit and not (limit[4] == 'drop_oldest' and limit[3] <= limit[2]) then
            return limit
        end
    end

    -- Nil if there is room, perhaps after the oldest were dropped, or if the call drops no more;
    -- else the limit. Copies are accepted with their message, whose call has checked the
    -- namespace's limits.
    function backlog.make_room(topic, policy, size, is_copy, arrivals)
        local spare = spare_drops + 1
        while true do
            local limit = limit_of_topic(topic, policy, size)
                or not is_copy and backlog.refuses_in_namespace(size) or nil
            -- A message that is larger than the limit would drop all others for nothing.
            if not limit or limit[4] ~= 'drop_oldest' or limit[3] > limit[2] then
                return limit
            elseif spare == 0 then
                return nil
            elseif not drop_oldest(topic, policy, arrivals) then
                return limit
            end
            at_next_begin(reset)
            spare = spare - 1
            spare_drops = min(spare_drops, spare)
        end
    end
end)
