-- Grain: one row per objective and subject whose burn-rate alert fires at the last evaluation. Input: slo.
SELECT slo, subject, alert, objective_ratio, attained_ratio, budget_used_ratio, burn_rate, owner
FROM slo
WHERE alert IS NOT NULL AND window_end_ts = (SELECT max(window_end_ts) FROM slo)
ORDER BY alert, slo, subject
LIMIT {most}
