"""Takes heartbeats over HTTP: of jobs in memory at once, of many sidecars in a process beside the coordinator.

One Python process cannot both decide on ten thousand jobs and speak HTTP with as many sidecars: two thousand messages a
second take most of a core. So a connection over which a heartbeat was answered goes to the heartbeat process, which
reads the requests and writes the answers, and passes the messages themselves on in lists. Judging and signing stay with
the one that acts: only there is it decided, at one moment, whether a launch is given up or its lease renewed.
"""
