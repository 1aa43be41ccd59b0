-- Copies that a call leaves to later ones, because a message with many would keep the server for
-- too long. The call that accepts the message puts the first of its copies, and leaves the others
-- in the list `copying`, in chunks, which `finish_copies` puts one by one. Until then every other
-- call is refused (UNFINISHED) and changes nothing, and the time of the shard stands still: so a
-- message and its copies come at once. A client that is refused calls `finish_copies`, so that none
-- waits for a client that has died.
--
-- For example, a message and its 1,000 copies are not plain, so each counts 6, and a call puts at
-- most 400: the message and 65 copies. 935 are left, in 15 chunks. Only copies of a message that is
-- alone in its call are left: else later messages of the call would come before them.

local left_copies = part(function(left_copies)
    -- What a copy takes, about, and the most that a call, or a chunk, has.
    local RICH, PLAIN, MOST = 6, 1, 400
    local LEFT = { 'left' } -- the answer of a copy that `finish_copies` puts

    -- The position from which the copies of a call may be left; nil: all are put. Also whether they
    -- need not be decoded: no limit may refuse one, and none may be for an unused subscription.
    function left_copies.first(drafts, copied)
        local work = 0
        if copied and copied[1] and copied[1][1] == #drafts - 1 and #drafts * RICH > MOST then
            for n = 1, #drafts do
                work = work + (drafts[n].is_plain and PLAIN or RICH)
                if work > MOST then
                    return n, not copied[1][4] and next(copied.expires) == nil
                end
            end
        end
    end

    -- Decode a draft. It gets the id that it is to have, if there is one.
    function left_copies.decode(draft, id)
        putting.decode(draft)
        if id then
            putting.name(draft, id)
        end
        return draft
    end

    -- Leave copies from this position on. Not if the receipt of the message may depend on them:
    -- then they are decoded.
    function left_copies.choose(first, drafts, copied)
        if copied[1][2] or copies.has_accepted(first, drafts, copied) then
            copied.first_left = first
            return
        end
        for n = first, #drafts do
            left_copies.decode(drafts[n], copied.name)
        end
    end

    -- Leave the copies from a position on, and add their answers.
    function left_copies.keep(first, drafts, copied, answers)
        local chunks, stored, expires, work = {}, {}, {}, 0
        for n = first, #drafts do
            local draft, place = drafts[n], #stored + 1
            stored[place], expires[place] = draft.stored, copied.expires[n]
            answers[n] = LEFT
            work = work + (draft.is_plain and PLAIN or RICH)
            if work > MOST - RICH or n == #drafts then
                chunks[#chunks + 1] = packed(stored, copied.name or false, expires)
                stored, expires, work = {}, {}, 0
            end
        end
        call('DEL', keys.copying) -- of a call that failed before its counters were written
        run_many('RPUSH', keys.copying, chunks, 1)
        shard.copying = #chunks
    end

    -- Take the next chunk: drafts, and times in which subscriptions are unused; nil: there is none.
    -- If a call fails, its chunk is lost, rather than each later call of the shard.
    function left_copies.take()
        local chunk, drafts = call('LPOP', keys.copying), {}
        if not chunk then
            shard.copying = 0
            return nil
        end
        shard.copying = shard.copying - 1
        local stored, name, expires = values_of(chunk)
        for n = 1, #stored do
            drafts[n] = left_copies.decode(putting.read(stored[n]), name)
        end
        return drafts, expires
    end
end)
