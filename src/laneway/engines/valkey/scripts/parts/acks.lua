-- Plain acks: of messages of which nothing but counts has to change, which is most of them, or of
-- which only the serial key has to be freed; and others, with ids or gates, of which nothing is
-- unusual. The rest is left to settling.lua.
--
-- uses: rules, writes, gates, lanes, messages, key_limits, ids

local acks = part(function(acks)
    local FENCE_BYTES = 9 -- of a lease, see `settling.with_fence`

    -- The lane of this name, if an ack in it changes only counts, and keys; else false.
    local function changes_counts_only(name)
        local lane = lanes.find(name)
        local policy = lane and (lane.policy or lanes.rule(lane))
        return policy and not policy.dedupe and not policy.gate and not policy.shared
            and (not lane.is_rare or (lane.back_off_step == 0 and not lane.flow))
            and (lane.tier_queue > 0 or not lanes.gate_of(lane, policy)) and lane
    end

    -- Change the lanes in which these acks change nothing but counts, as far as they need not be
    -- decoded. `names`: of each ack the lane's name, or nil; `first`: by number of a message the
    -- position of its first ack; `frees_keys`: some of them have serial keys; `ends_more`: see
    -- `lanes.after_acks`. Returns the names of these lanes, as keys.
    local function settle_brief(mids, names, first, frees_keys, ends_more)
        local counts, order, written, brief, whole = {}, {}, {}, {}, {}
        for n = 1, #mids do
            local name = names[n]
            if name and first[mids[n]] == n then
                local count = counts[name]
                if not count then
                    count = 0
                    if not lanes.is_known(name) and not find_in(name, PARTITION, 1, true) then
                        order[#order + 1] = name
                    end
                end
                counts[name] = count + 1
            end
        end
        rules.load(order)
        for n, stored in ipairs(read_many(keys.lanes, order)) do
            local name = order[n]
            local record = stored and lanes.after_acks(name, stored, counts[name],
                rules.of_lane(name), frees_keys, ends_more)
            if record then
                local at = #written
                written[at + 1], written[at + 2], brief[name] = name, record, true
            else
                lanes.learn(name, stored)
                whole[#whole + 1] = name
            end
        end
        lanes.load_rules(whole)
        call_many('HSET', keys.lanes, written, 2)
        return brief
    end

    -- The lane of this name, if an ack in it changes no more than counts, keys, gates and ids; else
    -- false.
    local function adapts_nothing(name)
        local lane = lanes.find(name)
        local policy = lane and (lane.policy or lanes.rule(lane))
        return policy and not policy.shared and not policy.adapts
            and (not lane.is_rare or (lane.back_off_step == 0 and not lane.flow)) and lane
    end

    -- Of a lease whose ack changes more: {the lane's name, gates, slot or nil, line or false,
    -- whether the ack changes no more than counts, gates and keys, when it was granted, what is
    -- known of the message}. The last is {topic, id, joined ids} as `messages.names` has them; nil:
    -- it need not be known; false: the message has to be decoded.
    local NAME, GATES, SLOT, LINE, IS_QUICK, GRANTED, KNOWN = 1, 2, 3, 4, 5, 6, 7

    -- Whether ids of finished messages may be known in a lane.
    local function remembers(name)
        return find_in(name, PARTITION, 1, true) or rules.of_lane(name).dedupe
    end

    -- Read at once what is to be known of the messages with these leases, by position.
    local function load_messages(mids, held)
        local wanted, lines = {}, {}
        for n, lease in pairs(held) do
            if not lease[IS_QUICK] or remembers(lease[NAME]) then
                wanted[#wanted + 1], lease[KNOWN] = mids[n], false
            end
        end
        messages.load(wanted)
        for n, lease in pairs(held) do
            if lease[KNOWN] == false then
                local topic, line, id, joined = messages.names(mids[n])
                if topic then
                    lease[KNOWN] = { topic = topic, id = id, mid = mids[n], joined = joined }
                    lease[LINE] = line
                end
            end
            lines[#lines + 1] = lease[LINE] or nil
        end
        writes.load_fields(keys.keys, lines)
    end

    -- Change the lanes of these leases, as far as they need not be decoded; as `settle_brief`.
    local function settle_lanes(mids, held, first)
        local names, has_some = {}, false
        for n, lease in pairs(held) do
            if lease[KNOWN] ~= false and not lease[SLOT] then
                names[n], has_some = lease[NAME], true
            end
        end
        return has_some and settle_brief(mids, names, first, true, true) or {}
    end

    -- End the leases at these positions, which are held, as `settling.settle_all` does, as far as
    -- the messages need not be decoded. `brief`: by name, the lanes that were changed already. Adds
    -- the messages to `gone`, and the other lanes to `ended`. Returns the positions that are left.
    local function end_held(mids, left, held, brief, gone, ended)
        local still_left, known_lanes, slots = {}, {}, {}
        for _, lease in pairs(held) do
            slots[#slots + 1] = lease[SLOT] or nil
        end
        key_limits.load(slots)
        for place = 1, #left do
            local n = left[place]
            local mid, lease, lane, is_brief = mids[n], held[n], nil, false
            if lease and lease[KNOWN] ~= false then
                local name = lease[NAME]
                is_brief = brief[name] and not lease[SLOT]
                if not is_brief and known_lanes[name] == nil then
                    known_lanes[name] = adapts_nothing(name)
                end
                lane = known_lanes[name]
            end
            if not (is_brief or lane) then
                still_left[#still_left + 1] = n
            else
                gone[#gone + 1] = mid
                gates.position = n
                gates.free(lease[GATES], lease[GRANTED])
                if lease[KNOWN] then
                    ids.finish(lease[KNOWN], true)
                    messages.forget_joined(lease[KNOWN])
                    messages.forget(mid)
                end
                if is_brief and lease[LINE] then
                    messages.release_key(lease[LINE], mid)
                elseif not is_brief then
                    lane.leased, lane.done, ended[#ended + 1] = lane.leased - 1, lane.done + 1, lane
                    key_limits.free(lane, lease[SLOT])
                    messages.free_key(lane, lease[LINE], mid)
                    lanes.touch(lane)
                end
            end
        end
        return still_left
    end

    -- `triples`: number, fence and cost of each, flat. Returns the positions of acks that need
    -- more, and the lanes of the others that have to be placed: a runnable one stays so.
    -- `is_mixed`: the call has other settlements, too; then leases with gates end in the order of
    -- all.
    function acks.settle(triples, is_mixed)
        local mids, left, gone, ended, first = {}, {}, {}, {}, {}
        for n = 1, #triples, 3 do
            local mid, place = triples[n], #mids + 1
            mids[place], first[mid] = mid, first[mid] or place
        end
        local found, names, plain_names = read_many(keys.l, mids), {}, {}
        local lines, line_of, slots, slot_of = {}, {}, {}, {}
        local rich_names, held = {}, {} -- lanes and leases of acks that change more, see above
        local last_seen, slot -- most leases end alike
        -- the lane's name by what is behind the fence: leases of one delivery have it in common,
        -- unless it names a key
        local by_rest, are_alike = {}, true
        for n = 1, #mids do
            local stored = found[n]
            local rest = stored and are_alike and sub(stored, FENCE_BYTES + 1)
            local alike = rest and by_rest[rest]
            if alike then
                plain_names[n] = unpack_from('>I8', stored, 2) == triples[3 * n - 1] and alike
            elseif stored then
                local fence, name, _, granted, charge, _, gate, empty, line, is_gone, quick, last =
                    values_of(stored)
                local is_held = not (empty or is_gone) and charge == 0
                local is_plain = is_held and (quick or line) and gate == ''
                if is_held and last ~= last_seen then
                    last_seen, slot = last, key_limits.slot_at(last)
                end
                if is_plain then
                    are_alike = not line and not slot
                    if are_alike and rest then
                        by_rest[rest] = name
                    end
                    names[#names + 1] = name
                    if fence == triples[3 * n - 1] then
                        plain_names[n] = name
                        if line then
                            lines[#lines + 1], line_of[n] = line, line
                        end
                        if slot then
                            slots[#slots + 1], slot_of[n] = slot, slot
                        end
                    end
                elseif is_held and fence == triples[3 * n - 1] and first[mids[n]] == n
                    and not (is_mixed and gate ~= '') then
                    held[n] = { name, gate, slot, line, quick or line, granted }
                    rich_names[#rich_names + 1] = name
                end
            end
        end
        local brief = not slots[1] and settle_brief(mids, plain_names, first, lines[1] ~= nil) or {}
        if next(brief) ~= nil then
            local others = {}
            for n = 1, #names do
                others[#others + 1] = not brief[names[n]] and names[n] or nil
            end
            names = others
        end
        local brief_others = {}
        if rich_names[1] then
            rules.load(rich_names)
            load_messages(mids, held)
            brief_others = settle_lanes(mids, held, first)
            for n = 1, #rich_names do
                local name = rich_names[n]
                names[#names + 1] = not brief_others[name] and name or nil
            end
        end
        lanes.load(names)
        writes.load_fields(keys.keys, lines)
        key_limits.load(slots)
        local freed, freed_lines, freed_mids = {}, {}, {}
        local found_late = {} -- as `held`: leases in lanes of which more has to change
        local quick = {} -- by name: the lane, if nothing but counts has to change; else false
        for n = 1, #mids do
            local mid, name = mids[n], plain_names[n]
            local is_brief = name and brief[name] and first[mid] == n
            local lane = name and first[mid] == n and quick[name]
            if name and lane == nil and not is_brief then
                lane = changes_counts_only(name)
                quick[name] = lane
                if lane and lane.place == RUNNABLE then
                    lanes.touch(lane)
                elseif lane then
                    ended[#ended + 1] = lane
                end
            end
            if is_brief then
                gone[#gone + 1] = mid
                if line_of[n] then
                    messages.release_key(line_of[n], mid)
                end
            elseif lane then
                lane.leased, lane.done = lane.leased - 1, lane.done + 1
                gone[#gone + 1] = mid
                if line_of[n] then
                    local at = #freed + 1
                    freed[at], freed_lines[at], freed_mids[at] = lane, line_of[n], mid
                end
                if slot_of[n] then
                    key_limits.free(lane, slot_of[n])
                end
            else
                left[#left + 1] = n
                if name and first[mid] == n and not is_brief then
                    found_late[n] = { name, '', slot_of[n], line_of[n] or false, true, 0 }
                end
            end
        end
        messages.free_keys(freed, freed_lines, freed_mids)
        if next(found_late) ~= nil then
            load_messages(mids, found_late)
            for n, lease in pairs(found_late) do
                held[n] = lease
            end
        end
        if next(held) ~= nil then
            left = end_held(mids, left, held, brief_others, gone, ended)
        end
        shard.leased, shard.done = shard.leased - #gone, shard.done + #gone
        call_many('HDEL', keys.l, gone, 1)
        call_many('HDEL', keys.m, gone, 1)
        return left, ended
    end
end)
