-- Grain: one row per input partition of each output partition, by the newest rows of lineage.
-- Inputs: lineage, quality_results. Both have a digest of the files: a result counts for an input only if it is of the
-- same files that were read. Of several checks of the same files, the last counts.
WITH last_reads AS (
  SELECT output_table, output_partition, input_table, input_partition, input_fingerprint, ts AS computed_at,
    row_number() OVER (
      PARTITION BY output_table, output_partition, input_table, input_partition ORDER BY ts DESC, output_version DESC
    ) AS place
  FROM lineage
), dated AS (
  SELECT "table", concat('date=', CAST(partition_date AS VARCHAR)) AS partition, files_sha256, check_id, severity,
    status, rows_failed, quarantined_rows, on_fail, ts,
    max(ts) OVER (PARTITION BY "table", partition_date, files_sha256) AS last_ts
  FROM quality_results
), unsound AS (
  SELECT *,
    CASE
      WHEN status = 'errored' THEN 'errored'
      WHEN status <> 'failed' OR (rows_failed > 0 AND quarantined_rows >= rows_failed) THEN NULL
      ELSE severity
    END AS problem
  FROM dated
  WHERE ts = last_ts
), verdicts AS (
  SELECT "table", partition, files_sha256, max(ts) AS checked_at,
    sum(CASE WHEN problem = 'critical' THEN 1 ELSE 0 END) AS critical,
    sum(CASE WHEN problem = 'error' THEN 1 ELSE 0 END) AS error,
    sum(CASE WHEN problem = 'errored' THEN 1 ELSE 0 END) AS errored,
    sum(CASE WHEN problem = 'warning' THEN 1 ELSE 0 END) AS warning,
    sum(CASE WHEN problem = 'info' THEN 1 ELSE 0 END) AS info,
    sum(CASE WHEN problem IS NOT NULL AND on_fail = 'hold' THEN 1 ELSE 0 END) AS holding,
    array_agg(check_id ORDER BY check_id) FILTER (WHERE problem IS NOT NULL) AS checks
  FROM unsound
  GROUP BY "table", partition, files_sha256
)
SELECT output_table, output_partition, input_table, input_partition, input_fingerprint, computed_at, checked_at,
  CASE
    WHEN input_partition = '' THEN 'whole'
    WHEN checked_at IS NULL THEN 'unchecked'
    WHEN critical > 0 THEN 'critical'
    WHEN error > 0 THEN 'error'
    WHEN errored > 0 THEN 'errored'
    WHEN warning > 0 THEN 'warning'
    WHEN info > 0 THEN 'info'
    ELSE 'passed'
  END AS state,
  coalesce(holding, 0) > 0 AS is_released,
  checks
FROM last_reads
LEFT JOIN verdicts ON "table" = input_table AND partition = input_partition AND files_sha256 = input_fingerprint
WHERE place = 1 AND input_fingerprint <> ''
ORDER BY output_table, output_partition, input_table, input_partition
