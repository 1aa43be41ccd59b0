-- Plain messages of a lane, in the order of their arrival: the first in its record (`head`), the others in a list of their numbers.

local plain = part(function(plain)
    local NAMES = 4096
    local names, count, prefix = {}, 0, nil -- of lists, by the lane's number: joining a number to a string is slow
    local appended                          -- numbers that are not in their list yet, by lane

    at_begin(function()
        appended = {}
    end)

    local function list_of(lane)
        if prefix ~= PREFIX or count == NAMES then
            names, count, prefix = {}, 0, PREFIX
        end
        local name = names[lane.number]
        if not name then
            name = key('q:' .. text(lane.number))
            names[lane.number], count = name, count + 1
        end
        return name
    end

    -- At the end of its lane; `plain.write` follows before anybody looks.
    function plain.append(lane, mid)
        if lane.listed == 0 and #lane.head < 7 * INLINE then
            lane.head = lane.head .. sortable(mid)
        else
            local mids = appended[lane]
            if not mids then
                mids = {}
                appended[lane] = mids
            end
            mids[#mids + 1] = mid
            lane.listed = lane.listed + 1
        end
        lane.ready = lane.ready + 1
    end

    function plain.write()
        for lane, mids in pairs(appended) do
            call_many('RPUSH', list_of(lane), mids, 1)
        end
        appended = {}
    end

    -- Take out the first of them, at most so many.
    function plain.take(lane, most)
        local found, head = {}, lane.head
        local inline = math.min(#head, 7 * most)
        for at = 1, inline, 7 do
            found[#found + 1] = unpack_from('>I7', head, at)
        end
        if inline > 0 then
            lane.head = string.sub(head, inline + 1)
        end
        local n = #found
        if n < most and lane.listed > 0 then
            local listed = call('LPOP', list_of(lane), most - n)
            for place = 1, #listed do
                found[n + place] = tonumber(listed[place])
            end
            lane.listed = lane.listed - #listed
        end
        return found
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
