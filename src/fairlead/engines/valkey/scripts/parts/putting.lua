-- Accepting messages.

local putting = {}
do
    local MESSAGES = key('m')
    local SERIAL = { hold = HOLD, yield = YIELD }

    -- Backlog limits

    local function waiting_of(topic, policy)
        if policy.buckets then
            local own, count = key('t:' .. topic), 0
            for _, state in ipairs({ 'd', 'p', 'r' }) do
                count = count + call('ZLEXCOUNT', own, '[' .. state, '(' .. string.char(string.byte(state) + 1))
            end
            return count, tonumber(call('HGET', key('folded_bytes'), topic) or 0)
        end
        local count, bytes = 0, 0
        for _, lane in ipairs(lanes.of_topic(topic, policy)) do
            count, bytes = count + lanes.waiting(lane), bytes + lane.bytes
        end
        return count, bytes
    end

    -- The first limit that a message of so many bytes would exceed: {what waits, the limit, the need, on_full, what it is a limit of}
    local function limit_reached(topic, policy, size)
        local count, bytes = waiting_of(topic, policy)
        local limits = {
            { count, policy.max_backlog, 1, policy.on_full, 'topic messages' },
            { bytes, policy.max_backlog_bytes, size, policy.on_full, 'topic bytes' },
            { shard.waiting, shard.max_backlog, 1, shard.on_full, 'namespace messages' },
            { shard.bytes, shard.max_backlog_bytes, size, shard.on_full, 'namespace bytes' },
        }
        for _, limit in ipairs(limits) do
            if limit[2] and limit[1] + limit[3] > limit[2] then
                return limit
            end
        end
    end

    local function may_go(record)
        return record and not (record.serial ~= NO and messages.holds_key(record))
    end

    local function is_worse(one, other) -- dropped before the other: lower priority, older, lower number
        local here, there = -math.floor(one.rank / 2), -math.floor(other.rank / 2)
        if here ~= there then
            return here < there
        elseif one.since ~= other.since then
            return one.since < other.since
        end
        return one.seq < other.seq
    end

    -- The first that may be dropped among members of a sorted set, which are read backwards from the largest rank: of one rank those that
    -- go to the front are not in the order of since. `at`: where the number of the message begins in a member, `rank_at`: its rank.
    local function victim_of(name, first, last, rank_at, at)
        local best, offset = nil, 0
        local rank = last
        repeat
            local page = call('ZRANGE', name, rank, first, 'BYLEX', 'REV', 'LIMIT', 0, 1)
            if not page[1] then
                return best
            end
            local here = string.sub(page[1], 1, rank_at + 1)
            local priority = -math.floor((unpack_from('>I2', page[1], rank_at) - 512) / 2)
            if best and priority ~= -math.floor(best.rank / 2) then
                return best
            end
            for _, member in ipairs(call('ZRANGE', name, '[' .. here, '[' .. here .. string.rep('\255', 22), 'BYLEX', 'LIMIT', 0, POLICY_PAGE)) do
                local record = messages.read(unpack_from('>I7', member, at))
                if may_go(record) and (not best or is_worse(record, best)) then
                    best = record
                end
                if best and unpack_from('>I2', member, rank_at) % 2 == 1 then -- by since; the first will do
                    break
                end
            end
            rank, offset = '(' .. here, offset + 1
        until offset > 402
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
        local best = victim_of(key('z:' .. number), '-', '+', 1, 17)
        for _, mid in ipairs(messages.peek_plain(lane, 1)) do
            best = worse_of(best, messages.read(mid))
        end
        best = worse_of(best, victim_of(key('a:' .. number), '[d', '(e', 2, 18))
        return worse_of(best, victim_of(key('a:' .. number), '[p', '(q', 2, 18))
    end

    local function victim(topic, policy)
        local best
        if policy.buckets then
            for _, state in ipairs({ 'd', 'p', 'r' }) do
                best = worse_of(best, victim_of(key('t:' .. topic), '[' .. state, '(' .. string.char(string.byte(state) + 1), 2, 18))
            end
            return best
        end
        for _, lane in ipairs(lanes.of_topic(topic, policy)) do
            best = worse_of(best, victim_in(lane))
        end
        return best
    end

    local function drop_oldest(topic, policy)
        local record = victim(topic, policy)
        if not record then
            return false
        end
        local lane = lanes.find(record.lane)
        messages.end_waiting(lane, record)
        messages.free_key(lane, messages.line(record), record.mid)
        lane.removed, shard.removed = lane.removed + 1, shard.removed + 1
        messages.bury(lane, record, REASONS.full)
        lanes.place(lane)
        return true
    end

    -- Nil where there is room for it, or was made by dropping the oldest; else the limit.
    local function make_room(topic, policy, size)
        while true do
            local limit = limit_reached(topic, policy, size)
            -- What is larger than the limit by itself would drop all the others for nothing.
            if not limit or limit[4] ~= 'drop_oldest' or limit[3] > limit[2] or not drop_oldest(topic, policy) then
                return limit
            end
        end
    end

    -- One message that is not plain

    local DRAFT = { 'topic', 'key', 'id', 'headers', 'sticky', 'rank', 'delay', 'at', 'ttl', 'mkey', 'made_mid', 'spread' }

    function putting.decode(stored)
        local size = unpack_from('>I2', stored)
        local values, draft = values_of(string.sub(stored, 3, 2 + size)), { body = string.sub(stored, 3 + size) }
        for n = 1, #DRAFT do
            draft[DRAFT[n]] = values[n] or false
        end
        return draft
    end

    local function insert(draft, policy, lane)
        local mid = next_number()
        local due = merging.explicit_due(draft)
        if not due and draft.mkey and policy.window then
            due = merging.window_due(draft.topic, draft.mkey, policy)
        end
        local record = messages.new({
            mid = mid, seq = mid, topic = draft.topic, rank = draft.rank, since = due or shard.now, published = shard.now,
            expires = draft.ttl and shard.now + draft.ttl, serial = draft.key and SERIAL[policy.serial] or NO, key = draft.key, id = draft.id,
            mkey = draft.mkey, headers = draft.headers, sticky = draft.sticky, body = draft.body,
        })
        lane.published, shard.published = lane.published + 1, shard.published + 1
        if draft.id then
            ids.set(draft.topic, draft.id, mid)
        end
        messages.begin_waiting(lane, record)
        return mid
    end

    -- Known, merged, refused or accepted, in this order. Returns its number, or {outcome, more}.
    local function accept(draft, arrivals)
        local policy = rules.of(draft.topic)
        if draft.id and ids.is_known(draft.topic, draft.id, draft.made_mid) then
            return { 'duplicate' }
        end
        local name = lanes.name_for(policy, draft.topic, draft.spread, shard.seq + 1)
        local waiting = draft.mkey and merging.waiting_one(draft.topic, draft.mkey)
        if waiting and lanes.find(waiting.lane) and merging.join(lanes.find(waiting.lane), waiting, draft, policy) then
            arrivals[#arrivals + 1] = lanes.find(waiting.lane)
            return { 'merged', ids.of(waiting) }
        end
        if policy.max_backlog or policy.max_backlog_bytes or shard.max_backlog or shard.max_backlog_bytes then
            local limit = make_room(draft.topic, policy, #draft.body)
            if limit then
                return { 'refused', limit[5], text(limit[1]), text(limit[2]) }
            end
        end
        local lane = lanes.make(name)
        arrivals[#arrivals + 1] = lane
        return insert(draft, policy, lane)
    end

    -- Several

    -- A lane that had ready messages stands where it belongs already: more of them change nothing. (A merge may have taken its last.)
    local function place(arrivals)
        for _, lane in ipairs(arrivals) do
            if lane.place == IDLE or lane.ready == 0 then
                lanes.place(lane)
            end
        end
    end

    function putting.accept_all(drafts)
        local arrivals, answers = {}, {}
        for n, draft in ipairs(drafts) do
            answers[n] = accept(draft, arrivals)
        end
        place(arrivals)
        return answers
    end

    -- The first that would expire before it is due: its position, or nil. Looked at before anything is changed.
    function putting.impossible(drafts)
        for n, draft in pairs(drafts) do
            local due = draft.ttl and merging.explicit_due(draft)
            if due and due >= shard.now + draft.ttl then
                return n, due - shard.now
            end
        end
    end

    local written -- records of plain messages, to be written together

    local function write()
        call_many('HSET', MESSAGES, written, 2)
        written = {}
    end

    local function append(lane, message, size)
        local mid = next_number()
        written[#written + 1] = mid
        written[#written + 1] = string.sub(message, 1, 1) .. sortable(shard.now) .. string.sub(message, 2)
        messages.append(lane, mid)
        lane.published, lane.bytes = lane.published + 1, lane.bytes + size
        shard.published, shard.waiting, shard.bytes = shard.published + 1, shard.waiting + 1, shard.bytes + size
        lanes.touch(lane)
        return mid
    end

    -- A plain one, of the topic of that name.
    local function accept_plain(topic, message, arrivals)
        local size = #message - 3 - unpack_from('>I2', message, 2)
        if shard.max_backlog or shard.max_backlog_bytes then
            write()
            local limit = make_room(topic, rules.of(topic), size)
            if limit then
                return { 'refused', limit[5], text(limit[1]), text(limit[2]) }
            end
        end
        local lane = lanes.make(topic)
        if not arrivals[lane] then
            arrivals[lane] = true
            arrivals[#arrivals + 1] = lane
        end
        return append(lane, message, size)
    end

    -- `topics`: those of plain messages; `order`: for each message the topic's position, -1 where it is not plain; `stored`: the messages, and
    -- `drafts`: what those say that are not plain.
    function putting.accept_batch(topics, order, stored, drafts)
        local arrivals, answers = {}, {}
        written = {}
        lanes.load(topics)
        for n = 1, #order do
            if order[n] < 0 then
                write()
                answers[n] = accept(drafts[n], arrivals)
            else
                answers[n] = accept_plain(topics[order[n]], stored[n], arrivals)
            end
        end
        write()
        place(arrivals)
        return answers
    end
end
