-- Grain: one row per group of ranks and 1/{parts} of the steps, at most {rows} by {parts}. Inputs: steps; step_rollup and
-- rank_health for the first and last step and the number of ranks. A rank's self time (step time less collectives) over
-- the median of all ranks in the same steps, less 1; of a group of ranks the greatest.
WITH bounds AS (
  SELECT min(step) AS first_step, max(step) AS last_step FROM step_rollup WHERE run = $run
), world AS (
  SELECT max(rank) + 1 AS ranks FROM rank_health WHERE run = $run
), of_rank AS (
  SELECT rank, {part} AS part, min(step) AS step,
    avg(step_time_s - coalesce(collective_time_s, 0)) AS self_time_s
  FROM steps CROSS JOIN bounds
  WHERE run = $run
  GROUP BY rank, part
), usual AS (
  SELECT part, median(self_time_s) AS usual_s FROM of_rank GROUP BY part
)
SELECT CAST(rank AS BIGINT) * {rows} / greatest(ranks, {rows}) AS "row", of_rank.part,
  min(rank) AS rank, max(rank) AS last_rank, min(step) AS step,
  max(self_time_s) AS self_time_s, max(self_time_s / nullif(usual_s, 0)) - 1 AS excess_ratio
FROM of_rank
JOIN usual ON usual.part = of_rank.part
CROSS JOIN world
GROUP BY "row", of_rank.part
ORDER BY "row", of_rank.part
