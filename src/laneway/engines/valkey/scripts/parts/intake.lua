-- Accepting batches of messages, most of which are plain.
--
-- uses: rules, lanes, plain, lane_heads, rich_heads, messages, ids, backlog, putting, copies,
--   left_copies

local intake = part(function(intake)
    local LEFT = { 'left' } -- the answer of a copy that `finish_copies` puts

    -- A lane that had ready messages keeps its place: more of them change nothing. (A merge may
    -- have taken its last one.)
    local function place(arrivals)
        local placed = {}
        for _, lane in ipairs(arrivals) do
            if not placed[lane] and (lane.place == IDLE or lane.ready == 0) then
                placed[lane] = true
                lanes.place(lane)
                has_arrivals = true
            end
        end
    end

    -- `copied`: see copies.lua
    function intake.accept_all(drafts, copied)
        local arrivals, answers = {}, {}
        putting.load(drafts)
        copies.begin()
        for n, draft in ipairs(drafts) do
            answers[n] = copied and copies.answer(n, copied, draft.topic, draft.id,
                draft.generated_mid, drafts)
            if not answers[n] then
                answers[n] = putting.accept(draft, arrivals, copied and copies.is_copy(n, copied))
                if copied then
                    copies.follow(n, copied, answers[n])
                end
            end
        end
        place(arrivals)
        return answers
    end

    local written -- the records of plain messages, which are written together
    local stamp   -- when they were accepted
    local count, bytes -- how many they are, and of how many bytes, as the shard has not counted yet

    local function write()
        shard.published, shard.waiting, shard.bytes = shard.published + count, shard.waiting
            + count, shard.bytes + bytes
        count, bytes = 0, 0
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

    local function load_ids(topics, order, own_ids, first_left)
        local by_topic = {}
        for n = 1, first_left and first_left - 1 or #own_ids do
            if own_ids[n] then
                ids.add_wanted(by_topic, topics[order[n]], own_ids[n])
            end
        end
        ids.load(by_topic)
    end

    -- `topics`: the topics of plain messages; `order`: for each message the position of its topic,
    -- -1: it is not plain; `stored`: the messages; `drafts`: the decoded ones that are not plain
    -- (without `keeps_order`, those that may be left need not be decoded); `own_ids`: the ids of
    -- plain ones; `keeps_order`: after a refused message, the later ones of its topic are refused;
    -- `copied`: see copies.lua, nil: no message has copies.
    function intake.accept_batch(topics, order, stored, drafts, own_ids, keeps_order, copied)
        local arrivals, answers = {}, {}
        local full = {} -- the answers that refused messages, by topic
        local at = {} -- the whole lanes, by the topic's position
        local is_plain = true -- the message before
        local accepted_to = 0 -- the position of the last copy that is accepted without a question
        local is_limited = shard.max_backlog or shard.max_backlog_bytes
        written, stamp, count, bytes = {}, sortable(shard.now), 0, 0
        local first_left = copied and copied.first_left
        local its_drafts, its_topics = drafts, topics -- those that are not left
        if first_left then
            its_drafts, its_topics = left_copies.before(first_left, topics, order, drafts)
        end
        local are_accepted = next(drafts) and (not copied or (next(copied.expires) == nil
            and not copies.have_limits(#order, copied)))
            and putting.load_accepted(its_drafts, its_topics, not copied)
        if not are_accepted then
            -- first, so that a lane is read either whole or only its beginning
            putting.load(its_drafts)
        end
        lane_heads.load(its_topics)
        load_ids(topics, order, own_ids, first_left)
        if copied then
            copies.begin(are_accepted, copied, #order)
            accepted_to = copies.accepted_to(copied)
        end
        for n = 1, #order do
            local position, message = order[n], stored[n]
            local is_copy, group = n <= accepted_to, copied and copied[n]
            if first_left and copies.are_left(n, copied) then
                left_copies.keep(n, topics, order, stored, drafts, own_ids, copied)
                for left = n, #order do
                    answers[left] = LEFT
                end
                break
            end
            local refusal = keeps_order and not is_copy
                and full[position < 0 and drafts[n].topic or topics[position]]
            if copied and not is_copy then
                if is_plain and group and not are_accepted and (is_limited and not group[2]
                    or group[4]) then
                    write() -- limits count the messages of this call
                    at = {}
                end
                local draft = position < 0 and drafts[n]
                refusal = copies.answer(n, copied, draft and draft.topic or topics[position],
                    draft and draft.id or own_ids[n], draft and draft.generated_mid, drafts,
                    refusal)
                is_copy = copies.is_copy(n, copied)
            end
            if refusal then
                answers[n] = refusal
            elseif position < 0 and are_accepted then
                answers[n] = putting.insert(drafts[n], arrivals)
            elseif position < 0 then
                if is_plain then
                    write()
                    at, is_plain = {}, false
                end
                answers[n] = putting.accept(drafts[n], arrivals, is_copy)
            else
                is_plain = true
                local size = #message - 3 - unpack_from('>I2', message, 2)
                local id, answer, number = own_ids[n], false, nil
                local may_be_full = is_limited and not is_copy
                if id and not may_be_full then
                    number = max(shard.seq, least) + 1
                    answer = not ids.claim(topics[position], id, number) and { 'duplicate' }
                elseif id and ids.is_known(topics[position], id) then
                    answer = { 'duplicate' }
                elseif may_be_full then
                    answer, at = refused(topics[position], size), {}
                end
                if not answer then
                    local place = #written
                    answer = number or max(shard.seq, least) + 1
                    shard.seq = answer
                    if id and not number then
                        ids.set(topics[position], id, answer)
                    end
                    written[place + 1], written[place + 2] = answer, message .. stamp
                    if not lane_heads.append(position, answer, size) then
                        local lane = at[position]
                        if not lane then
                            lane = lanes.make(topics[position])
                            lanes.touch(lane)
                            arrivals[#arrivals + 1], at[position] = lane, lane
                        end
                        plain.append(lane, answer)
                        lane.published, lane.bytes = lane.published + 1, lane.bytes + size
                    end
                    count, bytes = count + 1, bytes + size
                end
                answers[n] = answer
            end
            if group then
                copies.follow(n, copied, answers[n])
                accepted_to = copies.accepted_to(copied)
            end
            if keeps_order and type(answers[n]) == 'table' and answers[n][1] == 'refused' then
                full[position < 0 and drafts[n].topic or topics[position]] = answers[n]
            end
        end
        write()
        if are_accepted then
            messages.write_new()
            rich_heads.write()
        end
        place(arrivals)
        putting.forget()
        return answers
    end
end)
