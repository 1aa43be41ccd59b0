--@ allow-oom
-- Set the backlog limits of the namespace, this shard's part of them.
--
-- ARGV[3]: messages; "": no limit
-- ARGV[4]: bytes; "": no limit
-- ARGV[5]: what happens at a limit: the `on_full` of a policy
--
-- Answers 1.

shard.max_backlog, shard.max_backlog_bytes, shard.on_full = tonumber(ARGV[3]) or false,
    tonumber(ARGV[4]) or false, ARGV[5]
save_shard()
return 1
