-- Grain: one row per objective and subject of the last evaluation: alerts first, then what is used up most. Input: slo.
SELECT slo, subject, status, alert, objective_ratio, attained_ratio, budget_used_ratio, burn_rate, good_count,
  total_count, window_s / 86400 AS window_days, owner, reason
FROM slo WHERE window_end_ts = (SELECT max(window_end_ts) FROM slo)
ORDER BY CASE alert WHEN 'page' THEN 0 WHEN 'ticket' THEN 1 ELSE 2 END, budget_used_ratio DESC NULLS LAST, slo, subject
LIMIT 200
