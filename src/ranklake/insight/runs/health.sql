-- Grain: one row per attempt and rank, worst first. Input: rank_health. Excess: sums over sums of days.
SELECT attempt, rank, sum(steps_compared) AS steps_compared,
  2 * sum(CASE WHEN is_straggler THEN steps_compared ELSE 0 END) > sum(steps_compared) AS is_straggler,
  CASE WHEN count(sum_peer_ns) = count(sum_excess_ns)
    THEN CAST(sum(sum_excess_ns) AS DOUBLE) / nullif(CAST(sum(sum_peer_ns) AS DOUBLE), 0)
    ELSE sum(excess_ratio * steps_compared) / nullif(sum(steps_compared), 0) END AS excess_ratio,
  CAST(sum(sum_excess_ns) AS DOUBLE) / nullif(sum(steps_compared), 0) / 1e9 AS excess_s,
  last_value(cause ORDER BY is_straggler NULLS FIRST, date) AS cause,
  last_value(reason ORDER BY is_straggler NULLS FIRST, date) AS reason
FROM rank_health
WHERE run = $run
GROUP BY attempt, rank
ORDER BY is_straggler DESC NULLS LAST, excess_ratio DESC NULLS LAST, attempt, rank
LIMIT {most}
