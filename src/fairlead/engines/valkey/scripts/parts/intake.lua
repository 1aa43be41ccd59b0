-- Accepting messages: most are plain.

local intake = part(function(intake)
    -- A lane that had ready messages stands where it belongs already: more of them change nothing. (A merge may have taken its last.)
    local function place(arrivals)
        for _, lane in ipairs(arrivals) do
            if lane.place == IDLE or lane.ready == 0 then
                lanes.place(lane)
                has_arrivals = true
            end
        end
    end

    function intake.accept_all(drafts)
        local arrivals, answers = {}, {}
        for n, draft in ipairs(drafts) do
            answers[n] = putting.accept(draft, arrivals)
        end
        place(arrivals)
        return answers
    end

    local written -- records of plain messages, to be written together
    local stamp   -- when they were accepted

    local function write()
        call_many('HSET', keys.m, written, 2)
        plain.write()
        written = {}
    end

    local function append(lane, message, size)
        local mid, n = next_number(), #written
        written[n + 1], written[n + 2] = mid, message .. stamp
        plain.append(lane, mid)
        lane.published, lane.bytes = lane.published + 1, lane.bytes + size
        shard.published, shard.waiting, shard.bytes = shard.published + 1, shard.waiting + 1, shard.bytes + size
        lanes.touch(lane)
        return mid
    end

    -- A plain one, of the topic of that name.
    local function accept_plain(topic, message, arrivals)
        local size = #message - 3 - unpack_from('>I2', message, 2)
        if shard.max_backlog or shard.max_backlog_bytes then
            write()
            local limit = backlog.make_room(topic, rules.of(topic), size)
            if limit then
                return { 'refused', limit[5], text(limit[1]), text(limit[2]) }
            end
        end
        local lane = lanes.make(topic)
        if not arrivals[lane] then
            arrivals[lane] = true
            arrivals[#arrivals + 1] = lane
        end
        return append(lane, message, size)
    end

    -- `topics`: those of plain messages; `order`: for each message the topic's position, -1 where it is not plain; `stored`: the messages, and
    -- `drafts`: what those say that are not plain.
    function intake.accept_batch(topics, order, stored, drafts)
        local arrivals, answers = {}, {}
        written, stamp = {}, sortable(shard.now)
        lanes.load(topics)
        for n = 1, #order do
            if order[n] < 0 then
                write()
                answers[n] = putting.accept(drafts[n], arrivals)
            else
                answers[n] = accept_plain(topics[order[n]], stored[n], arrivals)
            end
        end
        write()
        place(arrivals)
        return answers
    end
end)
