-- Plain acks: of messages of which nothing but counts has to change, which is most of them, or of
-- which only the serial key has to be freed.
--
-- uses: writes, lanes, messages, key_limits

local acks = part(function(acks)
    -- `triples`: number, fence and cost of each, flat. Returns the positions of acks that need
    -- more, and the lanes of the others that have to be placed: a runnable one stays so.
    function acks.settle(triples)
        local mids, left, gone, ended = {}, {}, {}, {}
        for n = 1, #triples, 3 do
            mids[#mids + 1] = triples[n]
        end
        local found, seen, names, plain_names = read_many(keys.l, mids), {}, {}, {}
        local lines, line_of, slots, slot_of = {}, {}, {}, {}
        local last_seen, slot -- most leases end alike
        for n = 1, #mids do
            if found[n] then
                local fence, name, _, _, charge, _, _, empty, line, is_gone, quick, last =
                    values_of(found[n])
                line = not empty and line
                if (quick or line) and not is_gone and charge == 0 and fence == triples[3 * n - 1]
                    then
                    names[#names + 1], plain_names[n] = name, name
                    if line then
                        lines[#lines + 1], line_of[n] = line, line
                    end
                    if last ~= last_seen then
                        last_seen, slot = last, key_limits.slot_at(last)
                    end
                    if slot then
                        slots[#slots + 1], slot_of[n] = slot, slot
                    end
                end
            end
        end
        lanes.load(names)
        writes.load_fields(keys.keys, lines)
        key_limits.load(slots)
        for n = 1, #mids do
            local is_quick = false
            if plain_names[n] and not seen[mids[n]] then
                local lane = lanes.find(plain_names[n])
                local policy = lane and (lane.policy or lanes.rule(lane))
                if policy and not policy.dedupe and not policy.gate and not policy.shared
                    and (not lane.is_rare or (lane.back_off_step == 0 and not lane.flow))
                    and (lane.tier_queue > 0 or not lanes.gate_of(lane, policy)) then
                    is_quick, seen[mids[n]] = true, true
                    lane.leased, lane.done = lane.leased - 1, lane.done + 1
                    gone[#gone + 1] = mids[n]
                    if line_of[n] then
                        messages.free_key(lane, line_of[n], mids[n])
                    end
                    if slot_of[n] then
                        key_limits.free(lane, slot_of[n])
                    end
                    if lane.place == RUNNABLE then
                        lanes.touch(lane)
                    elseif not ended[lane] then
                        ended[lane] = true
                        ended[#ended + 1] = lane
                    end
                end
            end
            if not is_quick then
                left[#left + 1] = n
            end
        end
        shard.leased, shard.done = shard.leased - #gone, shard.done + #gone
        call_many('HDEL', keys.l, gone, 1)
        call_many('HDEL', keys.m, gone, 1)
        return left, ended
    end
end)
