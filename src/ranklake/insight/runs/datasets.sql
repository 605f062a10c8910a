-- Grain: one row per dataset that a run recorded. Input: datasets.
SELECT DISTINCT name, version, split, role, bytes, samples, tokens, merkle_root_sha256, unavailable
FROM datasets
WHERE run = $run
ORDER BY name, version, split
LIMIT {most}
