-- Accepting a batch of messages.

local intake = part(function(intake)
    -- A lane that had ready messages keeps its place: more of them change nothing. (A merge may
    -- have taken its last one.)
    local function place(arrivals)
        for n = 1, #arrivals do
            local lane = arrivals[n]
            if lane.place == IDLE or lane.ready == 0 then
                lanes.place(lane)
                has_arrivals = true
            end
        end
    end

    -- Accept drafts. `keeps_order`: after a refused message, the later ones of its topic are
    -- refused; `copied`: see copies.lua, nil: no message has copies. Returns the number of each, or
    -- {outcome, …}.
    function intake.accept_all(drafts, keeps_order, copied)
        local arrivals, answers = {}, {}
        local full = keeps_order and {} -- the answers that refused messages, by topic
        local first_left = copied and copied.first_left
        putting.load(drafts, first_left and first_left - 1 or #drafts)
        if copied then
            copies.begin(copied, #drafts)
        end
        for n = 1, #drafts do
            local draft, is_copy = drafts[n], false
            if first_left and copies.are_left(n, copied) then
                left_copies.keep(n, drafts, copied, answers)
                break
            end
            local answer = full and full[draft.topic]
            if copied then
                answer, is_copy = copies.answer(n, copied, drafts, answer)
            end
            answer = answer or putting.accept(draft, arrivals, is_copy)
            if copied then
                copies.follow(n, copied, answer)
            end
            if full and type(answer) == 'table' and answer[1] == 'refused' then
                full[draft.topic] = answer
            end
            answers[n] = answer
        end
        plain.write()
        place(arrivals)
        putting.forget()
        return answers
    end
end)
