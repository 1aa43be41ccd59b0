--@ allow-oom
-- Change the tiers.
--
-- ARGV[3]: the tiers as the client has read them from the settings
-- ARGV[4]: the tiers as the settings store them then; "": this is not the first shard, which has
--   the settings
-- ARGV[5]: their record, see parts/shard.lua
-- ARGV[6]: the version of the policies that the client has
-- ARGV[7]: the version then
--
-- Answers "changed"; "stale" if the shard has other tiers or another version.

if tonumber(ARGV[6]) ~= shard.version or (ARGV[4] ~= '' and call('HGET', keys.settings,
    'tier_layers') ~= ARGV[3]) then
    return 'stale'
end
if ARGV[4] ~= '' then
    call('HSET', keys.settings, 'tier_layers', ARGV[4])
end
shard.version = tonumber(ARGV[7])
adopt_tiers(ARGV[5])
if shard.sweeping > 0 then
    housekeeping.sweep(math.ceil(POLICY_PAGE / shard.shards))
end
save(true)
return 'changed'
