-- Grain: one row per row of distributions of a metric of a run, of at most {parts} of its steps: the last step in each
-- part of their range. Input: distributions, all ranks and attempts.
WITH bounds AS (
  SELECT min(step) AS first_step, max(step) AS last_step
  FROM distributions
  WHERE run = $run AND metric = $metric
), chosen AS (
  SELECT max(step) AS step
  FROM (
    SELECT step, {part} AS part
    FROM distributions CROSS JOIN bounds
    WHERE run = $run AND metric = $metric AND step IS NOT NULL
  ) AS parted
  GROUP BY part
)
SELECT rows.step, attempt, scale, sum, min, max, zero_count, positive_offset, positive_counts, negative_offset, negative_counts
FROM distributions AS rows JOIN chosen ON chosen.step = rows.step
WHERE run = $run AND metric = $metric
ORDER BY rows.step, attempt, rank
LIMIT {most}
