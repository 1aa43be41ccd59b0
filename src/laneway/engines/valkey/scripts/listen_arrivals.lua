--@ allow-oom

-- Register a listener for arrivals in a pool, or remove it. A worker that is busy listens so.
--
-- ARGV[3]: the pool
-- ARGV[4]: the listener's channel
-- ARGV[5]: seconds for which it is registered; "0" removes it
--
-- Answers 1.

if ARGV[5] == '0' then
    wakeup.leave('arrivals', ARGV[3], ARGV[4])
else
    wakeup.wait('arrivals', ARGV[3], ARGV[4], tonumber(ARGV[5]))
end
return 1
