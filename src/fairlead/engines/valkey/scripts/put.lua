-- Accept messages. ARGV[3]: the version of the policies that the client knows; ARGV[4]: the lanes of the plain messages' topics; ARGV[5]: for each
-- message the position of its lane, -1 where it is not plain; then the messages. Answers its number for each, or {outcome, more}.

if tonumber(ARGV[3]) ~= shard.version then
    return { 'stale', shard.version }
end
local order, stored, drafts = values_of(ARGV[5]), {}, {}
for n = 1, #order do
    stored[n] = ARGV[5 + n]
    if order[n] < 0 then
        drafts[n] = putting.decode(stored[n])
    end
end
local impossible, by = putting.impossible(drafts)
if impossible then
    return { 'impossible', impossible - 1, by }
end
local answers = intake.accept_batch(values_of(ARGV[4]), order, stored, drafts)
save(next(drafts) ~= nil)
return answers
