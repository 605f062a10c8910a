-- Grain: one row for one objective. Input: results of the last check of each partition. Good is a partition on which no
-- check of severity critical or error fails and none could not be computed. Window: the dates up to {through}.
-- budget_used_ratio: bad partitions over those that the objective allows; burn_rate: the same of the last 7 days alone.
SELECT * FROM (
{results}, judged AS (
  SELECT "table", partition_date,
    max(CASE WHEN state = 'errored' OR (state = 'failed' AND severity IN ('critical', 'error')) THEN 1 ELSE 0 END) AS bad
  FROM results
  WHERE {tables} AND partition_date > {through} - INTERVAL '{days} days' AND partition_date <= {through}
  GROUP BY "table", partition_date
), counted AS (
  SELECT count(*) AS total_count, count(*) - coalesce(sum(bad), 0) AS good_count,
    sum(CASE WHEN partition_date > {through} - INTERVAL '7 days' THEN 1 ELSE 0 END) AS week_total,
    sum(CASE WHEN partition_date > {through} - INTERVAL '7 days' THEN bad ELSE 0 END) AS week_bad
  FROM judged
), rated AS (
  SELECT *,
    CASE WHEN total_count > 0 THEN CAST(good_count AS DOUBLE) / total_count END AS attained_ratio,
    CASE WHEN total_count > 0 THEN (total_count - good_count) / (total_count * (1 - {objective})) END AS budget_used_ratio,
    CASE WHEN week_total > 0 THEN week_bad / (week_total * (1 - {objective})) END AS burn_rate
  FROM counted
)
SELECT {name} AS slo, {subject} AS subject, {objective} AS objective_ratio, {days} AS window_days,
  {through} AS through, good_count, total_count, attained_ratio, budget_used_ratio, burn_rate,
  CASE
    WHEN total_count = 0 THEN 'no_data'
    WHEN budget_used_ratio > 1 THEN 'missed'
    WHEN budget_used_ratio > 0.75 THEN 'at_risk'
    ELSE 'met'
  END AS status
FROM rated
)
