-- Grain: a retention plan that was applied, the latest first, and what became of what it took.
SELECT p.retention_plan, p.ts AS applied, p.rows, p.bytes, p.files, p.plan, a.ts AS approved,
  coalesce(p.single_operator, false) AS single_operator,
  CASE WHEN e.row_kind = 'cancellation' THEN 'came back' WHEN e.row_kind IS NULL AND p.kept_until IS NOT NULL
    THEN 'in grace' ELSE 'deleted' END AS became
FROM retention_plans AS p
LEFT JOIN (SELECT retention_plan, min(ts) AS ts FROM retention_plans WHERE row_kind = 'approval' GROUP BY 1) AS a
  ON a.retention_plan = p.retention_plan
LEFT JOIN (SELECT retention_plan, row_kind FROM retention_plans WHERE row_kind IN ('cancellation', 'purge')) AS e
  ON e.retention_plan = p.retention_plan
WHERE p.row_kind = 'application' ORDER BY p.ts DESC, p.retention_plan LIMIT {most}
