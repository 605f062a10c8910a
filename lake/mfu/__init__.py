"""Model FLOPs: how many a token costs, how many a device can do, and the ratio of both.

`flops` has the conventions, `peaks` the devices (data in `devices.csv` and `peaks.csv`), `calculate` the ratio.
"""
