-- Grain: one row per name and kind of media of a run. Input: media, without bytes.
SELECT name, kind, count(*) AS n, count(DISTINCT step) AS steps, min(step) AS first_step, max(step) AS last_step,
  sum(bytes) AS bytes, max(ts) AS last_ts
FROM media
WHERE run = $run
GROUP BY name, kind
ORDER BY name, kind
LIMIT {most}
