-- Accept messages. ARGV[3]: the version of the policies that the client knows; ARGV[4]: the lanes
-- of the plain messages' topics; ARGV[5]: for each message the position of its lane, -1 where it is
-- not plain; ARGV[6]: the ids of topics' own policies that the client knows, by topic; then the
-- messages. Answers its number for each, or {outcome, more}; {"own", …} where the client has to
-- know other policies of topics, see rules.lua.

if tonumber(ARGV[3]) ~= shard.version then
    return { 'stale', shard.version }
end
local order, stored, drafts = values_of(ARGV[5]), {}, {}
for n = 1, #order do
    stored[n] = ARGV[6 + n]
    if order[n] < 0 then
        drafts[n] = putting.decode(stored[n])
    end
end
local plain_topics = values_of(ARGV[4])
local unknown = rules.unknown_to(values_of(ARGV[6]), plain_topics, drafts)
if unknown then
    return { 'own', unpack(unknown) }
end
local impossible, by = putting.impossible(drafts)
if impossible then
    return { 'impossible', impossible - 1, by }
end
local answers = intake.accept_batch(plain_topics, order, stored, drafts)
save(next(drafts) ~= nil)
return answers
