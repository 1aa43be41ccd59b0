-- Plain messages of a lane, in the order of their arrival: the first in its record (`head`), the others in a list of their numbers.

local plain = part(function(plain)
    local function list_of(lane)
        return PREFIX .. 'q:' .. lane.number
    end

    function plain.append(lane, mid)
        if lane.listed == 0 and #lane.head < 7 * INLINE then
            lane.head = lane.head .. sortable(mid)
        else
            call('RPUSH', list_of(lane), mid)
            lane.listed = lane.listed + 1
        end
        lane.ready = lane.ready + 1
    end

    -- The first of them, at most so many; they stay.
    function plain.peek(lane, most)
        local found = {}
        for at = 1, math.min(#lane.head, 7 * most), 7 do
            found[#found + 1] = unpack_from('>I7', lane.head, at)
        end
        if #found < most and lane.listed > 0 then
            for _, mid in ipairs(call('LRANGE', list_of(lane), 0, most - #found - 1)) do
                found[#found + 1] = tonumber(mid)
            end
        end
        return found
    end

    function plain.drop(lane, taken)
        local inline = math.min(taken, #lane.head / 7)
        lane.head = string.sub(lane.head, 7 * inline + 1)
        if taken > inline then
            call('LTRIM', list_of(lane), taken - inline, -1)
            lane.listed = lane.listed - (taken - inline)
        end
    end

    function plain.unlist(lane, mid)
        local wanted = sortable(mid)
        for at = 1, #lane.head, 7 do
            if string.sub(lane.head, at, at + 6) == wanted then
                lane.head = string.sub(lane.head, 1, at - 1) .. string.sub(lane.head, at + 7)
                return
            end
        end
        lane.listed = lane.listed - call('LREM', list_of(lane), 1, mid)
    end
end)
