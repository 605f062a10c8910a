-- Grain: one row per rank. Input: steps. Phases are means over the steps that had them. A rank may speak for others.
SELECT rank, max(coalesce(ranks, 1)) AS speaks_for, count(*) AS n, count(DISTINCT step) AS distinct_steps,
  avg(step_time_s) AS step,
  avg(data_time_s) AS data, avg(forward_time_s) AS forward, avg(backward_time_s) AS backward,
  avg(collective_time_s) AS collective, avg(optimizer_time_s) AS optimizer, avg(checkpoint_time_s) AS checkpoint,
  avg(evaluation_time_s) AS evaluation
FROM steps
WHERE run = $run
GROUP BY rank
ORDER BY rank
