"""From sequences that a manager delivers to judged groups with advantages.

`assembly`: `Episode`, put together turn by turn. `environment`: what it was played in. `collector`:
finished episodes of a step, judged, in their groups. `trajectory`: `Trajectory`, as updates take
it. `estimates`: advantages. `samples`: what a person is shown. `judging`: shows that rewards are at
work.
"""
