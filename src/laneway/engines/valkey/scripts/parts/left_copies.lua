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
--
-- uses: messages, putting, copies

local left_copies = part(function(left_copies)
    -- What a copy takes, about, and the most that a call, or a chunk, has.
    local RICH, PLAIN, MOST = 6, 1, 400

    -- The position from which the copies of a call may be left; nil: all are put.
    function left_copies.first(order, copied)
        local work = 0
        if copied and copied[1] and copied[1][1] == #order - 1 and #order * RICH > MOST then
            for n = 1, #order do
                work = work + (order[n] < 0 and RICH or PLAIN)
                if work > MOST then
                    return n
                end
            end
        end
    end

    -- Whether those that are left need to be decoded: a limit may refuse one, or one may be for an
    -- unused subscription.
    function left_copies.are_checked(copied)
        return copied[1][4] or next(copied.expires) ~= nil
    end

    -- The draft of a copy at a position, with the id that it is to get, if there is one.
    function left_copies.decode(n, stored, own_ids)
        local draft = putting.decode(stored[n])
        if own_ids[n] then
            putting.name(draft, own_ids[n])
            own_ids[n] = false
        end
        return draft
    end

    -- Leave copies from this position on. Not if the receipt of the message may depend on them:
    -- then they are decoded.
    function left_copies.choose(first, copied, topics, order, stored, drafts, own_ids)
        copied.first_left = first
        if copied[1][2] or copies.has_accepted(copied, topics, order, drafts, own_ids) then
            return
        end
        copied.first_left = nil
        for n = first, #order do
            if order[n] < 0 and not drafts[n] then
                drafts[n] = left_copies.decode(n, stored, own_ids)
            end
        end
    end

    -- The drafts and the topics of plain messages before a position.
    function left_copies.before(first, topics, order, drafts)
        local its_drafts, its_topics = {}, {}
        for n = 1, first - 1 do
            its_drafts[n] = drafts[n]
            for place = #its_topics + 1, order[n] do
                its_topics[place] = topics[place]
            end
        end
        return its_drafts, its_topics
    end

    local function new_chunk()
        return { topics = {}, places = {}, order = {}, stored = {}, own_ids = {}, expires = {} }
    end

    -- Leave the copies from a position on, as intake.accept_batch knows them. `stored`: "" of those
    -- that differ from their drafts; `own_ids`: also the ids that drafts are to get.
    function left_copies.keep(first, topics, order, stored, drafts, own_ids, copied)
        local chunk, work, packed_ones = new_chunk(), 0, {}
        local function close()
            packed_ones[#packed_ones + 1] = packed(chunk.topics, chunk.order, chunk.stored,
                chunk.own_ids, chunk.expires)
            chunk, work = new_chunk(), 0
        end
        for n = first, #order do
            local position, place = order[n], #chunk.order + 1
            if position < 0 then
                chunk.order[place] = position
                chunk.stored[place] = stored[n] ~= '' and stored[n] or putting.encode(drafts[n])
            else
                local topic = topics[position]
                if not chunk.places[topic] then
                    chunk.topics[#chunk.topics + 1] = topic
                    chunk.places[topic] = #chunk.topics
                end
                chunk.order[place], chunk.stored[place] = chunk.places[topic], stored[n]
            end
            chunk.own_ids[place] = own_ids[n] or false
            chunk.expires[place] = copied.expires[n]
            work = work + (position < 0 and RICH or PLAIN)
            if work > MOST - RICH then
                close()
            end
        end
        if work > 0 then
            close()
        end
        call('DEL', keys.copying) -- of a call that failed before its counters were written
        run_many('RPUSH', keys.copying, packed_ones, 1)
        shard.copying = #packed_ones
    end

    -- Take the next chunk: what intake.accept_batch takes, and times in which subscriptions are
    -- unused; nil: there is none. If a call fails, its chunk is lost, rather than each later call
    -- of the shard.
    function left_copies.take()
        local stored = call('LPOP', keys.copying)
        if not stored then
            shard.copying = 0
            return nil
        end
        shard.copying = shard.copying - 1
        return values_of(stored)
    end
end)
