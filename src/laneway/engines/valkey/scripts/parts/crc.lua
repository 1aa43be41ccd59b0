-- CRC-32 (ISO 3309) as zlib computes it. It assigns topics to buckets and keys to partitions.

local crc_of_byte = {} -- empty until it is needed

local function crc32(bytes)
    if not crc_of_byte[0] then
        for first = 0, 255 do
            local sum = first
            for _ = 1, 8 do
                sum = bit.band(sum, 1) == 1 and bit.bxor(bit.rshift(sum, 1), 0xEDB88320)
                    or bit.rshift(sum, 1)
            end
            crc_of_byte[first] = sum
        end
    end
    local sum = 0xFFFFFFFF
    for n = 1, #bytes do
        sum = bit.bxor(bit.rshift(sum, 8), crc_of_byte[bit.band(bit.bxor(sum, byte(bytes, n)),
            0xFF)])
    end
    return bit.bnot(sum) % 4294967296
end

-- By topic, as far as they were computed.
local MOST_SPREADS = 4096
local known_spreads, count_of_spreads = {}, 0

local function topic_spread(topic)
    local found = known_spreads[topic]
    if not found then
        if count_of_spreads >= MOST_SPREADS then
            known_spreads, count_of_spreads = {}, 0
        end
        found = crc32(topic)
        known_spreads[topic], count_of_spreads = found, count_of_spreads + 1
    end
    return found
end
