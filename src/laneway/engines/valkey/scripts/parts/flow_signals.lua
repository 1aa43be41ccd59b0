-- Messages that wait for signals: delayed until the year 2200, or until they have received the
-- number of signals in their header. `w:N` has the numbers of the signals that were received.

local UNTIL_SIGNALLED = 7258118400000000

local flow_signals = part(function(flow_signals)
    -- Receive a signal. A repeated one, or one for a message that does not wait, is a duplicate.
    -- The signal with number 0 ends the waiting.
    function flow_signals.receive(draft, arrivals)
        local mid = ids.number(draft.topic, draft.id, draft.generated_mid)
        local record = mid and messages.read(mid)
        if not record or record.topic ~= draft.topic or record.since ~= UNTIL_SIGNALLED
            or record.state ~= DELAYED then
            return { 'duplicate' }
        end
        local came = key('w:' .. text(mid))
        if call('HSETNX', came, draft.signal, 1) == 0 then
            return { 'duplicate' }
        end
        local lane = lanes.find(record.lane)
        merging.add_part(record, body_of(draft))
        messages.resize(lane, record, draft.size)
        messages.touch(record)
        lanes.touch(lane)
        if draft.signal == 0 or record.parts >= (tonumber(record.headers
            and record.headers['laneway-signals']) or 1) then
            messages.end_waiting(lane, record)
            record.since = merging.explicit_due(draft) or shard.now
            local ttl = policies.of(record.topic).ttl
            record.expires = draft.ttl and record.published + draft.ttl or ttl and shard.now + ttl
            call('DEL', came)
            messages.begin_waiting(lane, record)
            arrivals[#arrivals + 1] = lane
        end
        return { 'accepted' }
    end
end)
