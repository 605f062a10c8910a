-- Grain: one row per incident: open ones first, the worst first, then the latest.
-- Input: quality_results, of the rows that {where} keeps. A check of a table stands on a date if its last word there is
-- that it fails, with rows still in the table, or could not be computed. An incident is open while it stands on any
-- date; what opens within a day of its close is the same incident, and flaps.
WITH told AS (
  SELECT "table", check_id, "column", severity, partition_date, ts, message, status,
    coalesce(rows_failed, 0) AS failed,
    CASE severity WHEN 'critical' THEN 0 WHEN 'error' THEN 1 WHEN 'warning' THEN 2 ELSE 3 END AS badness,
    CASE
      WHEN status = 'errored' THEN 1
      WHEN status = 'failed' AND quarantined_rows < greatest(coalesce(rows_failed, 0), 1) THEN 1
      ELSE 0
    END AS stands
  FROM quality_results
  WHERE {where}
), concerned AS (
  SELECT *
  FROM (SELECT *, max(stands) OVER (PARTITION BY "table", check_id, "column") AS ever FROM told)
  WHERE ever = 1 AND (stands = 1 OR status <> 'skipped')
), dated AS (
  SELECT *,
    coalesce(lag(stands) OVER of_date, 0) AS stood,
    coalesce(lag(stands * failed) OVER of_date, 0) AS stood_failed
  FROM concerned
  WINDOW of_date AS (PARTITION BY "table", check_id, "column", partition_date ORDER BY ts)
), summed AS (
  SELECT *,
    sum(stands - stood) OVER so_far AS standing,
    sum(stands * failed - stood_failed) OVER so_far AS standing_failed
  FROM dated
  WINDOW so_far AS (PARTITION BY "table", check_id, "column" ORDER BY ts, partition_date ROWS UNBOUNDED PRECEDING)
), moved AS (
  SELECT *,
    standing > 0 AND coalesce(lag(standing) OVER of_check, 0) = 0 AS opens,
    standing = 0 AND coalesce(lag(standing) OVER of_check, 0) > 0 AS closes
  FROM summed
  WINDOW of_check AS (PARTITION BY "table", check_id, "column" ORDER BY ts, partition_date)
), told_apart AS (
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
    FROM moved
  )
), numbered AS (
  SELECT *,
    sum(is_new) OVER (
      PARTITION BY "table", check_id, "column" ORDER BY ts, partition_date ROWS UNBOUNDED PRECEDING
    ) AS number
  FROM told_apart
), incidents AS (
  SELECT "table", check_id, "column",
    min(CASE WHEN stands = 1 THEN badness END) AS worst,
    last_value(standing ORDER BY ts, partition_date) AS standing,
    min(CASE WHEN is_new = 1 THEN ts END) AS opened,
    max(CASE WHEN closes THEN ts END) AS last_close,
    count(DISTINCT CASE WHEN stands = 1 THEN partition_date END) AS partitions,
    array_agg(DISTINCT partition_date ORDER BY partition_date) FILTER (WHERE stands = 1) AS dates,
    max(standing_failed) AS rows_failed,
    sum(CASE WHEN opens AND is_new = 0 THEN 1 ELSE 0 END) AS flaps,
    last_value(message ORDER BY ts, partition_date) FILTER (WHERE stands = 1) AS message
  FROM numbered
  WHERE number > 0
  GROUP BY "table", check_id, "column", number
)
SELECT "table", check_id, "column",
  CASE worst WHEN 0 THEN 'critical' WHEN 1 THEN 'error' WHEN 2 THEN 'warning' ELSE 'info' END AS severity,
  CASE WHEN standing > 0 THEN 'open' ELSE 'closed' END AS state,
  opened,
  CASE WHEN standing = 0 THEN last_close END AS closed,
  partitions, dates[1] AS first_partition, dates[-1] AS last_partition, dates, rows_failed, flaps, message
FROM incidents
ORDER BY standing > 0 DESC, worst, opened DESC, "table", check_id, "column"
