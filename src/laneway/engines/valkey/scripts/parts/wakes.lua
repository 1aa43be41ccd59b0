-- When there is something to do again.

local wakes = part(function(wakes)
    -- When something has to be done at the latest; nil: nothing known. `idle`: when lanes are to be
    -- forgotten, which is in no hurry.
    local function times()
        local asleep, idle = lanes.next_wake()
        local event = tonumber(call('ZRANGE', keys.due, 0, 0, 'WITHSCORES')[2])
        local gate = tonumber(call('ZRANGE', keys.gate_wakes, 0, 0, 'WITHSCORES')[2])
        local at = event or asleep or gate
        return at and math.min(at, asleep or at, gate or at), idle
    end

    -- When there is something to do again.
    function wakes.next()
        if shard.sweeping > 0 then
            return shard.now
        end
        local at, idle = times()
        at = at and math.min(at, idle or at) or idle
        return at and math.max(at, shard.now)
    end

    -- Whether something that waiters do not know of is due before the one wakes who promised to
    -- look.
    function wakes.is_sooner()
        local at = times()
        return at and (shard.alarm == 0 or at < shard.alarm or shard.alarm <= shard.now)
    end
end)
