-- When the next event is due.

local next_wake = part(function(next_wake)
    -- The earlier of a time and the first one of an index; nil: there is none.
    local function earlier(at, index)
        local first = tonumber(call('ZRANGE', index, 0, 0, 'WITHSCORES')[2])
        return at and first and min(at, first) or at or first
    end

    local INDEXES = { 'due', 'ends', 'timers', 'asleep', 'gate_wakes', 'key_wakes' }

    local function of_events()
        local at
        for n = 1, #INDEXES do
            at = earlier(at, keys[INDEXES[n]])
        end
        return at
    end

    -- The time of the next event, or when a lane is forgotten; nil: none.
    function next_wake.time()
        if shard.sweeping > 0 then
            return shard.now
        end
        local at = earlier(of_events(), keys.idle)
        return at and max(at, shard.now)
    end

    -- Whether an event is due before the waiting worker wakes that promised to look.
    function next_wake.is_sooner()
        local at = of_events()
        return at and (shard.alarm == 0 or at < shard.alarm or shard.alarm <= shard.now)
    end
end)
