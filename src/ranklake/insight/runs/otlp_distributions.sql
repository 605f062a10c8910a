-- Grain: one row per histogram of a rank of a run's attempt. Input: distributions.
SELECT CAST(ts AS BIGINT) AS ts_us, incarnation, segment, slot,
  CAST(ts AS BIGINT) * 1000 AS at_ns, metric, interval_ns, scale, count, sum, min, max, zero_count, zero_threshold,
  positive_offset, positive_counts, negative_offset, negative_counts
FROM distributions
WHERE run = $run AND attempt = {attempt} AND rank = {rank}
  AND {after}
ORDER BY ts, incarnation, segment, slot
LIMIT {most}
