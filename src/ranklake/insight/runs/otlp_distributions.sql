-- Grain: one row per histogram of a rank of a run's attempt. Input: distributions.
SELECT CAST(ts AS BIGINT) * 1000 AS at_ns, metric, interval_ns, scale, count, sum, min, max, zero_count, zero_threshold,
  positive_offset, positive_counts, negative_offset, negative_counts
FROM distributions
WHERE run = $run AND attempt = {attempt} AND rank = {rank}
ORDER BY ts, incarnation, segment, slot
LIMIT {most} OFFSET {skipped}
