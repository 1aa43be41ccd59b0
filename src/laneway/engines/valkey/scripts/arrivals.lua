--@ allow-oom

-- The caller is told of what arrives in the pool ARGV[3], on the channel ARGV[4], within ARGV[5]
-- seconds, or no longer ("0").

if ARGV[5] == '0' then
    wakeup.leave('arrivals', ARGV[3], ARGV[4])
else
    wakeup.wait('arrivals', ARGV[3], ARGV[4], tonumber(ARGV[5]))
end
return 1
