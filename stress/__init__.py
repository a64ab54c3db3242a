"""Stress tests: kills, damage, payloads, processes, threads, full disks, and expressions against SQLite.

    make stress            ten minutes, and a table
    python -m stress --minutes 60 --seed 3 --only kills,damage

Most trials run a command in a fork of this process, which has imported everything once.
"""
