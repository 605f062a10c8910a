-- Grain: one row per {group} whose device time, waste, cost or goodput changed most from the seven UTC dates before to the
-- last seven, one for all others, one for all together. Inputs: goodput_daily, cost. Rows but the last add up to it. The
-- change of goodput, a ratio R of sums weighed by wall time, is parted by group g with share w and ratio r:
-- own = mean(w) * change(r), mix = change(w) * (mean(r) - mean(R)); a group that one week has alone is mix. Without a
-- week before nothing is told; nor of cost in several currencies, or of a week without any.
WITH sums AS (
  SELECT coalesce({group}, 'not recorded') AS name,
    coalesce(sum(CAST(wall_ns - unallocated_ns AS DOUBLE) * device_count) FILTER (WHERE {now}), 0) / 3.6e12 AS held,
    coalesce(sum(CAST(wall_ns - unallocated_ns AS DOUBLE) * device_count) FILTER (WHERE {before}), 0) / 3.6e12
      AS held_before,
    coalesce(sum(CAST(lost_work_ns + stall_ns + restart_ns - unallocated_ns AS DOUBLE) * device_count)
      FILTER (WHERE {now}), 0) / 3.6e12 AS wasted,
    coalesce(sum(CAST(lost_work_ns + stall_ns + restart_ns - unallocated_ns AS DOUBLE) * device_count)
      FILTER (WHERE {before}), 0) / 3.6e12 AS wasted_before,
    coalesce(sum(CAST(CASE WHEN untimed_ns IS NULL THEN wall_ns END AS DOUBLE) * device_count) FILTER (WHERE {now}), 0) AS wall,
    coalesce(sum(CAST(CASE WHEN untimed_ns IS NULL THEN wall_ns END AS DOUBLE) * device_count) FILTER (WHERE {before}), 0) AS wall_before,
    coalesce(sum(CAST(productive_ns AS DOUBLE) * device_count) FILTER (WHERE {now}), 0) AS good,
    coalesce(sum(CAST(productive_ns AS DOUBLE) * device_count) FILTER (WHERE {before}), 0) AS good_before
  FROM goodput_daily WHERE {dates} GROUP BY 1
), whole AS (
  SELECT sum(wall) AS wall, sum(wall_before) AS wall_before, sum(good) / nullif(sum(wall), 0) AS ratio,
    sum(good_before) / nullif(sum(wall_before), 0) AS ratio_before
  FROM sums
), money AS (
  SELECT coalesce({group}, 'not recorded') AS name,
    coalesce(CAST(sum(cost_total) FILTER (WHERE {now}) AS DOUBLE), 0) AS cost,
    coalesce(CAST(sum(cost_total) FILTER (WHERE {before}) AS DOUBLE), 0) AS cost_before
  FROM cost WHERE {dates} GROUP BY 1
), priced AS (
  SELECT count(DISTINCT currency) = 1 AND count(cost_total) FILTER (WHERE {now}) > 0
    AND count(cost_total) FILTER (WHERE {before}) > 0 AS is_known
  FROM cost WHERE {dates}
), names AS (
  SELECT name FROM sums UNION SELECT name FROM money
), ratios AS (
  SELECT sums.name, held - held_before AS device_h_change, wasted - wasted_before AS wasted_h_change,
    sums.wall / whole.wall AS share, sums.wall_before / whole.wall_before AS share_before,
    coalesce(good / nullif(sums.wall, 0), good_before / nullif(sums.wall_before, 0)) AS own_ratio,
    coalesce(good_before / nullif(sums.wall_before, 0), good / nullif(sums.wall, 0)) AS own_ratio_before,
    (whole.ratio + whole.ratio_before) / 2 AS mean_ratio
  FROM sums CROSS JOIN whole
  WHERE whole.wall > 0 AND whole.wall_before > 0
), parted AS (
  SELECT names.name, device_h_change, wasted_h_change,
    CASE WHEN priced.is_known THEN coalesce(cost, 0) - coalesce(cost_before, 0) END AS cost_change,
    (share + share_before) / 2 * (own_ratio - own_ratio_before) AS goodput_own,
    (share - share_before) * ((own_ratio + own_ratio_before) / 2 - mean_ratio) AS goodput_mix
  FROM names CROSS JOIN priced
  LEFT JOIN ratios ON ratios.name = names.name
  LEFT JOIN money ON money.name = names.name
), placed AS (
  SELECT *, row_number() OVER (ORDER BY size DESC, name) AS place FROM (
    SELECT *, abs(coalesce(device_h_change, 0)) + abs(coalesce(wasted_h_change, 0)) AS size FROM parted
  ) AS sized
), listed AS (
  SELECT place, name, device_h_change, wasted_h_change, cost_change, goodput_own, goodput_mix FROM placed
  WHERE place <= {most}
  UNION ALL
  SELECT {most} + 1, 'all others', sum(device_h_change), sum(wasted_h_change), sum(cost_change), sum(goodput_own),
    sum(goodput_mix)
  FROM placed WHERE place > {most} HAVING count(*) > 0
  UNION ALL
  SELECT {most} + 2, 'all together', sum(device_h_change), sum(wasted_h_change), sum(cost_change), sum(goodput_own),
    sum(goodput_mix)
  FROM placed HAVING count(device_h_change) + count(cost_change) > 0
)
SELECT name, device_h_change, wasted_h_change, cost_change, goodput_own, goodput_mix,
  goodput_own + goodput_mix AS goodput_change
FROM listed
WHERE device_h_change IS NOT NULL OR cost_change IS NOT NULL
ORDER BY place
