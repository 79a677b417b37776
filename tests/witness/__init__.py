"""One judge for every test that runs a cluster, simulated or real.

`log` replays the committed log, which is the serial order that the cluster claims; `cycles` believes nobody's
order and looks for one itself, in what clients read and appended.
"""
