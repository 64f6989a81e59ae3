"""The processes of one trainer: how they meet, what process 0 has the others do, and their ends.

`process_group`: `ProcessGroup`, `ALONE`, `join`. `leader`: `Followers`, `invite`. `follower`:
`follow_training`.
"""
