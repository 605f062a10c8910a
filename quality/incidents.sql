-- Grain: one row per incident: open incidents first, then by severity, newest first.
-- Input: rows of quality_results that match {where}. A check fails on a date if its last result there is errored, or
-- failed with failing rows still in the table. An incident is open while its check fails on any date. If the check
-- fails again within a day of the close, the same incident reopens: it flaps.
WITH checked AS (
  SELECT "table", check_id, "column", severity, partition_date, ts, message, status,
    coalesce(rows_failed, 0) AS failed,
    CASE severity WHEN 'critical' THEN 0 WHEN 'error' THEN 1 WHEN 'warning' THEN 2 ELSE 3 END AS severity_rank,
    CASE
      WHEN status = 'errored' THEN 1
      WHEN status = 'failed' AND quarantined_rows < greatest(coalesce(rows_failed, 0), 1) THEN 1
      ELSE 0
    END AS is_failing
  FROM quality_results
  WHERE {where}
), relevant AS (
  SELECT *
  FROM (SELECT *, max(is_failing) OVER (PARTITION BY "table", check_id, "column") AS ever FROM checked)
  WHERE ever = 1 AND (is_failing = 1 OR status <> 'skipped')
), dated AS (
  SELECT *,
    coalesce(lag(is_failing) OVER of_date, 0) AS was_failing,
    coalesce(lag(is_failing * failed) OVER of_date, 0) AS failed_before
  FROM relevant
  WINDOW of_date AS (PARTITION BY "table", check_id, "column", partition_date ORDER BY ts)
), totals AS (
  SELECT *,
    sum(is_failing - was_failing) OVER so_far AS dates_failing,
    sum(is_failing * failed - failed_before) OVER so_far AS rows_failing
  FROM dated
  WINDOW so_far AS (PARTITION BY "table", check_id, "column" ORDER BY ts, partition_date ROWS UNBOUNDED PRECEDING)
), transitions AS (
  SELECT *,
    dates_failing > 0 AND coalesce(lag(dates_failing) OVER of_check, 0) = 0 AS opens,
    dates_failing = 0 AND coalesce(lag(dates_failing) OVER of_check, 0) > 0 AS closes
  FROM totals
  WINDOW of_check AS (PARTITION BY "table", check_id, "column" ORDER BY ts, partition_date)
), marked AS (
  SELECT *,
    CASE
      WHEN NOT opens THEN 0
      WHEN last_close IS NOT NULL AND ts <= last_close + INTERVAL '1 day' THEN 0
      ELSE 1
    END AS is_new
  FROM (
    SELECT *,
      max(CASE WHEN closes THEN ts END) OVER (
        PARTITION BY "table", check_id, "column" ORDER BY ts, partition_date ROWS UNBOUNDED PRECEDING
      ) AS last_close
    FROM transitions
  )
), numbered AS (
  SELECT *,
    sum(is_new) OVER (
      PARTITION BY "table", check_id, "column" ORDER BY ts, partition_date ROWS UNBOUNDED PRECEDING
    ) AS number
  FROM marked
), incidents AS (
  SELECT "table", check_id, "column",
    min(CASE WHEN is_failing = 1 THEN severity_rank END) AS worst,
    last_value(dates_failing ORDER BY ts, partition_date) AS dates_failing,
    min(CASE WHEN is_new = 1 THEN ts END) AS opened,
    max(CASE WHEN closes THEN ts END) AS last_close,
    count(DISTINCT CASE WHEN is_failing = 1 THEN partition_date END) AS partitions,
    array_agg(DISTINCT partition_date ORDER BY partition_date) FILTER (WHERE is_failing = 1) AS dates,
    max(rows_failing) AS rows_failed,
    sum(CASE WHEN opens AND is_new = 0 THEN 1 ELSE 0 END) AS flaps,
    last_value(message ORDER BY ts, partition_date) FILTER (WHERE is_failing = 1) AS message
  FROM numbered
  WHERE number > 0
  GROUP BY "table", check_id, "column", number
)
SELECT "table", check_id, "column",
  CASE worst WHEN 0 THEN 'critical' WHEN 1 THEN 'error' WHEN 2 THEN 'warning' ELSE 'info' END AS severity,
  CASE WHEN dates_failing > 0 THEN 'open' ELSE 'closed' END AS state,
  opened,
  CASE WHEN dates_failing = 0 THEN last_close END AS closed,
  partitions, dates[1] AS first_partition, dates[-1] AS last_partition, dates, rows_failed, flaps, message
FROM incidents
ORDER BY dates_failing > 0 DESC, worst, opened DESC, "table", check_id, "column"
