"""Stress tests: kills, damaged input, concurrent processes and threads, full disks.

    make stress            ten minutes, and a table
    python -m stress --minutes 60 --seed 3 --only kills,damage

A trial runs a command in a fork of this process, which has imported everything once.
"""
