-- Accepting messages that are not plain.
--
-- uses: rules, lanes, messages, ids, merging, signals, backlog

local putting = part(function(putting)
    local SERIAL = { hold = HOLD, yield = YIELD }

    -- Arguments, then the content. -1 stands for none, as the time to live is positive.
    local DRAFT = '>BI2i8i8i8i8i8i8'
    local DRAFT_BYTES = 51
    local TOPIC, KEY, ID, HEADERS, IS_STICKY, MKEY = 1, 2, 3, 4, 5, 6 -- of the content

    local function optional(number)
        return number >= 0 and number
    end

    function putting.decode(stored)
        local own, rank, delay, at, ttl, generated_mid, spread, signal = unpack_from(DRAFT, stored)
        local size = unpack_from('>I2', stored, DRAFT_BYTES + 1)
        local meta = values_of(string.sub(stored, DRAFT_BYTES + 3, DRAFT_BYTES + 2 + size))
        return {
            topic = meta[TOPIC], key = meta[KEY] or false, id = meta[ID] or false, headers =
                meta[HEADERS] or false, sticky = meta[IS_STICKY], mkey = meta[MKEY] or false,
            rank = rank - 512, delay = delay, at = optional(at), ttl = optional(ttl),
                generated_mid = optional(generated_mid), spread = optional(spread), signal =
                optional(signal), own = own == 1,
            content = string.sub(stored, DRAFT_BYTES + 1), size = #stored - DRAFT_BYTES - 2 - size,
        }
    end

    -- Read at once what the drafts need.
    function putting.load(drafts)
        local names, merge_keys, lines, known = {}, {}, {}, {}
        for _, draft in pairs(drafts) do
            names[#names + 1] = draft.topic
        end
        rules.load(names)
        names = {}
        for _, draft in pairs(drafts) do
            local topic, policy = draft.topic, rules.of(draft.topic)
            if policy.partitions == 1 or draft.spread then
                names[#names + 1] = lanes.name_for(policy, topic, draft.spread)
            end
            if draft.mkey then
                merge_keys[#merge_keys + 1] = topic .. '\0' .. draft.mkey
            end
            if draft.key and policy.serial then
                lines[#lines + 1] = topic .. '\0' .. draft.key
            end
            if draft.id then
                local of_topic = known[topic]
                if not of_topic then
                    of_topic = {}
                    known[topic] = of_topic
                end
                of_topic[#of_topic + 1] = draft.id
            end
        end
        lanes.load(names)
        ids.load(known)
        merging.load(merge_keys)
        messages.load_holders(lines)
    end

    local function insert(draft, policy, lane)
        local mid = next_number()
        local waits = signals.waits(draft)
        local due = waits and UNTIL_SIGNALLED or merging.explicit_due(draft)
        if not due and draft.mkey and policy.window then
            due = merging.window_due(draft.topic, draft.mkey, policy)
        end
        local record = messages.new({
            mid = mid, state = READY, rank = draft.rank, seq = mid, since = due or shard.now,
                published = shard.now,
            expires = draft.ttl and not waits and shard.now + draft.ttl, serial = draft.key
                and SERIAL[policy.serial] or NO, topic = draft.topic,
            lane = lane.name, key = draft.key, id = draft.id, mkey = draft.mkey, headers =
                draft.headers, content = draft.content, size = draft.size,
        }, draft.sticky)
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
            local limit = backlog.make_room(draft.topic, policy, draft.size)
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
