-- Remember what another store has taken of spools' batches.
--
-- ARGV[3]: {spool, batch, time, keys} of each (packed)
--
-- Answers 1.

for _, each in ipairs(values_of(ARGV[3])) do
    forwarding.remember(unpack(each))
end
return 1
