-- Grain: one row per objective and day: the budget that was left at the day's last evaluation, of the worst subject.
-- Input: slo of the last 28 days; an objective is drawn if its budget was touched. The eight that are used up most.
WITH last AS (
  SELECT *, row_number() OVER (PARTITION BY slo, date ORDER BY window_end_ts DESC, budget_used_ratio DESC NULLS LAST) AS place
  FROM slo WHERE date > (SELECT max(date) FROM slo) - INTERVAL '28 days'
), daily AS (
  SELECT slo, date, 1 - budget_used_ratio AS budget_left_ratio FROM last WHERE place = 1
), worst AS (
  SELECT slo FROM daily GROUP BY slo HAVING min(budget_left_ratio) < 1 ORDER BY min(budget_left_ratio), slo LIMIT 8
)
SELECT date, slo, budget_left_ratio FROM daily WHERE slo IN (SELECT slo FROM worst) ORDER BY slo, date
