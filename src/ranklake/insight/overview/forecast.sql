-- Grain: one row per measure: what the next seven UTC dates bring if they are like the weeks before. Inputs: those of
-- the weeks. The forecast is the mean of the whole weeks of the last {weeks} of which the measure is known, four at
-- least; the oldest is left out, since it may have begun before the record did. The interval is that in which, were weeks
-- independent and normal, four of five next weeks would fall: mean -+ t(0.9, n - 1) * s * sqrt(1 + 1 / n), never below 0.
WITH weeks AS (
  {of_weeks}
), told AS (
  SELECT 1 AS place, 'device time of runs' AS measure, 'h' AS unit, week, device_h AS value, '' AS currency FROM weeks
  UNION ALL SELECT 2, 'GPU time delivered', 'h', week, delivered_h, '' FROM weeks
  UNION ALL SELECT 3, 'wasted by runs', 'h', week, wasted_h, '' FROM weeks
  UNION ALL SELECT 4, 'cost', 'currency', week, cost_total, currency FROM weeks
), known AS (
  SELECT *, max(week) OVER (PARTITION BY measure) AS oldest FROM told WHERE value IS NOT NULL
), used AS (
  SELECT measure, count(*) AS weeks_used, avg(value) AS mean, stddev_samp(value) AS deviation,
    count(DISTINCT currency) AS currencies, min(currency) AS currency
  FROM known WHERE week < oldest GROUP BY measure
), all_measures AS (
  SELECT DISTINCT place, measure, unit FROM told
), judged AS (
  SELECT place, all_measures.measure, CASE WHEN unit = 'currency' THEN coalesce(used.currency, '') ELSE unit END AS unit,
    coalesce(weeks_used, 0) AS weeks_used, mean, deviation,
    CASE WHEN coalesce(weeks_used, 0) < 4 THEN 'four whole weeks are needed'
      WHEN currencies > 1 THEN 'several currencies' ELSE '' END AS reason,
    CASE weeks_used WHEN 4 THEN 1.638 WHEN 5 THEN 1.533 WHEN 6 THEN 1.476 WHEN 7 THEN 1.440 END AS quantile
  FROM all_measures LEFT JOIN used ON used.measure = all_measures.measure
)
SELECT measure, unit, weeks_used,
  CASE WHEN reason = '' THEN mean END AS forecast,
  CASE WHEN reason = '' THEN greatest(mean - quantile * deviation * sqrt(1 + 1.0 / weeks_used), 0) END AS low,
  CASE WHEN reason = '' THEN mean + quantile * deviation * sqrt(1 + 1.0 / weeks_used) END AS high,
  reason
FROM judged
ORDER BY place
