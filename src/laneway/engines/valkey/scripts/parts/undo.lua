-- Undoing the writes of a call: a function has no transaction to roll back. From `undo.begin` on,
-- each write first saves a command that restores what it changes; `undo.run` runs these commands,
-- the last one first. Changes that are not written yet are forgotten with the call.

local undo = part(function(undo)
    local steps

    local function add_step(...)
        steps[#steps + 1] = { ... }
    end

    local function save_fields(name, arguments, step)
        for n = 1, #arguments, step do
            local before = redis.call('HGET', name, arguments[n])
            add_step(before and 'HSET' or 'HDEL', name, arguments[n], before or nil)
        end
    end

    local function save_scores(name, arguments, first, step)
        for n = first, #arguments, step do
            local before = redis.call('ZSCORE', name, arguments[n])
            if before then
                add_step('ZADD', name, before, arguments[n])
            else
                add_step('ZREM', name, arguments[n])
            end
        end
    end

    local function save_key(name)
        local before = redis.call('DUMP', name)
        if before then
            add_step('RESTORE', name, 0, before, 'REPLACE')
        else
            add_step('DEL', name)
        end
    end

    local SAVERS = {
        HSET = function(name, arguments) save_fields(name, arguments, 2) end,
        HDEL = function(name, arguments) save_fields(name, arguments, 1) end,
        HINCRBY = function(name, arguments) save_fields(name, { arguments[1] }, 1) end,
        ZADD = function(name, arguments) save_scores(name, arguments, 2, 2) end,
        ZREM = function(name, arguments) save_scores(name, arguments, 1, 1) end,
        RPUSH = function(name, arguments)
            for _ = 1, #arguments do
                add_step('RPOP', name)
            end
        end,
        HSETNX = function(name, arguments) save_fields(name, { arguments[1] }, 1) end,
        SET = save_key,
        LREM = save_key,
        DEL = function(name, arguments)
            save_key(name)
            for _, other in ipairs(arguments) do
                save_key(other)
            end
        end,
    }

    function undo.begin()
        steps = {}
        run = function(command, ...)
            local saver = SAVERS[command]
            if saver then
                local name = ...
                saver(name, { select(2, ...) })
            end
            return redis.call(command, ...)
        end
    end

    function undo.run()
        for n = #steps, 1, -1 do
            redis.call(unpack(steps[n]))
        end
    end
end)
