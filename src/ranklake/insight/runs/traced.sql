-- Grain: one row per attempt of a run that recorded spans of steps. Input: spans.
SELECT attempt, min(step) AS first_step, max(step) AS last_step, count(DISTINCT step) AS steps,
  count(*) FILTER (WHERE step = {step}) AS spans,
  max(step) FILTER (WHERE step <= {step}) AS before, min(step) FILTER (WHERE step >= {step}) AS after
FROM spans
WHERE run = $run AND step IS NOT NULL
GROUP BY attempt
ORDER BY attempt
