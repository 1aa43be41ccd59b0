-- What is kept under a message's id, in keys of their own that the server forgets by itself: how it ended (`o:ID`), and what was noted of it
-- meanwhile (`n:ID`). Whoever listens for an id has a channel of its own.

local keeping = part(function(keeping)
    local channels

    at_begin(function()
        channels = 'fairlead:' .. string.match(PREFIX, '{(.*)/') .. ':of:'
    end)

    function keeping.tell(id, said)
        call('PUBLISH', channels .. id, said or id)
    end

    -- `kind`: o or n.
    function keeping.write(kind, id, body, milliseconds)
        call('SET', key(kind .. ':' .. id), body, 'PX', milliseconds)
        keeping.tell(id)
    end

    -- For how many milliseconds the end of a message is kept that no handler told; nil: not at all.
    local function span(record)
        local said = record.headers and record.headers['fairlead-keeps']
        local done, otherwise = string.match(said or '', '^(%d+),?(%d*)$')
        local seconds = tonumber(otherwise) or tonumber(done)
        return seconds and math.max(1, seconds * 1000)
    end

    local function id_of(record)
        return record.id or made_id(record.mid)
    end

    -- A message comes to an end that no handler told; where it is wanted, that is kept.
    function keeping.ends(record, status, reason)
        local milliseconds = span(record)
        if milliseconds then
            local told = '{"status":"' .. status .. '"' .. (reason and ',"reason":' .. cjson.encode(reason) or '') .. '}'
            keeping.write('o', id_of(record), told, milliseconds)
        end
    end

    -- A dead letter was put back: it has not ended after all.
    function keeping.begins_again(record)
        if span(record) then
            local id = id_of(record)
            call('DEL', key('o:' .. id), key('n:' .. id))
            keeping.tell(id)
        end
    end
end)
