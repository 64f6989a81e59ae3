"""The processes of one trainer: how they meet, what process 0 has the others do, and their ends.

`world`: `World`, `ALONE`, `join`. `leader`: `Followers`, `invite`. `follower`: `follow_training`.
"""
