-- Grain: one row per stage of the pipeline. Inputs: ingest_plans, quality_results, lineage, catalog_tables. A stage is
-- behind since the first ingest that stored rows for it after it last wrote, up to the last thing that any stage did: the
-- same tables tell the same, whenever they are asked. It is overdue by {overdue_s} seconds, the catalog by 48 times that.
WITH ingests AS (
  SELECT committed_ts, {read_by_rollups} AS is_for_rollups
  FROM ingest_plans WHERE kind = 'ingest' AND rows_stored > 0
), last AS (
  SELECT 1 AS place, 'ingest' AS stage, max(committed_ts) AS last_ts FROM ingest_plans WHERE kind = 'ingest'
  UNION ALL SELECT 2, 'check', max(ts) FROM quality_results
  UNION ALL SELECT 3, 'rollup', max(ts) FROM lineage
  UNION ALL SELECT 4, 'catalog', max(ts) FROM catalog_tables
  UNION ALL SELECT 5, 'upkeep', max(committed_ts) FROM ingest_plans WHERE kind = 'compaction'
  UNION ALL SELECT 6, 'retention', max(committed_ts) FROM ingest_plans WHERE kind = 'retention'
), until AS (
  SELECT max(last_ts) AS until_ts FROM last
), pairs AS (
  SELECT last.stage, CASE WHEN (last_ts IS NULL OR committed_ts > last_ts) AND (stage <> 'rollup' OR is_for_rollups)
    THEN committed_ts END AS waits_since
  FROM last CROSS JOIN ingests
), waiting AS (
  SELECT stage, count(waits_since) AS waiting_ingests, min(waits_since) AS waiting_since FROM pairs GROUP BY stage
), behind AS (
  SELECT last.place, last.stage, last.last_ts, until.until_ts,
    CASE WHEN last.stage IN ('check', 'rollup', 'catalog') THEN coalesce(waiting.waiting_ingests, 0) END
      AS waiting_ingests,
    CASE WHEN last.stage IN ('check', 'rollup', 'catalog') THEN waiting.waiting_since END AS waiting_since
  FROM last CROSS JOIN until LEFT JOIN waiting ON waiting.stage = last.stage
)
SELECT place, stage, last_ts, until_ts, waiting_ingests, waiting_since,
  date_part('epoch', until_ts) - date_part('epoch', waiting_since) AS behind_s,
  CASE
    WHEN date_part('epoch', until_ts) - date_part('epoch', waiting_since)
      > {overdue_s} * CASE WHEN stage = 'catalog' THEN 48 ELSE 1 END THEN 'overdue'
    WHEN waiting_ingests > 0 THEN 'waiting'
    WHEN last_ts IS NULL THEN 'never ran' ELSE 'up to date' END AS state
FROM behind
ORDER BY place
