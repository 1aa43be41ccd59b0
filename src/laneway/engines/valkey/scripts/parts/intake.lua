-- Accepting batches of messages; most are plain.
--
-- uses: policies, lanes, plain, ids, backlog, putting, copies, left_copies

local intake = part(function(intake)
    local LEFT = { 'left' } -- the answer of a copy that `finish_copies` puts

    -- A lane that had ready messages keeps its place: more of them change nothing. (A merge may
    -- have taken its last one.)
    local function place(arrivals)
        local placed
        for n = 1, #arrivals do
            local lane = arrivals[n]
            if (lane.place == IDLE or lane.ready == 0) and not (placed and placed[lane]) then
                placed = placed or {}
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

    local function write()
        if written[1] then
            call_many('HSET', keys.m, written, 2)
            plain.write()
            written = {}
        end
    end

    -- Messages of this call may be dropped for later ones. `policy`: of the next message.
    local function may_drop(policy)
        return shard.max_backlog or shard.max_backlog_bytes or policy.max_backlog
            or policy.max_backlog_bytes
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

    -- Accept a plain message. `id`: its id, or false; `is_copy`: see copies.lua; `stamp`: the time
    -- of the call. Returns its number, or {outcome, …}.
    local function accept_plain(topic, message, id, is_copy, stamp, arrivals)
        local size, number = #message - 3 - unpack_from('>I2', message, 2), nil
        if (shard.max_backlog or shard.max_backlog_bytes) and not is_copy then
            if id and ids.is_known(topic, id) then
                return { 'duplicate' }
            end
            write()
            local limit = backlog.make_room(topic, policies.of(topic), size)
            if limit then
                return { 'refused', limit[5], text(limit[1]), text(limit[2]) }
            end
        end
        number = max(shard.seq, least) + 1
        if id and not ids.claim(topic, id, number) then
            return { 'duplicate' }
        end
        local lane, place = lanes.find(topic) or lanes.make(topic), #written
        if not arrivals[lane] then
            arrivals[lane], arrivals[#arrivals + 1] = true, lane
            lanes.touch(lane)
        end
        written[place + 1], written[place + 2] = number, message .. stamp
        plain.append(lane, number)
        lane.published, lane.bytes, shard.seq = lane.published + 1, lane.bytes + size, number
        shard.published, shard.waiting, shard.bytes = shard.published + 1, shard.waiting + 1,
            shard.bytes + size
        return number
    end

    -- `topics`: the topics of plain messages; `order`: for each message the position of its topic,
    -- -1: it is not plain; `stored`: the messages; `drafts`: the decoded ones that are not plain
    -- (without `keeps_order`, those that may be left need not be decoded); `own_ids`: the ids of
    -- plain ones; `keeps_order`: after a refused message, the later ones of its topic are refused;
    -- `copied`: see copies.lua, nil: no message has copies.
    function intake.accept_batch(topics, order, stored, drafts, own_ids, keeps_order, copied)
        local arrivals, answers, stamp = {}, {}, sortable(shard.now)
        local full = {} -- the answers that refused messages, by topic
        local accepted_to = 0 -- the position of the last copy that is accepted without a question
        local first_left = copied and copied.first_left
        local its_drafts, its_topics = drafts, topics -- those that are not left
        written = {}
        if first_left then
            its_drafts, its_topics = left_copies.before(first_left, topics, order, drafts)
        end
        putting.load(its_drafts)
        lanes.load(its_topics)
        load_ids(topics, order, own_ids, first_left)
        if copied then
            copies.begin(copied, #order)
            accepted_to = copies.accepted_to(copied)
        end
        for n = 1, #order do
            local position, group = order[n], copied and copied[n]
            local draft, is_copy, answer = position < 0 and drafts[n], n <= accepted_to, nil
            if first_left and copies.are_left(n, copied) then
                left_copies.keep(n, topics, order, stored, drafts, own_ids, copied)
                for left = n, #order do
                    answers[left] = LEFT
                end
                break
            end
            local topic = draft and draft.topic or topics[position]
            if not is_copy then
                answer = keeps_order and full[topic]
                if copied then
                    answer = copies.answer(n, copied, topic, draft and draft.id or own_ids[n],
                        draft and draft.generated_mid, drafts, answer)
                    is_copy = copies.is_copy(n, copied)
                end
            end
            if not answer and draft then
                if may_drop(draft.policy) then
                    write()
                end
                answer = putting.accept(draft, arrivals, is_copy)
            elseif not answer then
                answer = accept_plain(topic, stored[n], own_ids[n], is_copy, stamp, arrivals)
            end
            if group then
                copies.follow(n, copied, answer)
                accepted_to = copies.accepted_to(copied)
            end
            if keeps_order and type(answer) == 'table' and answer[1] == 'refused' then
                full[topic] = answer
            end
            answers[n] = answer
        end
        write()
        place(arrivals)
        putting.forget()
        return answers
    end
end)
