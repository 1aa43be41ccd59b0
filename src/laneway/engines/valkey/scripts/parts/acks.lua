-- Plain acks: of messages of which nothing but counts has to change, which is most of them.
--
-- uses: lanes

local acks = part(function(acks)
    -- `triples`: number, fence and cost of each, flat. Returns the positions of acks that need more
    -- than counts, and the lanes of the others that have to be placed: a runnable one stays so.
    function acks.settle(triples)
        local mids, left, gone, ended = {}, {}, {}, {}
        for n = 1, #triples, 3 do
            mids[#mids + 1] = triples[n]
        end
        local found, seen, names, plain_names = read_many(keys.l, mids), {}, {}, {}
        for n = 1, #mids do
            if found[n] then
                local fence, name, _, _, charge, _, _, _, _, is_gone, quick = values_of(found[n])
                if quick and not is_gone and charge == 0 and fence == triples[3 * n - 1] then
                    names[#names + 1], plain_names[n] = name, name
                end
            end
        end
        lanes.load(names)
        for n = 1, #mids do
            local is_quick = false
            if plain_names[n] and not seen[mids[n]] then
                local lane = lanes.find(plain_names[n])
                if lane and lane.back_off_step == 0 and not lanes.rule(lane).dedupe
                    and not lanes.rule(lane).gate then
                    is_quick, seen[mids[n]] = true, true
                    lane.leased, lane.done = lane.leased - 1, lane.done + 1
                    gone[#gone + 1] = mids[n]
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
