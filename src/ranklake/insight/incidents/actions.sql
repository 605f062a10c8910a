-- Grain: one row per claim, outcome or proposal of a step of a playbook, in order. Input: audit.
SELECT seq, ts, actor, action, reason, details
FROM audit
WHERE action IN ('playbook.claim', 'playbook.outcome', 'playbook.propose') AND {where}
ORDER BY seq
