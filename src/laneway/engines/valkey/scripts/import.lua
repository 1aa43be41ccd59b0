-- Take in messages of another store. Each has its bodies behind the rows, one argument for each
-- body.
--
-- ARGV[3]: a row for each message, with the fields `FIELDS` below (packed)
-- ARGV[4…]: the bodies
--
-- Answers "accepted" or "duplicate" for each message.

local FIELDS = {
    'topic', 'id', 'key', 'headers', 'sticky', 'rank', 'published', 'since', 'expires', 'attempts',
        'deliveries', 'suspect', 'serial', 'mkey',
    'generated_mid', 'unhandled_from', 'unhandled_times', 'joined_ids', 'history', 'death',
        'spread', 'bodies',
}
local answers, at, changed = {}, 4, {}

local function receive(parcel, bodies)
    local policy, mid = rules.of(parcel.topic), next_number()
    local record = messages.new({
        mid = mid, seq = mid, topic = parcel.topic, rank = parcel.rank, since = parcel.since,
            published = parcel.published, expires = parcel.expires,
        serial = parcel.serial, key = parcel.key, id = parcel.id, mkey = parcel.mkey, headers =
            parcel.headers, sticky = parcel.sticky,
        body = bodies[1], lane = false,
    })
    record.attempts, record.deliveries, record.suspect = parcel.attempts, parcel.deliveries,
        parcel.suspect
    record.unhandled_from, record.unhandled_times, record.history = parcel.unhandled_from,
        parcel.unhandled_times, parcel.history
    ids.set(parcel.topic, parcel.id, mid)
    for _, id in ipairs(parcel.joined_ids) do
        ids.join(record, id)
    end
    for n = 2, #bodies do
        call('RPUSH', key('b:' .. text(mid)), bodies[n])
        record.parts, record.parts_bytes = record.parts + 1, record.parts_bytes + #bodies[n]
    end
    shard.published = shard.published + 1
    if parcel.death then
        messages.bury({}, record, parcel.death[3], parcel.death[4])
        record.death[2], record.death[3] = parcel.death[1], parcel.death[2]
        call('ZADD', keys.due, parcel.death[2], RETENTION_ENDS .. sortable(mid))
        return
    end
    local lane = lanes.make(lanes.name_for(policy, parcel.topic, parcel.spread, mid))
    lane.published = lane.published + 1
    messages.begin_waiting(lane, record, not (record.mkey and merging.waiting_one(record.topic,
        record.mkey)))
    changed[lane] = true
end

for n, values in ipairs(values_of(ARGV[3])) do
    local parcel, bodies = {}, {}
    for field = 1, #FIELDS do
        parcel[FIELDS[field]] = values[field]
    end
    for body = 1, parcel.bodies do
        bodies[body] = ARGV[at]
        at = at + 1
    end
    if ids.is_known(parcel.topic, parcel.id, parcel.generated_mid) then
        answers[n] = 'duplicate'
    else
        receive(parcel, bodies)
        answers[n] = 'accepted'
    end
end
for lane in pairs(changed) do
    lanes.place(lane)
end
save(true)
return answers
