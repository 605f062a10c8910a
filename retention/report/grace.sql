-- Grain: a retention plan that was applied and can be cancelled, that whose grace ends first first.
SELECT retention_plan, ts AS applied, rows, bytes, files, kept_until, plan
FROM retention_plans
WHERE row_kind = 'application' AND kept_until IS NOT NULL
  AND retention_plan NOT IN (SELECT retention_plan FROM retention_plans WHERE row_kind IN ('cancellation', 'purge'))
ORDER BY kept_until, retention_plan LIMIT {most}
