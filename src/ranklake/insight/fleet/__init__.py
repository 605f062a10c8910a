"""The fleet as those see it who pay for it: device time, utilization, goodput, outcomes and cost, week by week."""
