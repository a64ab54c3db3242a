"""Whether beamtree keeps its word when it is killed, fed damage, run twice at once or left without room.

    make stress            ten minutes, and a table
    python -m stress --minutes 60 --seed 3 --only kills,damage

A trial runs a command in a copy of this process, which has imported everything once.
"""
