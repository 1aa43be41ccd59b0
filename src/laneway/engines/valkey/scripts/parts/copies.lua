-- Messages with copies for subscriptions. Example: shared/copies.py. A client puts the copies
-- behind their message. All are accepted, or none: it is known, or one of them has no room.
--
-- `copied`: by the position of such a message: {how many copies follow, whether it is stored, the
-- bytes of its body, whether a copy has a backlog limit or a cost}. One that is not stored is sent
-- without its body. `copied.expires`: by the position of a copy: after how many microseconds its
-- subscription is unused. `copied.first_left`: from which position copies are left, see
-- left_copies.lua; nil: none is. `copied.name`: the id that the left ones get, if a settlement
-- publishes them. `copied.are_left`: the call has nothing but copies that were left.

local copies = part(function(copies)
    local last, verdict -- of the message whose copies follow: the last copy; why none is accepted
    local oldest -- by number of a lane: the since of its oldest ready message
    local MOST_RANKS, MOST_AT_FRONT = 100, 100

    -- `count`: how many messages and copies the call has.
    function copies.begin(copied, count)
        last, verdict, oldest = copied and copied.are_left and count or 0, nil, {}
    end

    -- The *since* of the lane's oldest ready message, as far as they are stored: those of this call
    -- are not old. Of each rank the first message is read; of those at the front, some.
    local function oldest_in(lane)
        local since, mids, from = math.huge, plain.peek(lane, 1), '-'
        if lane.sorted > 0 then
            for _ = 1, MOST_RANKS do
                local found = call('ZRANGE', lanes.key_of('z', lane), from, '+', 'BYLEX', 'LIMIT',
                    0, 1)
                if #found == 0 then
                    break
                end
                local rank = messages.rank_in(found[1], 1)
                local behind = messages.rank_code(rank + 1)
                if rank % 2 == 0 then
                    found = call('ZRANGE', lanes.key_of('z', lane), from, '(' .. behind, 'BYLEX',
                        'LIMIT', 0, MOST_AT_FRONT)
                end
                for _, member in ipairs(found) do
                    mids[#mids + 1] = messages.number_in(member)
                end
                from = '[' .. behind
            end
        end
        for _, mid in ipairs(mids) do
            local record = messages.read(mid)
            since = record and math.min(since, record.since) or since
        end
        return since
    end

    -- Whether the lane's oldest ready message is from before this time. It holds for the call: an
    -- unused subscription gets nothing, and what is ready in a used one gets no older.
    local function is_old(lane, before)
        if lane.ready == 0 then
            return false
        end
        oldest[lane.number] = oldest[lane.number] or oldest_in(lane)
        return oldest[lane.number] <= before
    end

    -- Whether the subscription of the copy at this position has not been used for too long.
    local function is_unused(at, copied, drafts)
        local after = copied.expires[at]
        local policy = after and policies.of(drafts[at].topic)
        if not after or policy.paused then
            return false
        end
        local its_lanes, seen = lanes.of_topic(drafts[at].topic, policy), 0
        for _, lane in ipairs(its_lanes) do
            if lane.leased > 0 or (lane.place == ASLEEP and lane.wake > shard.now) then
                return false
            end
            seen = math.max(seen, lane.seen)
        end
        if shard.now - seen < after then
            return false
        end
        for _, lane in ipairs(its_lanes) do
            if is_old(lane, shard.now - after) then
                return true
            end
        end
        return false
    end

    -- Whether one of the message's copies goes to a subscription that is used.
    local function has_used(n, copied, drafts)
        for at = n + 1, n + copied[n][1] do
            if not is_unused(at, copied, drafts) then
                return true
            end
        end
        return false
    end

    local function is_known(draft)
        return draft.id and ids.is_known(draft.topic, draft.id, draft.generated_mid)
    end

    -- Why a copy refuses its message; nil: it does not.
    local function refusal(draft)
        local policy = policies.of(draft.topic)
        local waiting = draft.mkey and merging.waiting_one(draft.topic, draft.mkey)
        local joins = waiting and lanes.find(waiting.lane)
            and (policy.merge ~= 'all' or waiting.parts + 1 < policy.merge_limit)
        if joins or is_known(draft) then
            return nil
        end
        local limit = backlog.refuses_copy(draft.topic, policy, draft.size)
        return limit and { 'refused', limit[5], text(limit[1]), text(limit[2]), draft.topic }
    end

    -- The refusal of the first copy between two positions that refuses its message; nil: none does.
    local function refusal_of_any(first, last_one, copied, drafts)
        for at = first, last_one do
            local policy = policies.of(drafts[at].topic)
            local refused = (policy.max_backlog or policy.max_backlog_bytes)
                and not is_unused(at, copied, drafts) and refusal(drafts[at])
            if refused then
                return refused
            end
        end
    end

    local function decide(n, copied, drafts)
        local count, is_stored, size, has_limits = unpack(copied[n])
        if is_stored and is_known(drafts[n]) then
            return { 'duplicate' }
        end
        local refused = has_limits and refusal_of_any(n + 1, n + count, copied, drafts)
        if refused then
            return refused
        end
        local limit = not is_stored and has_used(n, copied, drafts)
            and backlog.refuses_in_namespace(size)
        return limit and { 'refused', limit[5], text(limit[1]), text(limit[2]) } or nil
    end

    -- The answer of a message (or copy) that needs not be accepted; nil: it has to be. And whether
    -- it is a copy. `refused`: why it is refused before anything else is decided.
    function copies.answer(n, copied, drafts, refused)
        if n <= last then
            return verdict or (is_unused(n, copied, drafts) and { 'unused' }) or nil, true
        end
        verdict = refused
        if not copied[n] then
            return refused
        end
        last = n + copied[n][1]
        verdict = verdict or decide(n, copied, drafts)
        if verdict or copied[n][2] then
            return verdict
        elseif has_used(n, copied, drafts) then
            return { 'copied' }
        end
        shard.published, shard.removed = shard.published + 1, shard.removed + 1
        local topic = drafts[n].topic
        tallies.count_unrouted(topic, tier_of(policies.of(topic)))
        return { 'unrouted' }
    end

    -- A message was accepted or refused: if it was refused, its copies are too.
    function copies.follow(n, copied, answer)
        if copied[n] and type(answer) == 'table' and answer[1] == 'refused' then
            verdict = answer
        end
    end

    -- Whether the copies that may be left are left: their message was accepted.
    function copies.are_left(n, copied)
        return copied.first_left and n >= copied.first_left and not verdict
    end

    -- Whether one of the copies before those that are left is surely accepted. It has the receipt
    -- of a message that is not stored itself.
    function copies.has_accepted(first_left, drafts, copied)
        for n = 2, first_left - 1 do
            if not (copied.expires[n] or drafts[n].mkey or is_known(drafts[n])) then
                return true
            end
        end
        return false
    end
end)
