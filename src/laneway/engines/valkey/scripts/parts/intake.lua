-- Accepting batches of messages, most of which are plain.
--
-- uses: rules, lanes, lane_heads, plain, backlog, putting

local intake = part(function(intake)
    -- A lane that had ready messages keeps its place: more of them change nothing. (A merge may
    -- have taken its last one.)
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

    local written -- the records of plain messages, which are written together
    local stamp   -- when they were accepted

    local function write()
        call_many('HSET', keys.m, written, 2)
        plain.write()
        lane_heads.write()
        written = {}
    end

    -- The answer if a limit of the namespace refuses the message.
    local function refused(topic, size)
        write() -- making room may drop messages of this call
        local limit = backlog.make_room(topic, rules.of(topic), size)
        return limit and { 'refused', limit[5], text(limit[1]), text(limit[2]) }
    end

    -- `topics`: the topics of plain messages; `order`: for each message the position of its topic,
    -- -1: it is not plain; `stored`: the messages; `drafts`: the decoded ones that are not plain.
    function intake.accept_batch(topics, order, stored, drafts)
        local arrivals, answers = {}, {}
        local at = {} -- the lanes, or their beginnings, by the topic's position
        local is_limited = shard.max_backlog or shard.max_backlog_bytes
        written, stamp = {}, sortable(shard.now)
        lane_heads.load(topics)
        for n = 1, #order do
            local position, message = order[n], stored[n]
            if position < 0 then
                write()
                at = {}
                answers[n] = putting.accept(drafts[n], arrivals)
            else
                local size = #message - 3 - unpack_from('>I2', message, 2)
                local answer = false
                if is_limited then
                    answer, at = refused(topics[position], size), {}
                end
                if not answer then
                    local lane, place = at[position], #written
                    if not lane then
                        lane = lane_heads.use(topics[position])
                        if not lane then
                            lane = lanes.make(topics[position])
                            lanes.touch(lane)
                            arrivals[#arrivals + 1] = lane
                        end
                        at[position] = lane
                    end
                    answer = next_number()
                    written[place + 1], written[place + 2] = answer, message .. stamp
                    plain.append(lane, answer)
                    lane.published, lane.bytes = lane.published + 1, lane.bytes + size
                    shard.published, shard.waiting, shard.bytes = shard.published + 1,
                        shard.waiting + 1, shard.bytes + size
                end
                answers[n] = answer
            end
        end
        write()
        place(arrivals)
        return answers
    end
end)
