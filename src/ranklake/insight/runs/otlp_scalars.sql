-- Grain: one row per value of a rank of a run's attempt. Input: scalars.
SELECT CAST(ts AS BIGINT) AS ts_us, incarnation, segment, slot,
  CAST(ts AS BIGINT) * 1000 AS at_ns, metric, kind, value, value_flag
FROM scalars
WHERE run = $run AND attempt = {attempt} AND rank = {rank}
  AND {after}
ORDER BY ts, incarnation, segment, slot
LIMIT {most}
