-- Grain: one row per run. Input: step_rollup. Seconds of a mean step, and of its phases: of each step the mean over the
-- ranks that had the phase. Data, forward, backward, optimizer and collective overlap where the framework overlaps them.
SELECT count(*) AS steps, avg(mean_step_time_s) AS step, avg(max_step_time_s) AS slowest,
  sum(mean_data_time_s) / count(*) AS data, sum(mean_forward_time_s) / count(*) AS forward,
  sum(mean_backward_time_s) / count(*) AS backward, sum(mean_collective_time_s) / count(*) AS collective,
  sum(mean_optimizer_time_s) / count(*) AS optimizer, sum(mean_checkpoint_time_s) / count(*) AS checkpoint,
  sum(mean_evaluation_time_s) / count(*) AS evaluation
FROM step_rollup
WHERE run = $run
