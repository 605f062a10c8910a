-- Grain: one row: checks that were computed so far, and the time that they took. Input: quality_results.
SELECT count(*) AS checks, sum(duration_s) AS duration_s FROM quality_results
