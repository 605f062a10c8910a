-- Grain: one row per step of a rank of a run's attempt. Input: steps. A row is dated to the step's end.
SELECT CAST(ts AS BIGINT) AS ts_us, incarnation, segment, slot,
  CAST(ts AS BIGINT) * 1000 + CAST(CAST(step_time_s AS DOUBLE) * 1e9 AS BIGINT) AS at_ns, {columns}
FROM steps
WHERE run = $run AND attempt = {attempt} AND rank = {rank}
  AND {after}
ORDER BY ts, incarnation, segment, slot
LIMIT {most}
