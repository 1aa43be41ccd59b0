-- Tiers change while programs run. These indexes find an own policy that names a tier. The setting
-- "tiers" has layers from here on; a list, as earlier versions wrote it, is the code's layer.

CREATE INDEX own_set_code_tier ON own_set (json_extract(layers, '$.code.tier'))
    WHERE json_extract(layers, '$.code.tier') IS NOT NULL;
CREATE INDEX own_set_operator_tier ON own_set (json_extract(layers, '$.operator.tier'))
 WHERE json_extract(layers, '$.operator.tier') IS NOT NULL;
