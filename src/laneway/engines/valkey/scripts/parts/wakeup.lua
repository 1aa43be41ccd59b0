-- Waking: a waiting worker has a channel of its own, which is in `waiters:POOL` until the worker is
-- notified or its time is over (in `choosy:POOL`, if it serves only named topics). One worker is
-- notified at a time: it leases, and its lease notifies the next one if there is more. If no worker
-- waits, one of `arrivals:POOL` is notified of an arrival: these are busy, and would see it only at
-- their next lease.
--
-- uses: fairness, writes, gates, lanes, results, messages, intake, wakes

local wakeup = part(function(wakeup)
    local TRIES = 8

    local function real_now()
        local time = run('TIME')
        return time[1] * 1000000 + time[2]
    end

    local function notify_choosy(pool)
        for _, channel in ipairs(call('ZRANGE', key('choosy:' .. pool), 0, 31)) do
            call('PUBLISH', channel, shard.index)
        end
        call('ZREMRANGEBYRANK', key('choosy:' .. pool), 0, 31)
    end

    -- Notify one waiting worker of the pool: the last one, because it most likely still waits.
    -- Returns whether there was one.
    local function notify(waiters)
        for _ = 1, TRIES do
            local last = call('ZPOPMAX', waiters)
            if not last[1] then
                return false
            elseif tonumber(last[2]) < real_now() then
                call('DEL', waiters) -- all others are older
                return false
            end
            -- A cluster does not count the subscribers of other nodes.
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

    -- Called at the end of a call. If an event is due before the waiting workers look again, one of
    -- each pool is notified, so that it learns the time.
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

-- Write all changes: the end of every call that changes something.
local function save(is_timed)
    local end_notices = results.take_end_notices()
    if #end_notices > 0 then
        intake.accept_all(end_notices)
    end
    messages.save()
    gates.save()
    lanes.save()
    writes.save()
    for _, name in ipairs(lanes.take_watched()) do
        results.notify('=' .. name)
    end
    if is_timed or next(pools_to_notify) ~= nil then
        wakeup.notify_all(is_timed)
    end
    tier_queues.save()
    save_shard()
end
