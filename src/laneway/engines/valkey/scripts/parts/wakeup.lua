-- Waking: who waits has a channel of his own, and stands in `waiters:POOL` (or `choosy:POOL`, where
-- he serves named topics only) until he is rung, or his time is over. One is rung at a time: he
-- looks, and rings the next where there is more than he can take. Where nobody waits, one of those
-- in `arrivals:POOL` is told of what has just come: they are busy, and would see it only when they
-- next ask.

local wakeup = part(function(wakeup)
    local TRIES = 8

    local function real_now()
        local time = call('TIME')
        return time[1] * 1000000 + time[2]
    end

    local function notify_choosy(pool)
        for _, channel in ipairs(call('ZRANGE', key('choosy:' .. pool), 0, 31)) do
            call('PUBLISH', channel, shard.index)
        end
        call('ZREMRANGEBYRANK', key('choosy:' .. pool), 0, 31)
    end

    -- Ring one who waits in the pool: the one who came last, for he is likely there still. Returns
    -- whether there was one.
    local function notify(waiters)
        for _ = 1, TRIES do
            local last = call('ZPOPMAX', waiters)
            if not last[1] then
                return false
            elseif tonumber(last[2]) < real_now() then
                call('DEL', waiters) -- all the others have gone longer
                return false
            end
            -- On a cluster nobody knows who listens at another node.
            if call('PUBLISH', last[1], shard.index) > 0 or shard.shards > 1 then
                return true
            end
        end
        return false
    end

    -- `kind`: waiters, choosy or arrivals.
    function wakeup.wait(kind, pool, channel, seconds)
        local waiters = key(kind .. ':' .. pool)
        call('ZADD', waiters, real_now() + seconds * SECOND, channel)
        call('EXPIRE', waiters, math.ceil(seconds) + 60)
    end

    function wakeup.leave(kind, pool, channel)
        call('ZREM', key(kind .. ':' .. pool), channel)
    end

    -- At the end of a call. Somebody has to know what is due sooner than all that the waiters know
    -- of.
    function wakeup.notify_all(is_timed)
        if is_timed and next(pools_to_notify) == nil and wakes.is_sooner() then
            shard.alarm = 0
            for _, tier_queue in ipairs(tier_queues) do
                pools_to_notify[tier_queue.pool] = true
            end
        end
        for pool in pairs(pools_to_notify) do
            if not notify(key('waiters:' .. pool)) and has_arrivals then
                notify(key('arrivals:' .. pool))
            end
            notify_choosy(pool)
        end
    end
end)

-- Write everything back: the end of every call that changes something.
local function save(is_timed)
    local end_notices = results.take_end_notices()
    if #end_notices > 0 then
        intake.accept_all(end_notices)
    end
    messages.save()
    gates.save()
    lanes.save()
    for _, name in ipairs(lanes.take_watched()) do
        results.tell('=' .. name)
    end
    if is_timed or next(pools_to_notify) ~= nil then
        wakeup.notify_all(is_timed)
    end
    tier_queues.save()
    save_shard()
end
