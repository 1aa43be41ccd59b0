#!lua
--@ shard fairness rules gates crc lanes plain messages ids merging settling wakes housekeeping bells

-- Set the limits of the gate ARGV[3], as "code" or "operator" (ARGV[4]) says: ARGV[5], {rate or false, burst, concurrency or false}.

gates.set(ARGV[3], ARGV[4], values_of(ARGV[5]))
save(true)
return 1
