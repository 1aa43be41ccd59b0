-- Taking back what a call has written: a script has no transaction to roll back. From `undo.begin`
-- on, each write is preceded by a note of what was there; `undo.run` restores it, the last first.

local undo = part(function(undo)
    local notes

    local function note(...)
        notes[#notes + 1] = { ... }
    end

    local function keep_fields(name, arguments, step)
        for n = 1, #arguments, step do
            local before = redis.call('HGET', name, arguments[n])
            if before then
                note('HSET', name, arguments[n], before)
            else
                note('HDEL', name, arguments[n])
            end
        end
    end

    local function keep_scores(name, arguments, first, step)
        for n = first, #arguments, step do
            local before = redis.call('ZSCORE', name, arguments[n])
            if before then
                note('ZADD', name, before, arguments[n])
            else
                note('ZREM', name, arguments[n])
            end
        end
    end

    local function keep_whole(name)
        local before = redis.call('DUMP', name)
        if before then
            note('RESTORE', name, 0, before, 'REPLACE')
        else
            note('DEL', name)
        end
    end

    local KEEPERS = {
        HSET = function(name, arguments) keep_fields(name, arguments, 2) end,
        HDEL = function(name, arguments) keep_fields(name, arguments, 1) end,
        HINCRBY = function(name, arguments) keep_fields(name, { arguments[1] }, 1) end,
        ZADD = function(name, arguments) keep_scores(name, arguments, 2, 2) end,
        ZREM = function(name, arguments) keep_scores(name, arguments, 1, 1) end,
        RPUSH = function(name, arguments)
            for _ = 1, #arguments do
                note('RPOP', name)
            end
        end,
        HSETNX = function(name, arguments) keep_fields(name, { arguments[1] }, 1) end,
        SET = keep_whole,
        LREM = keep_whole,
        DEL = function(name, arguments)
            keep_whole(name)
            for _, other in ipairs(arguments) do
                keep_whole(other)
            end
        end,
    }

    function undo.begin()
        notes = {}
        call = function(command, ...)
            local keeper = KEEPERS[command]
            if keeper then
                local name = ...
                keeper(name, { select(2, ...) })
            end
            return redis.call(command, ...)
        end
    end

    function undo.run()
        for n = #notes, 1, -1 do
            redis.call(unpack(notes[n]))
        end
    end
end)
