-- Accepting messages that are not plain.
--
-- uses: rules, lanes, messages, ids, merging, signals, backlog

local putting = part(function(putting)
    local SERIAL = { hold = HOLD, yield = YIELD }

    local DRAFT = { 'topic', 'key', 'id', 'headers', 'sticky', 'rank', 'delay', 'at', 'ttl', 'mkey',
        'generated_mid', 'spread', 'signal', 'own' }

    function putting.decode(stored)
        local size = unpack_from('>I2', stored)
        local values, draft = values_of(string.sub(stored, 3, 2 + size)), { body =
            string.sub(stored, 3 + size) }
        for n = 1, #DRAFT do
            draft[DRAFT[n]] = values[n] or false
        end
        return draft
    end

    local function insert(draft, policy, lane)
        local mid = next_number()
        local waits = signals.waits(draft)
        local due = waits and UNTIL_SIGNALLED or merging.explicit_due(draft)
        if not due and draft.mkey and policy.window then
            due = merging.window_due(draft.topic, draft.mkey, policy)
        end
        local record = messages.new({
            mid = mid, seq = mid, topic = draft.topic, rank = draft.rank, since = due or shard.now,
                published = shard.now,
            expires = draft.ttl and not waits and shard.now + draft.ttl, serial = draft.key
                and SERIAL[policy.serial] or NO, key = draft.key, id = draft.id,
            mkey = draft.mkey, headers = draft.headers, sticky = draft.sticky, body = draft.body,
        })
        lane.published, shard.published = lane.published + 1, shard.published + 1
        if draft.id then
            ids.set(draft.topic, draft.id, mid)
        end
        messages.begin_waiting(lane, record)
        return mid
    end

    -- Duplicate, merged, refused or accepted, in this order. Returns the number, or {outcome, …}.
    function putting.accept(draft, arrivals)
        if draft.signal then
            return signals.receive(draft, arrivals)
        end
        local policy = rules.of(draft.topic)
        if draft.id and ids.is_known(draft.topic, draft.id, draft.generated_mid) then
            return { 'duplicate' }
        end
        local name = lanes.name_for(policy, draft.topic, draft.spread, shard.seq + 1)
        local waiting = draft.mkey and merging.waiting_one(draft.topic, draft.mkey)
        if waiting and lanes.find(waiting.lane) and merging.join(lanes.find(waiting.lane), waiting,
            draft, policy) then
            arrivals[#arrivals + 1] = lanes.find(waiting.lane)
            return { 'merged', ids.of(waiting) }
        end
        if not draft.own and (policy.max_backlog or policy.max_backlog_bytes or shard.max_backlog
            or shard.max_backlog_bytes) then
            local limit = backlog.make_room(draft.topic, policy, #draft.body)
            if limit then
                return { 'refused', limit[5], text(limit[1]), text(limit[2]) }
            end
        end
        local lane = lanes.make(name)
        arrivals[#arrivals + 1] = lane
        return insert(draft, policy, lane)
    end

    -- The position of the first draft that would expire before it is due, and its delay; nil: none.
    -- Called before anything is changed.
    function putting.impossible(drafts)
        for n, draft in pairs(drafts) do
            local due = draft.ttl and not draft.signal and not signals.waits(draft)
                and merging.explicit_due(draft)
            if due and due >= shard.now + draft.ttl then
                return n, due - shard.now
            end
        end
    end
end)
