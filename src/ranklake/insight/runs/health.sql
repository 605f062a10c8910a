-- Grain: one row per attempt and rank, worst first. Input: rank_health. Days are weighed by the steps compared.
SELECT attempt, rank, sum(steps_compared) AS steps_compared,
  2 * sum(CASE WHEN is_straggler THEN steps_compared ELSE 0 END) > sum(steps_compared) AS is_straggler,
  sum(excess_ratio * steps_compared) / nullif(sum(steps_compared), 0) AS excess_ratio,
  CAST(sum(sum_excess_ns) AS DOUBLE) / nullif(sum(steps_compared), 0) / 1e9 AS excess_s,
  last_value(cause ORDER BY is_straggler NULLS FIRST, date) AS cause,
  last_value(reason ORDER BY is_straggler NULLS FIRST, date) AS reason
FROM rank_health
WHERE run = $run
GROUP BY attempt, rank
ORDER BY is_straggler DESC NULLS LAST, excess_ratio DESC NULLS LAST, attempt, rank
LIMIT {most}
