--@ allow-oom

-- Read the policies that every client knows.
--
-- Answers {version, the namespace's nonce, {field of the hash `policies`, its value, …}}.

return { shard.version, shard.nonce, call('HGETALL', keys.policies) }
