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
        'spread', 'holds_key', 'bodies',
}
local answers, at, changed = {}, 4, {}

-- The message holds its serial key, unless another message holds it.
local function hold_key(lane, record)
    local line = messages.line(record)
    local head, is_held = messages.holder(line)
    if not is_held then
        local other = head and messages.read(head)
        if other then
            messages.park_ready(lane, other, key('k:' .. line))
        end
        messages.set_holder(line, record.mid, true)
    end
end

local function import_one(message, bodies)
    local policy, mid = policies.of(message.topic), next_number()
    message.content, message.size = content_of(message.topic, message.key, message.id,
        message.headers, message.sticky, message.mkey, bodies[1]), #bodies[1]
    local record = messages.new(mid, message, message.since, message.published, message.expires,
        message.serial)
    record.attempts, record.deliveries, record.suspect = message.attempts, message.deliveries,
        message.suspect
    record.unhandled_from, record.unhandled_times, record.history = message.unhandled_from,
        message.unhandled_times, message.history
    ids.set(message.topic, message.id, mid)
    for _, id in ipairs(message.joined_ids) do
        ids.join(record, id)
    end
    for n = 2, #bodies do
        merging.add_part(record, bodies[n])
    end
    shard.published = shard.published + 1
    if message.death then
        messages.bury({}, record, message.death[3], message.death[4])
        record.death[2], record.death[3] = message.death[1], message.death[2]
        writes.set_member(keys.due, RETENTION_ENDS .. sortable(mid), message.death[2])
        return
    end
    local lane = lanes.make(lanes.name_for(policy, message.topic, message.spread, mid))
    lane.published = lane.published + 1
    if message.holds_key then
        hold_key(lane, record)
    end
    messages.begin_waiting(lane, record, not (record.mkey and merging.waiting_one(record.topic,
        record.mkey)))
    changed[lane] = true
end

for n, values in ipairs(values_of(ARGV[3])) do
    local message, bodies = named(FIELDS, values), {}
    for body = 1, message.bodies do
        bodies[body] = ARGV[at]
        at = at + 1
    end
    if ids.is_known(message.topic, message.id, message.generated_mid) then
        answers[n] = 'duplicate'
    else
        import_one(message, bodies)
        answers[n] = 'accepted'
    end
end
for lane in pairs(changed) do
    lanes.place(lane)
end
save(true)
return answers
