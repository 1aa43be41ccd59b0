-- What is kept under a message's id, in keys of their own that the server forgets by itself: how it
-- ended (`o:ID`), and what was noted of it meanwhile (`n:ID`). Whoever listens for an id has a
-- channel of its own.

local results = part(function(results)
    local channels, end_notices
    -- the number of the message that is settled now, where its handler tells of its end; whether
    -- with an outcome
    local handled, has_outcome

    at_begin(function()
        handled, has_outcome = nil, false
        end_notices = {}
        channels = 'laneway:' .. string.match(PREFIX, '{(.*)/') .. ':of:'
    end)

    function results.tell(id, said)
        call('PUBLISH', channels .. id, said or id)
    end

    -- A message that tells of another's end; it is put into the store at the end of the call.
    local function tell_of(topic, id, outcome, more)
        -- Of a topic with partitions, one that is here.
        local spread = rules.of(topic).partitions > 1
            and (shard.index - crc32(topic)) % shard.shards
        end_notices[#end_notices + 1] = {
            topic = topic, key = false, id = false, headers = { ['laneway-task'] =
                'laneway.ended' }, sticky = false, rank = 0, delay = 0, at = false,
            ttl = false, mkey = false, generated_mid = false, spread = spread, signal = false, own =
                true,
            body = '{"id":' .. cjson.encode(id) .. ',"outcome":' .. outcome .. ',' .. more .. '}',
        }
    end

    function results.take_end_notices()
        local taken = end_notices
        end_notices = {}
        return taken
    end

    -- Who waits for the end of a message: `f:ID`, the message's topic first.
    function results.follow(id, topic, follower)
        local followers = key('f:' .. id)
        if call('EXISTS', followers) == 0 then
            call('RPUSH', followers, topic)
        end
        call('RPUSH', followers, follower)
    end

    -- `kind`: o or n.
    function results.write(kind, id, body, milliseconds)
        call('SET', key(kind .. ':' .. id), body, 'PX', milliseconds)
        results.tell(id)
        if kind == 'o' then
            local followers = call('LRANGE', key('f:' .. id), 0, -1)
            if #followers > 0 then
                call('DEL', key('f:' .. id))
                tell_of(table.remove(followers, 1), id, body, '"followers":['
                    .. table.concat(followers, ',') .. ']')
            end
        end
    end

    local MAX_SECONDS, MAX_DIGITS = 3153600000, 19 -- headers.py has the same bounds

    -- For how many milliseconds the end of a message is kept that no handler told; nil: not at all.
    local function span(record)
        local said = record.headers and record.headers['laneway-result-ttl']
        local done, comma, otherwise = string.match(said or '', '^(%d+)(,?)(%d*)$')
        if not done or #done > MAX_DIGITS or #otherwise > MAX_DIGITS or (comma == ''
            and otherwise ~= '') then
            return nil
        end
        return math.max(1, math.min(tonumber(otherwise) or tonumber(done), MAX_SECONDS) * 1000)
    end

    local function id_of(record)
        return record.id or generated_id(record.mid)
    end

    function results.set_handled(mid, with_outcome)
        handled, has_outcome = mid, with_outcome
    end

    -- Whether the end of a message is kept.
    function results.is_kept(record)
        return span(record) ~= nil
    end

    -- A message comes to an end that no handler told; where it is wanted, that is kept, and told.
    function results.ends(record, status, reason)
        -- one that comes back may have expired meanwhile
        local is_told = handled == record.mid and status == 'dead'
        if is_told and has_outcome then
            return
        end
        local milliseconds = span(record)
        local told = '{"status":"' .. status .. '"' .. (reason and ',"reason":'
            .. cjson.encode(reason) or '')
            .. ',"topic":' .. cjson.encode(record.topic) .. string.format(',"published_us":%.0f}',
                record.published)
        if not is_told and record.headers and record.headers['laneway-flow'] then
            tell_of(record.topic, id_of(record), told, '"body":' .. record.body)
        end
        if milliseconds then
            results.write('o', id_of(record), told, milliseconds)
        end
    end

    -- A dead letter was put back: it has not ended after all.
    function results.begins_again(record)
        if span(record) then
            local id = id_of(record)
            call('DEL', key('o:' .. id), key('n:' .. id))
            results.tell(id)
        end
    end
end)
