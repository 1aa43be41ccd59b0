-- When the next event is due.
--
-- uses: lanes

local next_wake = part(function(next_wake)
    -- The time of the next event; nil: none. `idle`: when lanes are forgotten, which is not urgent.
    local function times()
        local asleep, idle = lanes.next_wake()
        local event = tonumber(call('ZRANGE', keys.due, 0, 0, 'WITHSCORES')[2])
        local gate = tonumber(call('ZRANGE', keys.gate_wakes, 0, 0, 'WITHSCORES')[2])
        local of_key = tonumber(call('ZRANGE', keys.key_wakes, 0, 0, 'WITHSCORES')[2])
        local at = event or asleep or gate or of_key
        return at and math.min(at, asleep or at, gate or at, of_key or at), idle
    end

    -- The time of the next event or idle lane; nil: none.
    function next_wake.time()
        if shard.sweeping > 0 then
            return shard.now
        end
        local at, idle = times()
        at = at and math.min(at, idle or at) or idle
        return at and math.max(at, shard.now)
    end

    -- Whether an event is due before the waiting worker wakes that promised to look.
    function next_wake.is_sooner()
        local at = times()
        return at and (shard.alarm == 0 or at < shard.alarm or shard.alarm <= shard.now)
    end
end)
