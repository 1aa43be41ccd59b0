-- Outcomes (`o:NAME`) and progress (`n:NAME`) of messages: keys with an expiry, which the server
-- deletes on its own. The name (`result_name` in Python) is made of the message's topic and id.
-- Each has a channel of its own, on which changes are notified. `g:ID` is the topic of an outcome
-- whose id was generated: it is found by its id alone.

local results = part(function(results)
    local end_notices = {}
    -- the number of the message that is settled now, if its handler reports its end; and whether
    -- with an outcome
    local handled, has_outcome

    local function reset()
        handled, has_outcome, end_notices = nil, false, {}
    end

    function results.name(topic, id)
        return topic .. '\31' .. id
    end

    function results.notify(name, payload)
        call('PUBLISH', 'laneway:' .. match(PREFIX, '{(.*)/') .. ':of:' .. name, payload or name)
    end

    -- Add a message that reports another one's end; it is put at the end of the call.
    local function add_end_notice(topic, id, outcome, more)
        -- One of the topic's partitions that is on this shard.
        local spread = policies.of(topic).partitions > 1
            and (shard.index - crc32(topic)) % shard.shards
        local headers = { ['laneway-task'] = 'laneway.ended' }
        at_next_begin(reset)
        local body = '{"id":' .. cjson.encode(id) .. ',"outcome":' .. outcome .. ',' .. more .. '}'
        end_notices[#end_notices + 1] = {
            topic = topic, key = false, id = false, headers = headers, sticky = false, mkey = false,
                rank = 0, delay = 0, at = false, ttl = false,
            generated_mid = false, spread = spread, signal = false, own = true,
            content = content_of(topic, false, false, headers, false, false, body), size = #body,
        }
    end

    function results.take_end_notices()
        local taken = end_notices
        end_notices = taken[1] and {} or taken
        return taken
    end

    -- `kind`: o (outcome) or n (progress). `is_generated`: the id was. The followers of a message's
    -- end are the list `f:NAME`.
    function results.write(kind, topic, id, body, milliseconds, is_generated)
        local name = results.name(topic, id)
        call('SET', key(kind .. ':' .. name), body, 'PX', milliseconds)
        results.notify(name)
        if kind == 'o' then
            if is_generated then
                call('SET', key('g:' .. id), topic, 'PX', milliseconds)
            end
            local followers = call('LRANGE', key('f:' .. name), 0, -1)
            if #followers > 0 then
                call('DEL', key('f:' .. name))
                add_end_notice(topic, id, body, '"followers":['
                    .. table.concat(followers, ',') .. ']')
            end
        end
    end

    local MAX_SECONDS, MAX_DIGITS = 3153600000, 19 -- headers.py has the same bounds

    -- For how many milliseconds the end of a message is stored if no handler reports it; nil: it is
    -- not stored.
    function results.milliseconds_of(record)
        local header = record.headers and record.headers['laneway-result-ttl']
        if not header then
            return nil
        end
        local done, comma, otherwise = string.match(header, '^(%d+)(,?)(%d*)$')
        if not done or #done > MAX_DIGITS or #otherwise > MAX_DIGITS or (comma == ''
            and otherwise ~= '') then
            return nil
        end
        return math.max(1, math.min(tonumber(otherwise) or tonumber(done), MAX_SECONDS) * 1000)
    end

    function results.set_handled(mid, with_outcome)
        at_next_begin(reset)
        handled, has_outcome = mid, with_outcome
    end

    -- A message ends in a way that no handler reports: store that, and put an end notice, where its
    -- headers ask for it.
    function results.write_end(record, status, reason)
        -- a message that comes back may have expired meanwhile
        local is_reported = handled == record.mid and status == 'dead'
        if is_reported and has_outcome then
            return
        end
        local milliseconds = results.milliseconds_of(record)
        local has_notice = not is_reported and record.headers and record.headers['laneway-flow']
        if not milliseconds and not has_notice then
            return
        end
        local outcome = '{"status":"' .. status .. '"' .. (reason and ',"reason":'
            .. cjson.encode(reason) or '')
            .. ',"topic":' .. cjson.encode(record.topic) .. string.format(',"published_us":%.0f}',
                record.published)
        if has_notice then
            add_end_notice(record.topic, id_of(record), outcome, '"body":' .. body_of(record))
        end
        if milliseconds then
            results.write('o', record.topic, id_of(record), outcome, milliseconds, not record.id)
        end
    end

    -- A dead letter was put back: delete its outcome and progress.
    function results.forget_end(record)
        if results.milliseconds_of(record) then
            local name = results.name(record.topic, id_of(record))
            call('DEL', key('o:' .. name), key('n:' .. name))
            results.notify(name)
        end
    end
end)
