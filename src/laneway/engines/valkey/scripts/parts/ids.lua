-- Known ids: the user's own, those that joined another message, those of finished messages. The
-- hash `i:TOPIC` has the message's number, or "f" and the time until which the id is known (0:
-- forever). `ids_until` has the times at which these are forgotten. `aliases` has the topics of
-- generated ids that name another message now, because they joined it or were used again.

ids = part(function(ids)
    local STICKY = 24 * 3600 * SECOND

    local function is_generated(id)
        local size = #shard.nonce
        return sub(id, 1, size) == shard.nonce and byte(id, size + 1) == 45 -- "-"
    end

    local function of(topic)
        return key('i:' .. topic)
    end

    -- Until when the id of a finished message is known; nil: it names a message.
    local function finished_until(stored)
        if type(stored) == 'string' and byte(stored) == 102 then -- "f"
            return tonumber(sub(stored, 2))
        end
    end

    function ids.is_known(topic, id, generated_mid)
        local stored = writes.field(of(topic), id)
        if stored then
            local ends = finished_until(stored)
            if not ends or ends == 0 or ends > shard.now then
                return true
            end
            writes.set_field(of(topic), id, false)
            return false
        end
        local record = generated_mid and messages.read(generated_mid)
        return record and record.topic == topic or false
    end

    -- Add an id to those that `ids.load` is to read.
    function ids.add_wanted(by_topic, topic, id)
        local wanted = by_topic[topic] or {}
        by_topic[topic], wanted[#wanted + 1] = wanted, id
    end

    -- Read several at once: the ids of each topic. A single one is read when it is needed.
    function ids.load(by_topic)
        for topic, wanted in pairs(by_topic) do
            if wanted[2] then
                writes.load_fields(of(topic), wanted)
            end
        end
    end

    -- The number of the message with an id, if it has not ended.
    function ids.number(topic, id, generated_mid)
        local stored = writes.field(of(topic), id)
        if stored then
            return tonumber(stored)
        end
        return generated_mid or nil
    end

    function ids.set(topic, id, mid)
        writes.set_field(of(topic), id, mid)
        if is_generated(id) then
            writes.set_field(keys.aliases, id, topic)
        end
    end

    -- From now on an id names a message that it joined.
    function ids.join(record, id)
        record.joined = record.joined + 1
        call('RPUSH', key('j:' .. text(record.mid)), id)
        ids.set(record.topic, id, record.mid)
    end

    -- `record` takes over the id of `other`, and the ids that joined it.
    function ids.absorb(record, other)
        if other.joined > 0 then
            for _, id in ipairs(call('LRANGE', key('j:' .. text(other.mid)), 0, -1)) do
                ids.join(record, id)
            end
        end
        ids.join(record, id_of(other))
    end

    local function finish_one(topic, id, window)
        if is_generated(id) then
            writes.set_field(keys.aliases, id, false)
        end
        if window == 0 then
            writes.set_field(of(topic), id, false)
        elseif window == FOREVER then
            writes.set_field(of(topic), id, 'f0')
        else
            local ends = shard.now + window
            writes.set_field(of(topic), id, 'f' .. text(ends))
            writes.set_member(keys.ids_until, topic .. '\0' .. id, ends)
        end
    end

    -- The message has ended: forget its ids, or remember them as finished (`keep`: it was acked)
    -- for the window of `dedupe`, or for a day if they are sticky.
    function ids.finish(record, keep)
        local window = 0
        if keep then
            window = policies.of(record.topic).dedupe or 0
            if window ~= FOREVER and record.sticky then
                window = max(window, STICKY)
            end
        end
        if record.id or window ~= 0 then
            finish_one(record.topic, id_of(record), window)
        end
        if record.joined > 0 then
            for _, id in ipairs(call('LRANGE', key('j:' .. text(record.mid)), 0, -1)) do
                finish_one(record.topic, id, window)
            end
        end
    end

    function ids.forget_finished(most)
        local members, by_topic = call('ZRANGE', keys.ids_until, '-inf', shard.now, 'BYSCORE',
            'LIMIT', 0, most), {}
        for n = 1, #members do
            local member = members[n]
            local cut = find_in(member, '\0', 1, true)
            ids.add_wanted(by_topic, sub(member, 1, cut - 1), sub(member, cut + 1))
        end
        for topic, wanted in pairs(by_topic) do
            local name = of(topic)
            for n, stored in ipairs(read_many(name, wanted)) do
                local ends = finished_until(stored)
                -- else the id was published again meanwhile
                if ends and ends ~= 0 and ends <= shard.now then
                    writes.set_field(name, wanted[n], false)
                end
            end
        end
        call_many('ZREM', keys.ids_until, members, 1)
    end
end)
