-- The arithmetic of rates, virtual time and shares. The same as engines/shared/fairness.py, number
-- for number, which has examples and names the sources of the algorithms.

local TICKS = 4
local VT_SCALE = 100800
local CHUNK, FEW_LANES = 4, 100
local CARRY_SCALE = 1000000
local MOST_CARRIED = 32 * CARRY_SCALE
local OWED = 3 * CARRY_SCALE / 10 -- a tier with this carry is served soon
local SECOND = 1000000
local MOST_COST = 1000000

local fairness = part(function(fairness)
    local MOST_TAT = 9000000000000000000

    function fairness.interval(rate)
        return max(1, math.ceil(1000000 * TICKS / rate - 1e-9))
    end

    -- `step` is the interval of a rate, `depth` that of a burst: policies and gates have both.

    function fairness.depth(step, burst)
        return floor(burst * step)
    end

    -- The largest cost of a message under a limit without a `max_cost`: what the rate produces in a
    -- minute, or the burst.
    function fairness.largest_cost(rate, burst)
        return rate and min(MOST_COST, max(1, floor(rate * 60 + 1e-9), floor(burst))) or MOST_COST
    end

    function fairness.permits(tat, now, step, depth)
        local room = now * TICKS + depth - max(tat, now * TICKS)
        return room >= step and floor(room / step) or 0
    end

    -- Whether a delivery that uses `cost` permits conforms; of more than the burst, when all of the
    -- burst is available.
    function fairness.admits(tat, now, step, depth, cost)
        return now * TICKS + depth - max(tat, now * TICKS) >= min(cost * step, depth)
    end

    -- How many deliveries of these costs conform to several clocks at once, {tat, step, depth}
    -- each, and which clocks stop the next one; nil: none does.
    function fairness.admitted(clocks, now, costs)
        local tats = {}
        for n, clock in ipairs(clocks) do
            tats[n] = clock[1]
        end
        for place, cost in ipairs(costs) do
            local stopped = nil
            for n, clock in ipairs(clocks) do
                if not fairness.admits(tats[n], now, clock[2], clock[3], cost) then
                    stopped = stopped or {}
                    stopped[n] = true
                end
            end
            if stopped then
                return place - 1, stopped
            end
            for n, clock in ipairs(clocks) do
                tats[n] = fairness.take_permits(tats[n], now, clock[2], cost)
            end
        end
        return #costs, nil
    end

    function fairness.take_permits(tat, now, step, taken)
        return min(max(tat, now * TICKS) + taken * step, MOST_TAT)
    end

    function fairness.return_permits(tat, step, returned, since)
        return max(0, tat - max(0, returned * step - since * TICKS))
    end

    function fairness.next_permit(tat, now, step, depth, cost)
        return max(now, math.ceil((tat + min(cost * step, depth) - depth) / TICKS))
    end

    -- For how long a rate will hold messages back, beyond what is counted.
    -- `owes`: the cost of the last delivery, which may be above the burst; 0: not above 1.
    function fairness.rebase(tat, now, step, depth, owes)
        return min(tat, now * TICKS + max(depth, owes * step))
    end

    function fairness.recovered(tat, now)
        return tat <= now * TICKS
    end

    function fairness.stride(taken, weight)
        return max(1, round(taken * VT_SCALE / weight))
    end

    function fairness.stride_of_work(work, weight)
        return round(work * VT_SCALE / (1000000 * weight))
    end

    function fairness.chunk(room, lane_count, weight)
        if lane_count <= 1 then
            return room
        end
        local most = lane_count <= FEW_LANES and CHUNK / 2 or CHUNK
        return max(1, min(room, floor(most * weight)))
    end

    function fairness.reached(stood, stands, one_chunk)
        return max(stood, stands - one_chunk)
    end

    -- `entries`: {share, kept} each; sets `given`.
    function fairness.split(room, entries)
        local total, left = 0, room
        for _, entry in ipairs(entries) do
            total = total + entry.share
        end
        for _, entry in ipairs(entries) do
            entry.claim = entry.kept + round(room * CARRY_SCALE * entry.share / total)
            entry.given = max(0, floor(entry.claim / CARRY_SCALE))
            left = left - entry.given
        end
        while left ~= 0 do
            local chosen, furthest
            for _, entry in ipairs(entries) do
                local owed = entry.claim - entry.given * CARRY_SCALE
                if left > 0 and (not chosen or owed > furthest) then
                    chosen, furthest = entry, owed
                elseif left < 0 and entry.given > 0 and (not chosen or owed < furthest) then
                    chosen, furthest = entry, owed
                end
            end
            local step = left > 0 and 1 or -1
            chosen.given, left = chosen.given + step, left - step
        end
    end

    -- Divide what tiers that are not working cannot keep among the others, or among those that
    -- took something.
    local function give_back(entries, above, field)
        local weights = 0
        for _, entry in ipairs(entries) do
            weights = weights + (entry[field] and entry.share or 0)
        end
        for _, entry in ipairs(entries) do
            if entry[field] then
                entry.kept = entry.kept + round(above * entry.share / weights)
            end
        end
    end

    -- Set `kept`, the carries after deliveries, as `carries` in engines/shared/fairness.py does.
    -- `entries`: {share, carry, taken, working} each; `taken`: how many, or nil.
    function fairness.set_carries(entries)
        local total, everything, above, is_working = 0, 0, 0, false
        for _, entry in ipairs(entries) do
            total, everything = total + entry.share, everything + (entry.taken or 0)
            is_working = is_working or entry.working
        end
        for _, entry in ipairs(entries) do
            entry.kept = entry.carry
            if everything > 0 then
                entry.kept = entry.carry + round(everything * CARRY_SCALE * entry.share / total)
                    - (entry.taken or 0) * CARRY_SCALE
                if not entry.working and entry.kept > CARRY_SCALE then
                    above, entry.kept = above + entry.kept - CARRY_SCALE, CARRY_SCALE
                end
            end
        end
        give_back(entries, above, is_working and 'working' or 'taken')
        for _, entry in ipairs(everything > 0 and entries or {}) do
            entry.kept = max(-MOST_CARRIED, min(MOST_CARRIED, entry.kept))
        end
    end

    -- Positions in `counts`, each spread evenly over the whole: the i-th of n stands at (i + 1/2) /
    -- n.
    function fairness.interleave(counts)
        local places, order = {}, {}
        for position, count in ipairs(counts) do
            for i = 0, count - 1 do
                places[#places + 1] = { (2 * i + 1) / count, position }
            end
        end
        table.sort(places, function(one, other)
            if one[1] ~= other[1] then
                return one[1] < other[1]
            end
            return one[2] < other[2]
        end)
        for n, place in ipairs(places) do
            order[n] = place[2]
        end
        return order
    end

    -- Size classes for the top lists, about 9 % apart; the same as engines/classes.py.
    function fairness.size_class(number)
        if number < 32 then
            return 0
        end
        local fraction, bits = math.frexp(number)
        return bits * 8 + floor(fraction * 16) - 8
    end
end)
