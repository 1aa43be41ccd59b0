-- Tiers change while programs run. Whether a topic's own policy names one is answered by an index
-- over the sets that topics share. The setting "tiers" has layers from here on; a list, as it was
-- before, is read as the code's layer.

CREATE INDEX own_set_code_tier ON own_set (json_extract(layers, '$.code.tier'))
    WHERE json_extract(layers, '$.code.tier') IS NOT NULL;
CREATE INDEX own_set_operator_tier ON own_set (json_extract(layers, '$.operator.tier'))
 WHERE json_extract(layers, '$.operator.tier') IS NOT NULL;
