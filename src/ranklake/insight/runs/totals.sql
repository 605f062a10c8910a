-- Grain: one row. Input: runs, as summary.sql gives them.
SELECT count(*) AS runs,
  count(*) FILTER (WHERE status IN ('failed', 'abandoned')) AS failed,
  count(*) FILTER (WHERE status = 'running') AS running,
  count(*) FILTER (WHERE status = 'preempted') AS preempted,
  count(*) FILTER (WHERE status = 'finished') AS finished,
  count(*) FILTER (WHERE stragglers > 0) AS with_stragglers,
  count(*) FILTER (WHERE mfu_ratio < 0.3) AS low_mfu,
  coalesce(sum(restarts), 0) AS restarts
FROM ({runs}) AS runs
