-- Grain: one row. Input: ingest_plans. Changes with whatever changed rows that were stored before.
SELECT max(plan) AS last_plan
FROM ingest_plans
WHERE kind NOT IN ('ingest', 'compaction')
