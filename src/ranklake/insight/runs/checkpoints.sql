-- Grain: one row per checkpoint that stands as it was saved last: neither deleted nor written over since. Newest first.
-- Input: artifacts.
SELECT name, uri, sha256, step, attempt, ts
FROM (
  SELECT name, uri, sha256, step, attempt, ts, action,
    row_number() OVER (PARTITION BY coalesce(uri, name) ORDER BY ts DESC) AS place
  FROM artifacts
  WHERE run = $run AND kind = 'checkpoint' AND action IN ('created', 'deleted')
)
WHERE place = 1 AND action = 'created' AND {before}
ORDER BY ts DESC, step DESC NULLS LAST, name
