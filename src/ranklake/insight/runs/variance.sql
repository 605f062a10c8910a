-- Grain: one row. Input: runs, as summary.sql gives them. Deviations are of a sample.
SELECT
  count(last_loss) AS last_loss_n, avg(last_loss) AS last_loss_mean, stddev_samp(last_loss) AS last_loss_std,
  count(mean_step_time_s) AS mean_step_time_s_n, avg(mean_step_time_s) AS mean_step_time_s_mean,
  stddev_samp(mean_step_time_s) AS mean_step_time_s_std,
  count(tokens_per_s) AS tokens_per_s_n, avg(tokens_per_s) AS tokens_per_s_mean,
  stddev_samp(tokens_per_s) AS tokens_per_s_std,
  count(mfu_ratio) AS mfu_ratio_n, avg(mfu_ratio) AS mfu_ratio_mean, stddev_samp(mfu_ratio) AS mfu_ratio_std,
  count(goodput_ratio) AS goodput_ratio_n, avg(goodput_ratio) AS goodput_ratio_mean,
  stddev_samp(goodput_ratio) AS goodput_ratio_std
FROM ({runs}) AS runs
